#include "op/attn_absorbed/attn_absorbed_keys.h"

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

fl_absorbed_keys fl_absorbed_keys_of(const fl_attn_view *view, int32_t pos) {
    int64_t end = larger(0, (int64_t)pos + 1 - view->distance_first);
    int64_t begin = view->distance_end > 0 ? larger(0, (int64_t)pos + 1 - view->distance_end) : 0;
    int64_t near_begin = 0, sinks = 0; /* near = [0, sinks) and [near_begin, pos] */
    if (view->window > 0) {
        near_begin = larger(0, (int64_t)pos + 1 - view->window);
        if (view->segment > 0) near_begin = smaller(near_begin, pos / view->segment * view->segment);
        sinks = smaller(view->sinks, near_begin);
    }
    int64_t begins[2] = {begin, larger(begin, near_begin)}, ends[2] = {smaller(sinks, end), end};
    if (view->far) {
        begins[1] = larger(begin, sinks);
        ends[0] = 0;
        ends[1] = smaller(end, near_begin);
    }
    fl_absorbed_keys keys;
    for (int i = 0; i < 2; i++) {
        keys.begin[i] = (int32_t)begins[i];
        keys.end[i] = (int32_t)larger(begins[i], ends[i]);
    }
    return keys;
}

bool fl_absorbed_sees_all(const fl_attn_absorbed_args *a) {
    const fl_attn_view *v = &a->view;
    return v->window == 0 && !v->far && v->distance_first == 0 && v->distance_end == 0 && a->key_step <= 1;
}

int32_t fl_absorbed_first_key(const fl_absorbed_keys *keys, int32_t from, int32_t end, int32_t step) {
    for (int i = 0; i < 2; i++) {
        int64_t first = (larger(from, keys->begin[i]) + step - 1) / step * step;
        if (first < smaller(end, keys->end[i])) return (int32_t)first;
    }
    return -1;
}

uint64_t fl_absorbed_page_steps(int32_t page_pos, int32_t step) {
    uint64_t steps = 0;
    if (step == 1) return UINT64_MAX;
    int64_t first = ((int64_t)page_pos + step - 1) / step * step - page_pos;
    for (int64_t i = first; i < FL_KV_PAGE_TOKENS; i += step) steps |= (uint64_t)1 << i;
    return steps;
}

/* Bits below `n`, clamped to a word. */
static uint64_t bits_below(int64_t n) {
    return n <= 0 ? 0 : n >= 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
}

uint64_t fl_absorbed_page_keys(const fl_absorbed_keys *keys, int32_t page_pos, uint64_t steps) {
    uint64_t seen = 0;
    for (int i = 0; i < 2; i++)
        seen |=
            bits_below((int64_t)keys->end[i] - page_pos) & ~bits_below((int64_t)keys->begin[i] - page_pos);
    return seen & steps;
}
