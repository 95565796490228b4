/* Attention policies: a name and numbers, given as one text.
 *
 *   full
 *   window[:KEYS]           the first `sinks` tokens and the last `window`
 *   window-anchors[:KEYS]   the last `window` tokens, and before them every `stride`-th
 *   segments:N[,KEYS]       all of the row's own of N equal segments, the last `window` tokens across its edge, and
 *                           every `stride`-th before
 *   blocks[:KEYS]           the first `sinks`, the last `window` and the blocks of `block` tokens whose score is at
 *                           least `alpha` of the best; the others as their means. At most `capacity` blocks of 64
 *   random-blocks[:KEYS]    as many blocks drawn at random: the control of the evaluation
 *
 * KEYS is name=value, separated by commas. Sizes are tokens (4096, 4k) or a share (1/32) of the length bucket: the
 * smallest power of two that holds the configured context, at least 4096. So they are fixed when an engine is opened
 * and never depend on a prompt: a longer follow-up keeps its document's pages. What is not given is a share of the
 * bucket as spark-66m was trained (window 1/32, stride 1/128), or the calibration's. */
#ifndef FL_ATTN_POLICY_H
#define FL_ATTN_POLICY_H

#include "op/attend.h"

typedef enum fl_policy_kind {
    FL_POLICY_FULL,
    FL_POLICY_WINDOW,
    FL_POLICY_WINDOW_ANCHORS,
    FL_POLICY_SEGMENTS,
    FL_POLICY_BLOCKS,
    FL_POLICY_RANDOM_BLOCKS,
    FL_N_POLICIES
} fl_policy_kind;

/* Numbers that the kind does not have are 0. Sizes in tokens. */
typedef struct fl_policy {
    fl_policy_kind kind;
    int64_t segments; /* how many */
    int64_t window, stride, segment, sinks;
    int64_t block;    /* 64 or 128 */
    int64_t capacity; /* in blocks of 64 tokens */
    double alpha;     /* 0 = take the calibration's, or FL_POLICY_ALPHA without one */
} fl_policy;

#define FL_POLICY_ALPHA 0.05

/* The length bucket of a context. */
int64_t fl_policy_bucket(int64_t ctx_tokens);

/* FL_ERR_INVALID: no such policy or key, or a value out of range (detail says what is known). NULL or "" is full. */
fl_err fl_policy_parse(const char *text, int64_t ctx_tokens, fl_policy *out);

enum { FL_POLICY_TEXT_BYTES = 160 };

/* The policy with all its numbers, as fl_policy_parse reads it: equal texts attend the same. */
void fl_policy_write(const fl_policy *policy, char text[FL_POLICY_TEXT_BYTES]);

static inline bool fl_policy_is_blocks(const fl_policy *p) {
    return p->kind == FL_POLICY_BLOCKS || p->kind == FL_POLICY_RANDOM_BLOCKS;
}

/* Document rows come in whole tiles of this many rows, so that no row's keys depend on where a document ends. */
static inline int32_t fl_policy_tile_rows(const fl_policy *p) {
    return fl_policy_is_blocks(p) ? FL_ATTN_LIST_ROWS : FL_KV_PAGE_TOKENS;
}

/* The ranges of a policy, and the sizes of its blocks; what is by layer and head is not set here. */
fl_attend fl_policy_attend(const fl_policy *policy);

#endif
