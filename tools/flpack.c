/* Byte planes and zstd frames. Every number read from a pack or a safetensors header is foreign and checked
 * before use; sums stay below FILE_BYTES_MAX, so they cannot overflow. */
#include "tools/flpack.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

static const uint8_t MAGIC[8] = {'F', 'L', 'P', 'A', 'C', 'K', '1', '\n'};
static const uint64_t FILE_BYTES_MAX = 1ULL << 32;
enum { SEGMENTS_MAX = 1 << 20, HEAD_BYTES = 20, SEGMENT_BYTES = 12, STREAM_BYTES = 16 };

/* What a run of file bytes is: all else, fp8 values, bf16 values. */
typedef enum kind { KIND_PLAIN, KIND_FP8, KIND_BF16, KIND_COUNT } kind;
enum { STREAM_PLAIN, STREAM_FP8, STREAM_BF16_LOW, STREAM_BF16_HIGH };

typedef struct segment {
    kind kind;
    uint64_t begin, bytes;
} segment;

typedef struct stream {
    uint8_t *data;
    size_t bytes, frame_bytes;
} stream;

/* A file being packed or unpacked. */
typedef struct work {
    segment *segments; /* [n_segments], owned */
    size_t n_segments;
    stream streams[FL_PACK_STREAMS]; /* owned data */
} work;

static void work_close(work *w) {
    free(w->segments);
    for (int i = 0; i < FL_PACK_STREAMS; i++) free(w->streams[i].data);
}

static void put_le(uint8_t *to, uint64_t value, int n_bytes) {
    for (int i = 0; i < n_bytes; i++) to[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_le(const uint8_t *from, int n_bytes) {
    uint64_t value = 0;
    for (int i = 0; i < n_bytes; i++) value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static int segment_compare(const void *a, const void *b) {
    uint64_t x = ((const segment *)a)->begin, y = ((const segment *)b)->begin;
    return (x > y) - (x < y);
}

/* Allocates each stream to hold exactly what the segments put into it. */
static fl_err streams_alloc(work *w) {
    size_t sums[FL_PACK_STREAMS] = {0};
    for (size_t i = 0; i < w->n_segments; i++) {
        const segment *s = &w->segments[i];
        if (s->kind == KIND_BF16) {
            sums[STREAM_BF16_LOW] += (size_t)(s->bytes / 2);
            sums[STREAM_BF16_HIGH] += (size_t)(s->bytes / 2);
        } else {
            sums[s->kind == KIND_FP8 ? STREAM_FP8 : STREAM_PLAIN] += (size_t)s->bytes;
        }
    }
    for (int i = 0; i < FL_PACK_STREAMS; i++) {
        w->streams[i].bytes = sums[i];
        w->streams[i].data = malloc(sums[i] + 1);
        if (!w->streams[i].data) return FL_FAIL(FL_ERR_NOMEM, "a stream of %zu bytes", sums[i]);
    }
    return FL_ERR_OK;
}

/* Moves the file's bytes into the streams (`pack`) or back. */
static void streams_move(work *w, uint8_t *file, bool pack) {
    size_t at[FL_PACK_STREAMS] = {0};
    for (size_t i = 0; i < w->n_segments; i++) {
        const segment *s = &w->segments[i];
        uint8_t *bytes = file + s->begin;
        if (s->kind == KIND_BF16) {
            uint8_t *low = w->streams[STREAM_BF16_LOW].data + at[STREAM_BF16_LOW];
            uint8_t *high = w->streams[STREAM_BF16_HIGH].data + at[STREAM_BF16_HIGH];
            size_t n = (size_t)(s->bytes / 2);
            for (size_t j = 0; j < n; j++) {
                uint8_t *pair = bytes + 2 * j;
                if (pack) {
                    low[j] = pair[0];
                    high[j] = pair[1];
                } else {
                    pair[0] = low[j];
                    pair[1] = high[j];
                }
            }
            at[STREAM_BF16_LOW] += n;
            at[STREAM_BF16_HIGH] += n;
        } else {
            int id = s->kind == KIND_FP8 ? STREAM_FP8 : STREAM_PLAIN;
            uint8_t *run = w->streams[id].data + at[id];
            memcpy(pack ? run : bytes, pack ? bytes : run, (size_t)s->bytes);
            at[id] += (size_t)s->bytes;
        }
    }
}

/* One tensor of the header as a segment of the file; *tensor is left at KIND_PLAIN for dtypes kept as they
 * are. */
static fl_err tensor_segment(const char *name, json_t *entry, uint64_t data_begin, uint64_t file_bytes,
                             segment *tensor) {
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    json_t *offsets = json_object_get(entry, "data_offsets");
    json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (!dtype || !json_is_integer(first) || !json_is_integer(last))
        return FL_FAIL(FL_ERR_DATA, "tensor %s: dtype or data_offsets missing", name);
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin || (uint64_t)end > file_bytes - data_begin)
        return FL_FAIL(FL_ERR_DATA, "tensor %s: data_offsets outside the file", name);
    tensor->begin = data_begin + (uint64_t)begin;
    tensor->bytes = (uint64_t)(end - begin);
    tensor->kind = KIND_PLAIN;
    if (strcmp(dtype, "F8_E4M3") == 0) tensor->kind = KIND_FP8;
    if (strcmp(dtype, "BF16") == 0 && tensor->bytes % 2 == 0) tensor->kind = KIND_BF16;
    return FL_ERR_OK;
}

/* Turns the sorted tensors in `tensors` into segments that cover the file without holes, neighbours of a kind
 * merged. */
static fl_err segments_cover(work *w, const segment *tensors, size_t n_tensors, uint64_t file_bytes) {
    w->segments = calloc(2 * n_tensors + 2, sizeof *w->segments);
    if (!w->segments) return FL_FAIL(FL_ERR_NOMEM, "%zu segments", 2 * n_tensors + 2);
    uint64_t at = 0;
    for (size_t i = 0; i <= n_tensors; i++) {
        segment next = {KIND_PLAIN, file_bytes, 0};
        if (i < n_tensors) next = tensors[i];
        if (next.begin < at)
            return FL_FAIL(FL_ERR_DATA, "tensors overlap at byte %llu", (unsigned long long)at);
        const segment parts[2] = {{KIND_PLAIN, at, next.begin - at}, next};
        for (int p = 0; p < 2; p++) {
            if (parts[p].bytes == 0) continue;
            segment *last = w->n_segments > 0 ? &w->segments[w->n_segments - 1] : NULL;
            if (last && last->kind == parts[p].kind) {
                last->bytes += parts[p].bytes;
            } else {
                w->segments[w->n_segments++] = parts[p];
            }
        }
        at = next.begin + next.bytes;
    }
    return FL_ERR_OK;
}

/* Cuts a safetensors file into segments. */
static fl_err segments_find(const uint8_t *file, size_t file_bytes, work *w) {
    if (file_bytes < 8 || get_le(file, 8) > file_bytes - 8)
        return FL_FAIL(FL_ERR_DATA, "no safetensors header in %zu bytes", file_bytes);
    size_t header_bytes = (size_t)get_le(file, 8), n_tensors = 0;
    json_error_t fault;
    json_t *header = json_loadb((const char *)file + 8, header_bytes, JSON_REJECT_DUPLICATES, &fault);
    if (!json_is_object(header)) {
        json_decref(header);
        return FL_FAIL(FL_ERR_DATA, "safetensors header: %s", fault.text);
    }
    fl_err err = FL_ERR_OK;
    const char *name;
    json_t *entry;
    segment *tensors = calloc(json_object_size(header) + 1, sizeof *tensors);
    if (!tensors) {
        err = FL_FAIL(FL_ERR_NOMEM, "%zu tensors", json_object_size(header));
        goto fail;
    }
    json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) continue;
        FL_TRY_GOTO(tensor_segment(name, entry, 8 + header_bytes, file_bytes, &tensors[n_tensors]));
        n_tensors++;
    }
    qsort(tensors, n_tensors, sizeof *tensors, segment_compare);
    err = segments_cover(w, tensors, n_tensors, file_bytes);
fail:
    free(tensors);
    json_decref(header);
    return err;
}

/* Replaces each stream's data by its zstd frame. */
static fl_err streams_compress(work *w, int level) {
    for (int i = 0; i < FL_PACK_STREAMS; i++) {
        stream *s = &w->streams[i];
        size_t bound = ZSTD_compressBound(s->bytes);
        uint8_t *frame = malloc(bound);
        if (!frame) return FL_FAIL(FL_ERR_NOMEM, "a frame of %zu bytes", bound);
        s->frame_bytes = ZSTD_compress(frame, bound, s->data, s->bytes, level);
        free(s->data);
        s->data = frame;
        if (ZSTD_isError(s->frame_bytes))
            return FL_FAIL(FL_ERR_INTERNAL, "zstd: %s", ZSTD_getErrorName(s->frame_bytes));
    }
    return FL_ERR_OK;
}

fl_err fl_pack_encode(const uint8_t *file, size_t file_bytes, int level, uint8_t **out, size_t *out_bytes) {
    work w = {0};
    fl_err err = FL_ERR_OK;
    if (file_bytes >= FILE_BYTES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "a file of %zu bytes is above the pack's limit", file_bytes);
    FL_TRY_GOTO(segments_find(file, file_bytes, &w));
    if (w.n_segments > SEGMENTS_MAX) {
        err = FL_FAIL(FL_ERR_LIMIT, "%zu segments, at most %d", w.n_segments, SEGMENTS_MAX);
        goto fail;
    }
    FL_TRY_GOTO(streams_alloc(&w));
    streams_move(&w, (uint8_t *)(uintptr_t)file, true); /* packing only reads the file */
    FL_TRY_GOTO(streams_compress(&w, level));
    size_t total = HEAD_BYTES + w.n_segments * SEGMENT_BYTES + FL_PACK_STREAMS * STREAM_BYTES;
    for (int i = 0; i < FL_PACK_STREAMS; i++) total += w.streams[i].frame_bytes;
    uint8_t *pack = malloc(total), *at = pack;
    if (!pack) {
        err = FL_FAIL(FL_ERR_NOMEM, "a pack of %zu bytes", total);
        goto fail;
    }
    memcpy(at, MAGIC, sizeof MAGIC);
    put_le(at + 8, file_bytes, 8);
    put_le(at + 16, w.n_segments, 4);
    at += HEAD_BYTES;
    for (size_t i = 0; i < w.n_segments; i++, at += SEGMENT_BYTES) {
        put_le(at, w.segments[i].kind, 4);
        put_le(at + 4, w.segments[i].bytes, 8);
    }
    for (int i = 0; i < FL_PACK_STREAMS; i++, at += STREAM_BYTES) {
        put_le(at, w.streams[i].bytes, 8);
        put_le(at + 8, w.streams[i].frame_bytes, 8);
    }
    for (int i = 0; i < FL_PACK_STREAMS; i++) {
        memcpy(at, w.streams[i].data, w.streams[i].frame_bytes);
        at += w.streams[i].frame_bytes;
    }
    *out = pack;
    *out_bytes = total;
fail:
    work_close(&w);
    return err;
}

/* Reads the segment table; its sum must be the file's size. */
static fl_err segments_read(const uint8_t *table, uint64_t file_bytes, work *w) {
    w->segments = calloc(w->n_segments + 1, sizeof *w->segments);
    if (!w->segments) return FL_FAIL(FL_ERR_NOMEM, "%zu segments", w->n_segments);
    uint64_t at = 0;
    for (size_t i = 0; i < w->n_segments; i++, table += SEGMENT_BYTES) {
        uint64_t kind_id = get_le(table, 4), bytes = get_le(table + 4, 8);
        if (kind_id >= KIND_COUNT || bytes > file_bytes - at || (kind_id == KIND_BF16 && bytes % 2 != 0))
            return FL_FAIL(FL_ERR_DATA, "segment %zu of the pack is broken", i);
        w->segments[i] = (segment){(kind)kind_id, at, bytes};
        at += bytes;
    }
    if (at != file_bytes)
        return FL_FAIL(FL_ERR_DATA, "the pack's segments hold %llu bytes, the file %llu",
                       (unsigned long long)at, (unsigned long long)file_bytes);
    return FL_ERR_OK;
}

/* Decompresses the frames behind the stream table at `table` into the allocated streams; nothing may be left
 * over. */
static fl_err frames_read(const uint8_t *table, const uint8_t *pack_end, work *w) {
    const uint8_t *frame = table + FL_PACK_STREAMS * STREAM_BYTES;
    for (int i = 0; i < FL_PACK_STREAMS; i++, table += STREAM_BYTES) {
        stream *s = &w->streams[i];
        uint64_t raw_bytes = get_le(table, 8), frame_bytes = get_le(table + 8, 8);
        if (raw_bytes != s->bytes || frame_bytes > (uint64_t)(pack_end - frame))
            return FL_FAIL(FL_ERR_DATA, "stream %d of the pack is cut or of the wrong size", i);
        size_t got = ZSTD_decompress(s->data, s->bytes, frame, (size_t)frame_bytes);
        if (ZSTD_isError(got))
            return FL_FAIL(FL_ERR_DATA, "stream %d of the pack: %s", i, ZSTD_getErrorName(got));
        if (got != s->bytes)
            return FL_FAIL(FL_ERR_DATA, "stream %d of the pack: expected %zu bytes, found %zu", i, s->bytes,
                           got);
        frame += frame_bytes;
    }
    if (frame != pack_end)
        return FL_FAIL(FL_ERR_DATA, "%td bytes after the end of the pack", pack_end - frame);
    return FL_ERR_OK;
}

fl_err fl_pack_decode(const uint8_t *pack, size_t pack_bytes, uint8_t **out, size_t *out_bytes) {
    work w = {0};
    fl_err err = FL_ERR_OK;
    uint8_t *file = NULL;
    if (pack_bytes < HEAD_BYTES || memcmp(pack, MAGIC, sizeof MAGIC) != 0)
        return FL_FAIL(FL_ERR_DATA, "not a pack: it does not begin with FLPACK1");
    uint64_t file_bytes = get_le(pack + 8, 8), n_segments = get_le(pack + 16, 4);
    size_t tables_bytes = HEAD_BYTES + (size_t)n_segments * SEGMENT_BYTES + FL_PACK_STREAMS * STREAM_BYTES;
    if (file_bytes >= FILE_BYTES_MAX || n_segments > SEGMENTS_MAX || tables_bytes > pack_bytes)
        return FL_FAIL(FL_ERR_DATA, "the pack's tables are cut or its counts are too large");
    w.n_segments = (size_t)n_segments;
    FL_TRY_GOTO(segments_read(pack + HEAD_BYTES, file_bytes, &w));
    FL_TRY_GOTO(streams_alloc(&w));
    FL_TRY_GOTO(frames_read(pack + HEAD_BYTES + w.n_segments * SEGMENT_BYTES, pack + pack_bytes, &w));
    file = malloc((size_t)file_bytes + 1);
    if (!file) {
        err = FL_FAIL(FL_ERR_NOMEM, "a file of %llu bytes", (unsigned long long)file_bytes);
        goto fail;
    }
    streams_move(&w, file, false);
    *out = file;
    *out_bytes = (size_t)file_bytes;
fail:
    work_close(&w);
    return err;
}
