#include "op/kv_format.h"

#include <string.h>

static const char *const names[] = {[FL_KV_F32] = "f32",
                                    [FL_KV_BF16] = "bf16",
                                    [FL_KV_FP8] = "fp8",
                                    [FL_KV_INT4] = "int4",
                                    [FL_KV_INT4_NAIVE] = "int4-naive",
                                    [FL_KV_INT2_NAIVE] = "int2-naive"};

const char *fl_kv_format_name(fl_kv_format format) {
    return names[format];
}

bool fl_kv_format_parse(const char *name, fl_kv_format *out) {
    for (int i = 0; i < FL_N_KV_FORMATS; i++)
        if (strcmp(names[i], name) == 0) {
            *out = (fl_kv_format)i;
            return true;
        }
    return false;
}

int32_t fl_kv_format_group(fl_kv_format format, int32_t latent_dim) {
    if (format != FL_KV_INT4) return 0;
    return latent_dim < 256 ? 32 : 64;
}

fl_kv_layout fl_kv_layout_of(const fl_kv_layer *layer) {
    int64_t latent = layer->latent_dim, element = (int64_t)fl_dtype_bytes(fl_kv_format_dtype(layer->format));
    int64_t codes = latent * element, scales = 0, outliers = 0;
    fl_kv_layout at = {0};
    if (layer->format == FL_KV_FP8) {
        at.groups = (layer->latent_dim + FL_KV_FP8_GROUP - 1) / FL_KV_FP8_GROUP;
        codes = latent;
        scales = at.groups * (int64_t)sizeof(float);
    } else if (layer->format == FL_KV_INT4) {
        at.groups = layer->latent_dim / layer->group;
        codes = latent / 2;
        scales = at.groups * 2 * (int64_t)sizeof(uint16_t);
        outliers = layer->n_outliers * (int64_t)sizeof(uint16_t);
    }
    at.scales_bytes = FL_KV_PAGE_TOKENS * codes;
    at.outliers_bytes = at.scales_bytes + FL_KV_PAGE_TOKENS * scales;
    int64_t planes = layer->planes > 0 ? layer->planes : 1;
    int64_t plane_bytes = FL_KV_PAGE_TOKENS * layer->rope_dim * element;
    at.k_pe_bytes = at.outliers_bytes + FL_KV_PAGE_TOKENS * outliers + layer->plane * plane_bytes;
    at.piece_bytes = at.k_pe_bytes + (planes - layer->plane) * plane_bytes;
    return at;
}

int64_t fl_kv_piece_bytes(const fl_kv_layer *layer) {
    return fl_kv_layout_of(layer).piece_bytes;
}

double fl_kv_token_bytes(const fl_kv_layer *layer) {
    return (double)fl_kv_piece_bytes(layer) / FL_KV_PAGE_TOKENS;
}
