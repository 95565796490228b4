/* Which keys a row of attn_absorbed sees, as at most two runs of positions: fl_attn_view_sees solved for t. Cost
 * function and fast versions share it; the reference and the checks ask fl_attn_view_sees itself. */
#ifndef FL_OP_ATTN_ABSORBED_KEYS_H
#define FL_OP_ATTN_ABSORBED_KEYS_H

#include "op/attn_absorbed/attn_absorbed.h"

/* Positions begin[i] .. end[i] - 1 that are multiples of the call's key_step: far sinks, then all others. Disjoint,
 * begin <= end, end <= the row's position + 1. As the position grows, no begin and no end falls. */
typedef struct fl_absorbed_keys {
    int32_t begin[2], end[2];
} fl_absorbed_keys;

fl_absorbed_keys fl_absorbed_keys_of(const fl_attn_view *view, int32_t pos);

static inline int32_t fl_absorbed_step(const fl_attn_absorbed_args *a) {
    return a->key_step > 0 ? a->key_step : 1;
}

/* Every row sees every key up to its own. */
bool fl_absorbed_sees_all(const fl_attn_absorbed_args *a);

/* First seen position in [from, end), or -1. */
int32_t fl_absorbed_first_key(const fl_absorbed_keys *keys, int32_t from, int32_t end, int32_t step);

/* Bit i: position page_pos + i is a multiple of step. */
uint64_t fl_absorbed_page_steps(int32_t page_pos, int32_t step);

/* Bit i: position page_pos + i is seen; `steps` from fl_absorbed_page_steps. */
uint64_t fl_absorbed_page_keys(const fl_absorbed_keys *keys, int32_t page_pos, uint64_t steps);

#endif
