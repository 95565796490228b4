/* The one table of options. Columns as in fl_option. */
#include "cli/options.h"

#define ASKING  (FL_VERB_RUN | FL_VERB_CHAT)
#define BENCHES (FL_VERB_BENCH_PREFILL | FL_VERB_BENCH_DECODE | FL_VERB_BENCH_GRAPH | FL_VERB_BENCH_FRONTIER)
#define LADDER  FL_VERB_BENCH_LADDER
#define ENGINE  (ASKING | BENCHES | LADDER | FL_VERB_EVAL | FL_VERB_CALIBRATE)
#define RUNNING (ASKING | BENCHES | FL_VERB_INSPECT)
#define PATTERN (RUNNING | FL_VERB_PLAN | FL_VERB_SERVE)
#define RATED   (FL_VERB_BENCH_PREFILL | LADDER | FL_VERB_PLAN)

#define FLAG(name, letter, key, env, verbs, help)                                                            \
    {                                                                                                        \
#key, name, letter, FL_OPTION_FLAG, offsetof(fl_options, key), env, NULL, 0, 0, NULL, NULL, verbs,   \
            help                                                                                             \
    }
#define SIZE(name, key, env, fallback, min, max, verbs, help)                                                \
    {                                                                                                        \
#key, name, 0, FL_OPTION_SIZE, offsetof(fl_options, key), env, fallback, min, max, "N", NULL, verbs, \
            help                                                                                             \
    }
#define REAL(name, key, env, fallback, min, max, verbs, help)                                                \
    {                                                                                                        \
#key, name, 0, FL_OPTION_REAL, offsetof(fl_options, key), env, fallback, min, max, "X", NULL, verbs, \
            help                                                                                             \
    }
#define TEXT(name, key, env, fallback, value, verbs, help)                                                   \
    {                                                                                                        \
#key, name, 0, FL_OPTION_TEXT, offsetof(fl_options, key), env, fallback, 0, 0, value, NULL, verbs,   \
            help                                                                                             \
    }
#define CHOICE(name, key, env, fallback, choices, verbs, help)                                               \
    {                                                                                                        \
#key, name, 0, FL_OPTION_CHOICE, offsetof(fl_options, key), env, fallback, 0, 0, "NAME", choices,    \
            verbs, help                                                                                      \
    }
#define LIST(name, letter, key, value, verbs, help)                                                          \
    {                                                                                                        \
#key, name, letter, FL_OPTION_LIST, offsetof(fl_options, key), NULL, NULL, 0, 0, value, NULL, verbs, \
            help                                                                                             \
    }

const fl_option fl_option_table[] = {
    LIST("file", 'f', files, "PATH", ASKING | FL_VERB_TOKENIZE,
         "text to read: a file, '-' for standard input, or (run, chat) a folder, read as a repository; "
         "repeatable"),
    SIZE("max-tokens", max_tokens, "FL_MAX_TOKENS", "256", 1, 1 << 24, ASKING, "longest answer, in tokens"),
    REAL("temperature", temperature, "FL_TEMPERATURE", "0", 0, 100, ASKING,
         "0 takes the likeliest token each time; higher is more random"),
    SIZE("top-k", top_k, "FL_TOP_K", "0", 0, 1 << 24, ASKING,
         "draw from the K likeliest tokens only; 0 = all"),
    REAL("top-p", top_p, "FL_TOP_P", "1", 1e-6, 1, ASKING,
         "draw from the likeliest tokens that together have this probability"),
    REAL("min-p", min_p, "FL_MIN_P", "0", 0, 0.999999, ASKING,
         "draw from tokens with at least this share of the likeliest one's probability"),
    REAL("repetition-penalty", repetition_penalty, "FL_REPETITION_PENALTY", "1", 0.01, 100, ASKING,
         "above 1 makes tokens already seen less likely"),
    SIZE("seed", seed, "FL_SEED", "0", 0, 9223372036854775807.0,
         ENGINE | FL_VERB_OPCHECK | FL_VERB_BENCH_KERNELS | FL_VERB_BENCH_SERVE,
         "of everything random; the same seed gives the same result"),
    LIST("stop", 0, stops, "TEXT", ASKING, "end the answer before this text; repeatable, at most 16"),
    SIZE("ctx", ctx, "FL_CTX", "0", 0, 1 << 24, ASKING | FL_VERB_INSPECT,
         "context length to reserve memory for, in tokens; 0 = what the input needs (chat, inspect: the "
         "model's own)"),
    SIZE("threads", threads, "FL_THREADS", "0", 0, 1024, FL_VERB_SERVE | ENGINE | FL_VERB_BENCH_KERNELS,
         "worker threads; 0 = one for each CPU"),
    CHOICE("backend", backend, "FL_BACKEND", "auto",
           "auto|cuda|cuda-w8a8|avx512|avx2|reference|reference-w8a8",
           FL_VERB_SERVE | ENGINE | FL_VERB_INSPECT, "what computes; auto = the fastest this machine has"),
    CHOICE("backend", check_backend, NULL, NULL,
           "cuda|cuda-deterministic|cuda-w8a8|cuda-w8a8-deterministic|avx512|avx2|reference|reference-w8a8",
           FL_VERB_OPCHECK, "check this one only; without it, all that this machine can run"),
    TEXT("backend", kernel_backend, NULL, "auto", "NAME", FL_VERB_BENCH_KERNELS,
         "what computes, by a name that `version` lists; cuda:1 is the second GPU"),
    SIZE("device", device, "FL_DEVICE", "0", 0, 1023, FL_VERB_SERVE | ENGINE,
         "which GPU, with --backend cuda"),
    FLAG("deterministic", 0, deterministic, "FL_DETERMINISTIC", FL_VERB_SERVE | ENGINE,
         "the same bits whatever shares a step with a prompt; CPUs always do so"),
    FLAG("enforce-eager", 0, enforce_eager, "FL_ENFORCE_EAGER", (FL_VERB_SERVE | ENGINE) & ~(uint32_t)LADDER,
         "issue a GPU's short steps op by op, not as CUDA graphs"),
    SIZE("span", span, "FL_SPAN", "0", 0, 1 << 20, FL_VERB_SERVE | ENGINE | FL_VERB_INSPECT | FL_VERB_PLAN,
         "most prompt tokens computed in one step, a multiple of 64; 0 = the engine's choice"),
    CHOICE(
        "kv-cache-dtype", kv_cache_dtype, "FL_KV_CACHE_DTYPE", "auto", "auto|bf16|f32|fp8|int4",
        RUNNING | FL_VERB_SERVE,
        "number format of the KV cache: bf16, or smaller with fp8 (about 60%) and int4 (36-45%); f32 on the "
        "reference "
        "backend only"),
    TEXT("policy", policy, "FL_POLICY", "full", "NAME[:KEY=VALUE,...]", PATTERN,
         "what document tokens attend: full, window, window-anchors, segments:N or blocks; settings as in "
         "blocks:alpha=0.05,window=1k"),
    TEXT("kv-disk", kv_disk, "FL_KV_DISK", NULL, "FOLDER", ASKING | FL_VERB_SERVE,
         "keep the KV of documents there, so that a later start need not read them again"),
    SIZE("kv-disk-bytes", kv_disk_bytes, "FL_KV_DISK_BYTES", "16g", 1, 9e18, ASKING | FL_VERB_SERVE,
         "most bytes in --kv-disk for a model and its settings; what was unused longest goes first"),
    CHOICE("tail", tail, "FL_TAIL", "dense", "dense|sparse", PATTERN,
           "what question and answer attend: everything, or what the document's policy says (loses facts)"),
    CHOICE("rope", rope, "FL_ROPE", "model", "model|yarn|ntk|two-path", PATTERN | LADDER | FL_VERB_CALIBRATE,
           "positions beyond the trained length; model = as the checkpoint says"),
    REAL("rope-factor", rope_factor, "FL_ROPE_FACTOR", "0", 0, 64, PATTERN | LADDER | FL_VERB_CALIBRATE,
         "how many times the trained length, with --rope"),
    FLAG("force-positions", 0, force_positions, "FL_FORCE_POSITIONS", PATTERN | LADDER,
         "run past the trained length without an extension, with a warning"),
    TEXT("calibration", calibration, "FL_CALIBRATION", NULL, "FILE", PATTERN | LADDER,
         "what `calibrate` wrote; without it, calibration.json beside the checkpoint"),
    TEXT("trace", trace, NULL, NULL, "FILE", ASKING | FL_VERB_BENCH_PREFILL | FL_VERB_BENCH_DECODE,
         "write what each thread and GPU queue did when as Chrome trace JSON, for ui.perfetto.dev; bench "
         "prefill "
         "also measures what tracing costs"),
    TEXT("tasks", tasks, NULL, "spark", "NAME[,...]", FL_VERB_EVAL,
         "tasks or families of tasks to ask; NAME* = families that begin so"),
    TEXT("lengths", lengths, NULL, "4k", "N[,N...]", FL_VERB_EVAL,
         "document lengths in tokens, with question and answer; sides are configured for the longest"),
    SIZE("n", n_documents, NULL, "20", 1, 1 << 20, FL_VERB_EVAL,
         "documents for each task or family and length"),
    REAL("difficulty", difficulty, NULL, "0.5", 0, 1, FL_VERB_EVAL,
         "0.5 is a task's own definition; more hides better"),
    SIZE("segments", n_segments, NULL, "4", 1, 65536, FL_VERB_EVAL,
         "segments of a document, to tell how far apart its facts are"),
    TEXT("documents", documents, NULL, NULL, "PATH", FL_VERB_EVAL,
         "a text or a folder of texts to hide the facts in; without it, the bundled books"),
    TEXT("compare", compare, NULL, "full", "SPEC", FL_VERB_EVAL, "the baseline, written like a variant"),
    LIST("variant", 0, variants, "SPEC", FL_VERB_EVAL,
         "what is compared with it: words such as policy=blocks kv=int4 tail=sparse rope=two-path "
         "rope-factor=4 "
         "calibration=FILE force-positions=1 backend=cuda-w8a8; repeatable"),
    TEXT("policy", eval_policy, NULL, NULL, "NAME", FL_VERB_EVAL, "a variant with this policy"),
    TEXT("kv-cache-dtype", eval_kv, NULL, NULL, "NAME", FL_VERB_EVAL, "a variant with this KV format"),
    TEXT("tail", eval_tail, NULL, NULL, "NAME", FL_VERB_EVAL, "a variant with this tail: dense or sparse"),
    TEXT("rope", eval_rope, NULL, NULL, "NAME", FL_VERB_EVAL, "a variant with these positions"),
    REAL("rope-factor", eval_rope_factor, NULL, "0", 0, 1024, FL_VERB_EVAL,
         "a variant for this many times the trained length"),
    TEXT("resume", resume, NULL, NULL, "FILE", FL_VERB_EVAL,
         "keep each document's results there, and go on where an earlier run stopped"),
    TEXT("heat-map", heat_map, NULL, NULL, "FILE", FL_VERB_EVAL, "write scores by depth and length as SVG"),
    SIZE("length", length, NULL, "32k", 1536, 1 << 24, FL_VERB_CALIBRATE,
         "tokens of each document; calibrate for lengths like those that will be read"),
    SIZE("n", calibrate_n, NULL, "8", 1, 65536, FL_VERB_CALIBRATE, "documents to measure on"),
    TEXT("documents", calibrate_documents, NULL, NULL, "PATH", FL_VERB_CALIBRATE,
         "a text or a folder of texts like those that will be read; every other document is made of them"),
    REAL("max-loss", max_loss, NULL, "1", 0.01, 100, FL_VERB_CALIBRATE,
         "points of 100 that answers may lose against full attention"),
    SIZE("heads-max", heads_max, NULL, "64", 0, 1 << 20, FL_VERB_CALIBRATE,
         "heads to measure one by one, those that lose most attention first"),
    TEXT("output", output, NULL, NULL, "FILE", FL_VERB_CALIBRATE,
         "write there; without it, calibration.json beside the checkpoint"),
    TEXT("host", host, "FL_HOST", "127.0.0.1", "ADDRESS", FL_VERB_SERVE,
         "address to listen on; 0.0.0.0 = all of IPv4, then set API keys"),
    SIZE("port", port, "FL_PORT", "8000", 0, 65535, FL_VERB_SERVE,
         "port to listen on; 0 = any free one, which the log tells"),
    TEXT("model", model, NULL, NULL, "MODEL", FL_VERB_SERVE,
         "the checkpoint folder, in place of the operand"),
    LIST("served-model-name", 0, names, "NAME", FL_VERB_SERVE,
         "what requests call the model, the first in answers; repeatable; without it, the folder's name"),
    LIST("api-key", 0, keys, "KEY", FL_VERB_SERVE,
         "a key that every path but /health asks for; repeatable; other users of this machine see it in the "
         "list of "
         "processes, so better --api-key-file"),
    TEXT("api-key-file", key_file, "FL_API_KEY_FILE", NULL, "FILE", FL_VERB_SERVE, "keys, one a line"),
    LIST("allowed-host", 0, hosts, "NAME", FL_VERB_SERVE,
         "a name that requests may call this server by when it listens on loopback without keys; addresses "
         "and "
         "localhost always may; repeatable"),
    SIZE("max-model-len", serve_ctx, "FL_MAX_MODEL_LEN", "0", 0, 1 << 24, FL_VERB_SERVE,
         "context length, prompt and answer, in tokens; 0 = the model's own"),
    SIZE("kv-tokens", kv_tokens, "FL_KV_TOKENS", "0", 0, 1 << 24, FL_VERB_SERVE,
         "size of the KV pool over all requests, in tokens; 0 = one context"),
    SIZE("max-num-seqs", seqs_max, "FL_MAX_NUM_SEQS", "64", 1, 2048, FL_VERB_SERVE,
         "answers the engine works on at once"),
    SIZE("max-queued-requests", queued_max, "FL_MAX_QUEUED_REQUESTS", "192", 0, 2048, FL_VERB_SERVE,
         "answers that may wait beside --max-num-seqs; beyond both, requests are told to come back"),
    SIZE("max-queued-tokens", queued_tokens_max, "FL_MAX_QUEUED_TOKENS", "0", 0, 1099511627776.0,
         FL_VERB_SERVE, "prompt tokens that may wait for their first token; 0 = 16 contexts"),
    REAL("max-wait", wait_max, "FL_MAX_WAIT", "600", 0, 86400, FL_VERB_SERVE,
         "predicted seconds of waiting beyond which a request is told when to come back; 0 = no limit"),
    CHOICE("scheduling-policy", scheduling_policy, "FL_SCHEDULING_POLICY", "bins", "bins|fcfs", FL_VERB_SERVE,
           "who computes next: bins lets short prompts pass long ones, fcfs goes by arrival"),
    REAL("max-decode-stall", decode_stall_max, "FL_MAX_DECODE_STALL", "0", 0, 60, FL_VERB_SERVE,
         "predicted seconds that running answers wait for a step of a prompt; 0 = the engine's choice"),
    REAL("max-step", step_max, "FL_MAX_STEP", "1", 0, 3600, FL_VERB_SERVE,
         "seconds of one step of a prompt, so that a shorter one passes it soon; 0 = no limit while it is "
         "alone"),
    SIZE("default-max-tokens", default_tokens, "FL_DEFAULT_MAX_TOKENS", "4k", 0, 1 << 24, FL_VERB_SERVE,
         "longest answer to a chat that does not say; memory is reserved for it; 0 = all the context"),
    SIZE("max-body-bytes", body_bytes_max, "FL_MAX_BODY_BYTES", "64m", 1024, 1 << 30, FL_VERB_SERVE,
         "longest request body"),
    SIZE("max-connections", connections_max, "FL_MAX_CONNECTIONS", "16k", 16, 1 << 19, FL_VERB_SERVE,
         "connections open at once"),
    SIZE("request-threads", request_threads, "FL_REQUEST_THREADS", "2", 1, 256, FL_VERB_SERVE,
         "threads that read, render and tokenise requests"),
    REAL("sse-ping-interval", comment_interval, "FL_SSE_PING_INTERVAL", "4", 0.1, 3600, FL_VERB_SERVE,
         "seconds after which a silent stream says how far its prompt is read"),
    REAL("drain-timeout", drain_max, "FL_DRAIN_TIMEOUT", "60", 0, 86400, FL_VERB_SERVE,
         "seconds that running answers have after SIGTERM"),
    CHOICE("log-format", log_format, "FL_LOG_FORMAT", "logfmt", "logfmt|json", FL_VERB_SERVE,
           "how lines on standard error are written"),
    CHOICE("log-level", log_level, "FL_LOG_LEVEL", "info", "info|debug", FL_VERB_SERVE,
           "debug also logs requests that need no model"),
    TEXT("notify-socket", notify_socket, "NOTIFY_SOCKET", NULL, "PATH", FL_VERB_SERVE,
         "where a service manager is told of start and end; systemd sets it"),
    FLAG("memory", 0, memory, NULL, FL_VERB_INSPECT, "show what running it at --ctx tokens would need"),
    FLAG("write", 0, write, NULL, FL_VERB_VERIFY, "write the lock file in place of checking it"),
    FLAG("decode", 0, decode, NULL, FL_VERB_TOKENIZE, "token ids to text"),
    FLAG("special", 0, special, NULL, FL_VERB_TOKENIZE,
         "control tokens written in the text count; with --decode they are shown"),
    SIZE("repeat", repeat, NULL, "0", 0, 100000, FL_VERB_OPCHECK,
         "on a GPU: run every op so many times more beside other kernels, and compare all bits"),
    FLAG("quick", 0, quick, NULL, FL_VERB_OPCHECK, "leave the slow cases out"),
    FLAG("bench", 0, bench, NULL, FL_VERB_OPCHECK, "time the ops"),
    TEXT("only", only, NULL, NULL, "OP", FL_VERB_OPCHECK, "this op only"),
    TEXT("only", only_kernels, NULL, NULL, "TEXT[,...]", FL_VERB_BENCH_KERNELS,
         "cases with one of these in their name only"),
    TEXT("tokens", tokens, NULL, "2k", "N[,N...]", FL_VERB_BENCH_PREFILL, "prompt lengths to time"),
    LIST("also", 0, also, "POLICY", FL_VERB_BENCH_PREFILL | LADDER,
         "a policy to time in the same run and compare with --policy; in a ladder one that comes before it; "
         "repeatable"),
    TEXT("synthetic", synthetic, NULL, NULL, "SHAPE[:LAYERS]", BENCHES | LADDER,
         "in place of MODEL, random weights of this shape: moonlight-16b-a3b, moonlight-16b-a3b-fp8, "
         "deepseek-v3, "
         "spark-66m; :4 = its first 4 layers"),
    TEXT("density", density, NULL, NULL, "SHARE", FL_VERB_BENCH_PREFILL | LADDER | FL_VERB_PLAN,
         "with the policy blocks: list this share of visible blocks (0.1 or 10%) whatever they score; random "
         "weights say nothing of it"),
    TEXT("density-from", density_from, NULL, NULL, "FILE", FL_VERB_BENCH_PREFILL | LADDER,
         "with the policy blocks: impose the density that each layer and head had in FILE (of `calibrate`, "
         "or of "
         "`bench prefill --json`), with --density scaled to that mean; another model's layers are taken at "
         "their relative depth, heads at their rank"),
    FLAG("predict", 0, predict, NULL, FL_VERB_BENCH_PREFILL,
         "measure this machine's rates first, and show what the cost model makes of them beside each time"),
    FLAG("measure", 0, measure, NULL, FL_VERB_PLAN,
         "in place of a data sheet, measure what this machine does with the model's own ops; takes seconds "
         "on a "
         "small model"),
    TEXT("rates", rates, NULL, NULL, "FILE", RATED,
         "rates that `plan --measure` writes; benchmarks read them, or measure and write them if there is no "
         "such "
         "file"),
    REAL("skew", skew, NULL, "1", 1, 64, BENCHES | LADDER,
         "with --synthetic: expected load of a hot expert over the mean load; 1 = all alike"),
    SIZE("tokens", ladder_tokens, NULL, "32k", 1024, 1 << 24, LADDER,
         "context of the ladder; its prompts are some tokens shorter, which leaves room for an answer"),
    TEXT("policy", ladder_policy, NULL, "window-anchors", "NAME[:KEY=VALUE,...]", LADDER,
         "the sparse attention that the ladder ends with"),
    SIZE("streams", streams, NULL, "4", 0, 64, LADDER,
         "requests that decode beside the prompt of a loaded row; 0 = no loaded rows"),
    SIZE("stream-tokens", stream_tokens, NULL, "1k", 1, 1 << 24, LADDER, "prompt of each of them"),
    SIZE("eval-n", eval_n, NULL, "0", 0, 65536, LADDER,
         "documents a task for the loss of every row, evaluated in this run"),
    TEXT("tasks", eval_tasks, NULL, "spark", "NAME[,...]", LADDER, "tasks of --eval-n"),
    TEXT("loss", loss, NULL, NULL, "FILE", LADDER,
         "in place of --eval-n, what `eval --json` found for the same variants at the same length"),
    TEXT("peer", peer, NULL, NULL, "FILE", LADDER,
         "FLOP/s of another implementation's kernels on row 1's shapes, by op: where they are faster, row 1 "
         "counts "
         "with theirs"),
    TEXT("tokens", contexts, NULL, "1k,2k,4k,8k,16k,32k", "N[,N...]", FL_VERB_BENCH_FRONTIER,
         "contexts to time"),
    SIZE("answer-tokens", frontier_tokens, NULL, "16", 2, 65536, FL_VERB_BENCH_FRONTIER,
         "tokens to make behind each prompt"),
    TEXT("csv", csv, NULL, NULL, "FILE", FL_VERB_BENCH_FRONTIER, "write the table there"),
    TEXT("svg", svg, NULL, NULL, "FILE", LADDER | FL_VERB_BENCH_FRONTIER, "write the picture there"),
    TEXT(
        "shape", shape, NULL, "1:2k", "SHAPE", FL_VERB_BENCH_GRAPH,
        "ROWS:POS: requests that decode in the step (at most 64) and the position of the last; ROWS@POS: a "
        "question of so many tokens behind so many; DOCUMENT+TAIL@POS: a prompt, all of it or behind so many "
        "tokens; with /ANSWERS:POS behind the last two beside so many answers"),
    SIZE("depth", depth, NULL, "2k", 1, 1 << 24, FL_VERB_BENCH_DECODE, "tokens before the first timed one"),
    SIZE("tokens", new_tokens, NULL, "64", 2, 65536, FL_VERB_BENCH_DECODE, "tokens to make in each run"),
    SIZE("runs", runs, NULL, "3", 1, 1000, BENCHES | LADDER,
         "timed runs, after one to warm up; the median counts"),
    TEXT("url", url, NULL, "http://127.0.0.1:8000", "URL", FL_VERB_BENCH_SERVE, "the server"),
    TEXT("api-key", load_key, "FL_API_KEY", NULL, "KEY", FL_VERB_BENCH_SERVE, "what the server asks for"),
    REAL("rate", rate, NULL, "0", 0, 1e6, FL_VERB_BENCH_SERVE,
         "requests a second, at random times, however slow the answers; 0 = --concurrency clients, each with "
         "its next "
         "request when it has its answer"),
    SIZE("concurrency", concurrency, NULL, "4096", 1, 65536, FL_VERB_BENCH_SERVE,
         "clients without --rate; with it, requests open at a time at most"),
    TEXT("mix", mix, NULL, NULL, "FILE", FL_VERB_BENCH_SERVE,
         "classes of requests as JSON: name, share, prompt_tokens, answer_tokens, ttft_limit_s, "
         "shared_tokens, "
         "priority; without it, short questions"),
    REAL("duration", duration, NULL, "60", 0.1, 1e6, FL_VERB_BENCH_SERVE, "seconds in which requests come"),
    REAL("wait", wait, NULL, "600", 0, 1e6, FL_VERB_BENCH_SERVE, "seconds to wait for answers after that"),
    TEXT("shape", plan_shape, NULL, NULL, "NAME[:LAYERS]", FL_VERB_PLAN,
         "in place of MODEL: moonlight-16b-a3b, moonlight-16b-a3b-fp8, deepseek-v3, spark-66m"),
    TEXT("gpus", gpus, NULL, NULL, "NxNAME", FL_VERB_PLAN,
         "what it runs on, as 8xH20, H200 or EPYC-9654; names without a match list all"),
    SIZE("context", context, NULL, "128k", 1, 1 << 24, FL_VERB_PLAN, "tokens of the prompt"),
    TEXT("ttft", ttft, NULL, NULL, "TIME", FL_VERB_PLAN,
         "when the first token has to be there: 3s, 800ms, 2.6"),
    SIZE("cached", cached, NULL, "0", 0, 1 << 24, FL_VERB_PLAN,
         "tokens at the prompt's start whose KV is there already"),
    SIZE("question", question, NULL, "0", 0, 1 << 24, FL_VERB_PLAN,
         "tokens at the prompt's end that attend everything"),
    CHOICE("kv", plan_kv, NULL, "bf16", "bf16|fp8|int4", FL_VERB_PLAN, "number format of the KV cache"),
    CHOICE("weights", weights, NULL, "auto", "auto|fp8|bf16", FL_VERB_PLAN,
           "number format of the weights; auto = the checkpoint's, if the machine multiplies in it"),
    CHOICE("layout", layout, NULL, NULL, "tp|sp|cp|ep", FL_VERB_PLAN,
           "how the model is cut over several GPUs; without it all are shown and the best one counts"),
    SIZE("prefill-gpus", prefill_gpus, NULL, "0", 0, 4096, FL_VERB_PLAN,
         "cards that prefill while --decode-gpus others decode"),
    SIZE("decode-gpus", decode_gpus, NULL, "0", 0, 4096, FL_VERB_PLAN, "cards that decode alone"),
    CHOICE("attention", attention, NULL, "bf16", "bf16|fp8", FL_VERB_PLAN,
           "what attention multiplies in; firstlight has no kernel for fp8 yet"),
    TEXT("html", html, NULL, NULL, "FILE", FL_VERB_PLAN,
         "write a page with pictures of where time and memory go"),
    REAL("efficiency", efficiency, NULL, "1", 0.01, 1, FL_VERB_PLAN,
         "share of the data sheet's peaks that is reached; 1 gives the floor"),
    FLAG("json", 0, json, NULL, FL_VERB_ALL & ~(uint32_t)(FL_VERB_CHAT | FL_VERB_HELP | FL_VERB_SERVE),
         "one JSON object on standard output"),
    FLAG("progress", 0, progress, "FL_PROGRESS",
         ENGINE | FL_VERB_VERIFY | FL_VERB_INSPECT | FL_VERB_BENCH_SERVE,
         "show progress even if standard error is not a terminal"),
    FLAG("quiet", 'q', quiet, "FL_QUIET", ENGINE | FL_VERB_VERIFY | FL_VERB_INSPECT | FL_VERB_BENCH_SERVE,
         "neither progress nor timeline on standard error"),
    FLAG("man", 0, man, NULL, FL_VERB_HELP, "the man page, as roff"),
    CHOICE("completion", completion, NULL, NULL, "bash|zsh|fish", FL_VERB_HELP,
           "a completion script for this shell"),
    FLAG("help", 'h', help, NULL, FL_VERB_ALL, "this text"),
    {0},
};
