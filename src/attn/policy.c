#include "attn/policy.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKET_MIN = 4096, KEY_BYTES_MAX = 31, BLOCK_SMALL = 64, BLOCK_LARGE = 128 };

/* Shares of the bucket that spark-66m was trained with, and the blocks' window. */
enum { WINDOW_SHARE = 32, STRIDE_SHARE = 128, SINK_TOKENS = 64, BLOCKS_WINDOW = 512 };

/* Blocks of 64 that a list has room for: all of 16K tokens, a quarter of more than 64K. */
enum { CAPACITY_SMALL = 256, CAPACITY_SHARE = 4 };

/* One number of a policy: its name, where it lies, and which kinds have it (bits of fl_policy_kind). */
typedef struct number {
    const char *name;
    size_t offset;
    uint32_t kinds;
    int64_t multiple; /* values are multiples of it */
} number;

#define KIND(name) (1u << FL_POLICY_##name)
#define ANY_BLOCKS (KIND(BLOCKS) | KIND(RANDOM_BLOCKS))

static const char *const names[FL_N_POLICIES] = {
    [FL_POLICY_FULL] = "full",
    [FL_POLICY_WINDOW] = "window",
    [FL_POLICY_WINDOW_ANCHORS] = "window-anchors",
    [FL_POLICY_SEGMENTS] = "segments",
    [FL_POLICY_BLOCKS] = "blocks",
    [FL_POLICY_RANDOM_BLOCKS] = "random-blocks",
};

static const number numbers[] = {
    {"window", offsetof(fl_policy, window), KIND(WINDOW) | KIND(WINDOW_ANCHORS) | KIND(SEGMENTS) | ANY_BLOCKS,
     1},
    {"stride", offsetof(fl_policy, stride), KIND(WINDOW_ANCHORS) | KIND(SEGMENTS), 1},
    {"segment", offsetof(fl_policy, segment), KIND(SEGMENTS), FL_KV_PAGE_TOKENS},
    {"sinks", offsetof(fl_policy, sinks), KIND(WINDOW) | ANY_BLOCKS, 1},
    {"block", offsetof(fl_policy, block), ANY_BLOCKS, BLOCK_SMALL},
    {"capacity", offsetof(fl_policy, capacity), ANY_BLOCKS, 1},
};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

static int64_t *number_of(fl_policy *p, const number *n) {
    return (int64_t *)(void *)((uint8_t *)p + n->offset);
}

static bool has(const fl_policy *p, const number *n) {
    return (n->kinds >> p->kind & 1) != 0;
}

int64_t fl_policy_bucket(int64_t ctx_tokens) {
    int64_t bucket = BUCKET_MIN;
    while (bucket < ctx_tokens) bucket *= 2;
    return bucket;
}

static int64_t default_capacity(int64_t bucket) {
    int64_t all = bucket / FL_KV_PAGE_TOKENS, share = all / CAPACITY_SHARE;
    int64_t small = all < CAPACITY_SMALL ? all : CAPACITY_SMALL;
    return share > small ? share : small;
}

static void set_defaults(fl_policy *p, int64_t bucket) {
    const fl_policy all = {.window = fl_policy_is_blocks(p) ? BLOCKS_WINDOW : bucket / WINDOW_SHARE,
                           .stride = bucket / STRIDE_SHARE,
                           .segment = p->segments > 0 ? (bucket / p->segments + FL_KV_PAGE_TOKENS - 1) /
                                                            FL_KV_PAGE_TOKENS * FL_KV_PAGE_TOKENS
                                                      : 0,
                           .sinks = SINK_TOKENS,
                           .block = BLOCK_SMALL,
                           .capacity = default_capacity(bucket)};
    for (int i = 0; i < N_NUMBERS; i++) {
        const uint8_t *from = (const uint8_t *)&all + numbers[i].offset;
        if (has(p, &numbers[i])) memcpy(number_of(p, &numbers[i]), from, sizeof(int64_t));
    }
}

/* More than any context; sums of some of them and a position are still an int32_t. */
enum { SIZE_MOST = 1 << 28 };

/* "4096", "4k" or "1/32" of the bucket; -1 if it is none of them. */
static int64_t read_size(const char *text, int64_t bucket) {
    char *end;
    if (!isdigit((unsigned char)*text)) return -1;
    long long value = strtoll(text, &end, 10);
    if (value < 0 || value > INT32_MAX) return -1;
    if (*end == '/') {
        const char *divisor = end + 1;
        if (!isdigit((unsigned char)*divisor)) return -1;
        long long by = strtoll(divisor, &end, 10);
        return *end != '\0' || by <= 0 || value > by ? -1 : (bucket * value + by - 1) / by;
    }
    if ((*end == 'k' || *end == 'K') && end[1] == '\0') return value <= INT32_MAX / 1024 ? value * 1024 : -1;
    return *end == '\0' ? value : -1;
}

static fl_err set_alpha(const char *value, fl_policy *p) {
    char *end;
    p->alpha = strtod(value, &end);
    if (*end != '\0' || end == value || !(p->alpha > 0 && p->alpha <= 1))
        return FL_FAIL(FL_ERR_INVALID, "policy %s: alpha: expected 0 < alpha <= 1, found '%s'",
                       names[p->kind], value);
    return FL_ERR_OK;
}

static fl_err set_number(const char *key, const char *value, int64_t bucket, fl_policy *p) {
    if (fl_policy_is_blocks(p) && strcmp(key, "alpha") == 0) return set_alpha(value, p);
    for (int i = 0; i < N_NUMBERS; i++) {
        if (!has(p, &numbers[i]) || strcmp(key, numbers[i].name) != 0) continue;
        int64_t size = read_size(value, bucket), multiple = numbers[i].multiple;
        if (size < 1 || size > SIZE_MOST || size % multiple != 0)
            return FL_FAIL(FL_ERR_INVALID,
                           "policy %s: %s: expected a multiple of %lld in %lld..%d, as 4096, 4k or 1/32, "
                           "found '%s'",
                           names[p->kind], key, (long long)multiple, (long long)multiple, SIZE_MOST, value);
        *number_of(p, &numbers[i]) = size;
        return FL_ERR_OK;
    }
    return FL_FAIL(FL_ERR_INVALID, "policy %s has no setting '%s'", names[p->kind], key);
}

/* One item of the list behind the name; `index` counts them. */
static fl_err read_item(char *item, int index, int64_t bucket, fl_policy *p) {
    char *equals = strchr(item, '=');
    if (equals) {
        *equals = '\0';
        return set_number(item, equals + 1, bucket, p);
    }
    if (p->kind != FL_POLICY_SEGMENTS || index > 0)
        return FL_FAIL(FL_ERR_INVALID, "policy %s: expected name=value, found '%s'", names[p->kind], item);
    p->segments = read_size(item, bucket);
    if (p->segments < 1 || p->segments > bucket / FL_KV_PAGE_TOKENS)
        return FL_FAIL(FL_ERR_INVALID, "policy segments: expected 1..%lld segments, found '%s'",
                       (long long)(bucket / FL_KV_PAGE_TOKENS), item);
    set_defaults(p, bucket);
    return FL_ERR_OK;
}

static fl_err check(const fl_policy *p, int64_t bucket) {
    if (p->kind == FL_POLICY_SEGMENTS && p->segments == 0)
        return FL_FAIL(FL_ERR_INVALID, "policy segments: expected their number, as in segments:4");
    if (!fl_policy_is_blocks(p)) return FL_ERR_OK;
    if (p->block != BLOCK_SMALL && p->block != BLOCK_LARGE)
        return FL_FAIL(FL_ERR_INVALID, "policy %s: block: expected %d or %d, found %lld", names[p->kind],
                       BLOCK_SMALL, BLOCK_LARGE, (long long)p->block);
    int64_t forced = (p->sinks + p->window + FL_ATTN_LIST_ROWS) / FL_KV_PAGE_TOKENS + 4;
    if (p->capacity < forced && p->capacity < bucket / FL_KV_PAGE_TOKENS)
        return FL_FAIL(
            FL_ERR_INVALID,
            "policy %s: capacity: expected at least the %lld blocks of sinks and window, found %lld",
            names[p->kind], (long long)forced, (long long)p->capacity);
    return FL_ERR_OK;
}

static fl_err find_kind(const char *name, fl_policy *p) {
    for (int i = 0; i < FL_N_POLICIES; i++)
        if (strcmp(name, names[i]) == 0) {
            p->kind = (fl_policy_kind)i;
            return FL_ERR_OK;
        }
    return FL_FAIL(FL_ERR_INVALID,
                   "policy: expected full, window, window-anchors, segments:N or blocks, found '%s'", name);
}

fl_err fl_policy_parse(const char *text, int64_t ctx_tokens, fl_policy *out) {
    char copy[FL_POLICY_TEXT_BYTES];
    int64_t bucket = fl_policy_bucket(ctx_tokens);
    *out = (fl_policy){0};
    if (!text || *text == '\0') return FL_ERR_OK;
    if ((size_t)snprintf(copy, sizeof copy, "%s", text) >= sizeof copy)
        return FL_FAIL(FL_ERR_INVALID, "policy: expected at most %zu bytes", sizeof copy - 1);
    char *items = strchr(copy, ':');
    if (items) *items++ = '\0';
    FL_TRY(find_kind(copy, out));
    set_defaults(out, bucket);
    for (int index = 0; items; index++) {
        char *next = strchr(items, ',');
        if (next) *next++ = '\0';
        FL_TRY(read_item(items, index, bucket, out));
        items = next;
    }
    return check(out, bucket);
}

void fl_policy_write(const fl_policy *policy, char text[FL_POLICY_TEXT_BYTES]) {
    fl_policy p = *policy;
    int n = snprintf(text, FL_POLICY_TEXT_BYTES, "%s", names[p.kind]);
    char separator = ':';
    if (p.kind == FL_POLICY_SEGMENTS) {
        n += snprintf(text + n, (size_t)(FL_POLICY_TEXT_BYTES - n), ":%lld", (long long)p.segments);
        separator = ',';
    }
    for (int i = 0; i < N_NUMBERS; i++) {
        if (!has(&p, &numbers[i])) continue;
        n += snprintf(text + n, (size_t)(FL_POLICY_TEXT_BYTES - n), "%c%s=%lld", separator, numbers[i].name,
                      (long long)*number_of(&p, &numbers[i]));
        separator = ',';
    }
    if (fl_policy_is_blocks(&p) && p.alpha > 0)
        snprintf(text + n, (size_t)(FL_POLICY_TEXT_BYTES - n), "%calpha=%g", separator, p.alpha);
}

fl_attend fl_policy_attend(const fl_policy *p) {
    fl_attend attend = {0};
    if (fl_policy_is_blocks(p)) {
        attend.blocks = true;
        attend.block_tokens = (int32_t)p->block;
        attend.sink_tokens = (int32_t)p->sinks;
        attend.window_tokens = (int32_t)p->window;
        attend.list_capacity = (int32_t)p->capacity;
        attend.random_seed = p->kind == FL_POLICY_RANDOM_BLOCKS ? 1 : 0;
        return attend;
    }
    /* Position 0 is always seen: as a sink or as the first anchor. */
    attend.view = (fl_attn_view){
        .window = (int32_t)p->window, .segment = (int32_t)p->segment, .sinks = (int32_t)p->sinks};
    attend.anchor_step = (int32_t)p->stride;
    return attend;
}
