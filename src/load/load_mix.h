/* What a load is made of: classes of requests with their shares, lengths and limits, from a JSON file:
 *   {"classes": [{"name": "short", "share": 0.97, "prompt_tokens": [128, 512], "answer_tokens": [16, 64],
 *                 "ttft_limit_s": 5, "shared_tokens": 0, "priority": 0}, ...]} */
#ifndef FL_LOAD_LOAD_MIX_H
#define FL_LOAD_LOAD_MIX_H

#include "base/err.h"

enum { FL_LOAD_CLASSES_MAX = 16, FL_LOAD_NAME_BYTES = 32 };

typedef struct fl_load_class {
    char name[FL_LOAD_NAME_BYTES];
    double share;                   /* of the requests; all together 1; kept exactly, in random order */
    int64_t prompt_min, prompt_max; /* tokens, both included, each length as likely */
    int64_t answer_min, answer_max; /* alike */
    double ttft_limit_s;            /* later first tokens are no goodput; 0 = no limit */
    int64_t shared_tokens;          /* the first so many are the same in all requests of the class */
    int64_t priority;               /* lower is sooner */
} fl_load_class;

typedef struct fl_load_mix {
    fl_load_class classes[FL_LOAD_CLASSES_MAX];
    int32_t n;
} fl_load_mix;

/* path: NULL = questions of 128 to 512 tokens, answers of 32. Shares are scaled to sum to 1. FL_ERR_DATA names the
 * field and what was expected; fields of other names are refused. */
fl_err fl_load_mix_read(const char *path, fl_load_mix *out);

/* The same of a text. */
fl_err fl_load_mix_parse(const char *text, size_t n_bytes, fl_load_mix *out);

#endif
