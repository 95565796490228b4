/* The options of every verb, in one table: it feeds parsing, help, the man page, shell completion and the names of
 * environment variables. Nothing else in firstlight reads the environment. The command line wins over the environment,
 * the environment over the default. */
#ifndef FL_CLI_OPTIONS_H
#define FL_CLI_OPTIONS_H

#include "base/err.h"

#include <stddef.h>

/* Texts in the order they were given; the texts are borrowed from argv. */
typedef struct fl_text_list {
    const char **items; /* [n] */
    int32_t n;
} fl_text_list;

/* What a command line says, defaults filled in. Members that a verb does not have keep their defaults. */
typedef struct fl_options {
    fl_text_list operands; /* MODEL first, where the verb has one */
    fl_text_list files;
    fl_text_list stops;
    int64_t max_tokens;
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k;
    int64_t seed;
    int64_t ctx;  /* 0 = chosen by the verb */
    int64_t span; /* 0 = the engine's choice */
    int64_t threads;
    const char *backend;
    int64_t device;
    bool deterministic, enforce_eager;
    const char *kv_cache_dtype;
    const char *kv_disk; /* NULL = none */
    int64_t kv_disk_bytes;
    const char *policy;
    const char *tail;
    const char *rope;
    double rope_factor;      /* 0 = none */
    const char *calibration; /* NULL = the checkpoint's own */
    bool force_positions;
    const char *trace; /* NULL = none */
    bool json, progress, quiet, help;
    bool memory;
    bool write;
    bool decode, special;
    bool quick, bench;
    int64_t repeat;
    const char *only, *only_kernels;
    const char *check_backend; /* NULL = all */
    const char *kernel_backend;
    const char *shape;  /* of a decode step: ROWS[:POS] */
    const char *tokens; /* list of sizes, separated by commas */
    int64_t depth, new_tokens, runs;
    fl_text_list also;        /* more policies */
    const char *synthetic;    /* a shape in place of MODEL; NULL = none */
    const char *density;      /* of block lists, as a share or percent; NULL = as scores say */
    const char *density_from; /* file; NULL = all layers and heads alike */
    double skew;              /* of a synthetic router */
    bool predict, measure;
    const char *rates; /* file; NULL = none */
    int64_t ladder_tokens, streams, stream_tokens, eval_n;
    const char *ladder_policy, *eval_tasks, *loss, *peer; /* the last two NULL = none */
    const char *contexts;                                 /* list of sizes */
    int64_t frontier_tokens;
    const char *csv, *svg; /* files; NULL = none */
    bool man;
    const char *completion;      /* NULL = none */
    const char *tasks, *lengths; /* lists, separated by commas */
    int64_t n_documents, n_segments;
    double difficulty;
    const char *documents; /* NULL = the bundled text */
    const char *compare;   /* the baseline, as eval/eval_variant.h reads it */
    fl_text_list variants; /* of the same kind */
    const char *eval_policy, *eval_kv, *eval_tail, *eval_rope; /* one more variant; NULL = not said */
    double eval_rope_factor;                                   /* 0 = not said */
    const char *resume, *heat_map;                             /* files; NULL = none */
    int64_t length, calibrate_n, heads_max;
    double max_loss;
    const char *calibrate_documents, *output; /* NULL = none, beside the checkpoint */
    const char *url, *load_key, *mix;         /* of a load; the last two NULL = none */
    double rate, duration, wait;              /* requests a second, 0 = closed loop; seconds */
    int64_t concurrency;
    const char *plan_shape, *gpus, *ttft, *layout, *html; /* NULL = none, not said */
    const char *weights, *plan_kv, *attention;
    int64_t context, cached, question, prefill_gpus, decode_gpus;
    double efficiency;
    const char *host, *model, *key_file, *log_format, *log_level, *notify_socket; /* of a server */
    fl_text_list names, keys, hosts;
    int64_t port, serve_ctx, kv_tokens, seqs_max, queued_max, queued_tokens_max, body_bytes_max,
        connections_max;
    int64_t default_tokens, request_threads;
    const char *scheduling_policy;
    double wait_max, comment_interval, drain_max, decode_stall_max, step_max;
} fl_options;

/* Bits of fl_option.verbs. */
enum {
    FL_VERB_RUN = 1 << 0,
    FL_VERB_CHAT = 1 << 1,
    FL_VERB_INSPECT = 1 << 2,
    FL_VERB_VERIFY = 1 << 3,
    FL_VERB_TOKENIZE = 1 << 4,
    FL_VERB_OPCHECK = 1 << 5,
    FL_VERB_BENCH_PREFILL = 1 << 6,
    FL_VERB_BENCH_DECODE = 1 << 7,
    FL_VERB_VERSION = 1 << 8,
    FL_VERB_HELP = 1 << 9,
    FL_VERB_EVAL = 1 << 10,
    FL_VERB_CALIBRATE = 1 << 11,
    FL_VERB_BENCH_KERNELS = 1 << 12,
    FL_VERB_BENCH_GRAPH = 1 << 13,
    FL_VERB_PLAN = 1 << 14,
    FL_VERB_BENCH_LADDER = 1 << 15,
    FL_VERB_BENCH_FRONTIER = 1 << 16,
    FL_VERB_SERVE = 1 << 18,
    FL_VERB_BENCH_SERVE = 1 << 19,
    FL_VERB_ALL = 0x7fffffff,
};

typedef struct fl_verb {
    const char *name;     /* "run", "bench prefill" */
    uint32_t bit;         /* one of the above */
    const char *operands; /* as shown in help: "MODEL [QUESTION]" */
    int32_t operands_min, operands_max;
    const char *summary; /* a few words, no full stop */
    const char *about;   /* sentences */
    const char *example; /* arguments after "firstlight " */
    /* Returns the process exit code, or reports through fl_cli_fail. */
    int (*run)(const fl_options *options);
} fl_verb;

/* All verbs, in the order help shows them; the entry after the last has no name. */
extern const fl_verb fl_verbs[];

typedef enum fl_option_type {
    FL_OPTION_FLAG,   /* bool; no value on the command line, 0 or 1 in the environment */
    FL_OPTION_SIZE,   /* int64_t; 4096, 4k, 2m, 1g (k = 1024) */
    FL_OPTION_REAL,   /* double */
    FL_OPTION_TEXT,   /* const char * */
    FL_OPTION_CHOICE, /* const char *, one of `choices` */
    FL_OPTION_LIST,   /* fl_text_list; may be repeated */
} fl_option_type;

typedef struct fl_option {
    const char *key;  /* member of fl_options */
    const char *name; /* long name, without dashes */
    char letter;      /* short name, 0 = none */
    fl_option_type type;
    size_t offset;           /* of the member */
    const char *environment; /* NULL = none */
    const char *fallback;    /* the default as a user would write it; NULL = off, none */
    double min, max;         /* SIZE and REAL */
    const char *value;       /* how help calls the value: "N", "FILE" */
    const char *choices;     /* "a|b|c"; CHOICE only */
    uint32_t verbs;
    const char *help; /* a phrase, no full stop */
} fl_option;

/* The table; the entry after the last has no name. */
extern const fl_option fl_option_table[];

/* Other servers' spellings of `serve`'s options. */
typedef struct fl_option_alias {
    const char *spelling, *name; /* without dashes; the table's name */
} fl_option_alias;
extern const fl_option_alias fl_serve_aliases[]; /* ends with a NULL spelling */

/* Options of theirs that have no counterpart: either what they ask for is so anyway, or it cannot be had. */
typedef struct fl_option_verdict {
    const char *spelling;
    bool granted;    /* read without a value and passed over; else refused */
    const char *why; /* shown with a refusal */
} fl_option_verdict;
extern const fl_option_verdict fl_serve_verdicts[]; /* ends with a NULL spelling */

/* Reads the arguments behind the verb. On success the caller closes *out. FL_ERR_INVALID: detail says what was wrong,
 * what was expected, and what to do. */
fl_err fl_options_parse(const fl_verb *verb, int argc, char **argv, fl_options *out);
void fl_options_close(fl_options *options);

/* 4096, 4k, 512k, 2m, 1g, k = 1024. FL_ERR_INVALID names `what`. */
fl_err fl_size_parse(const char *text, const char *what, int64_t *out);

/* Whether the verb has two words of which this is the first, as "bench" of "bench prefill". */
bool fl_verb_is_of(const fl_verb *verb, const char *first);

/* The verb of argv[1] (and argv[2]); *n_words is how many arguments name it. FL_ERR_INVALID: there is none of that
 * name. */
fl_err fl_verb_find(int argc, char **argv, const fl_verb **out, int *n_words);

#endif
