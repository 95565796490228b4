/* The verbs, in the order help shows them. */
#include "cli/cli.h"

const fl_verb fl_verbs[] = {
    {"run", FL_VERB_RUN, "MODEL [QUESTION]", 1, 2, "answer a question about files",
     "Reads the files, then answers the question. A folder is read as a repository: all its text files in "
     "the order of "
     "their paths, without what .gitignore names, each behind a line with its path. Ctrl-C ends the answer "
     "within one "
     "step and keeps what is there; the exit code is then 130.",
     "run build/models/spark-66m -f report.txt \"What does the report conclude?\"", fl_cmd_run},
    {"chat", FL_VERB_CHAT, "MODEL", 1, 1, "ask turn by turn",
     "Reads one question a line, from the terminal or a pipe, and keeps what it has read: a turn computes "
     "only what is "
     "new. Files given with -f belong to the first question. /quit or the end of input ends it; Ctrl-C ends "
     "the running "
     "answer, or the chat when there is none.",
     "chat build/models/spark-66m -f src/", fl_cmd_chat},
    {"serve", FL_VERB_SERVE, "MODEL", 0, 1, "answer over HTTP, as OpenAI's API does",
     "Listens, loads the model in a process of its own, and serves /v1/chat/completions, /v1/completions, "
     "/v1/models, "
     "/tokenize, /detokenize, /health, /ready, /version and /metrics. A worker that dies is restarted. "
     "SIGTERM lets what "
     "runs come to its end. vLLM's and SGLang's spellings of options are understood. docs/SERVING.md has "
     "more.",
     "serve build/models/spark-66m --max-model-len 32k", fl_cmd_serve},
    {"inspect", FL_VERB_INSPECT, "MODEL", 1, 1, "show what is in a checkpoint",
     "Counts parameters, tensors and number formats, and computes the fingerprint. With --memory also what "
     "running it "
     "needs at a context length, by the same sums the engine reserves its memory with.",
     "inspect build/models/spark-66m --memory --ctx 32k", fl_cmd_inspect},
    {"verify", FL_VERB_VERIFY, "MODEL", 1, 1, "check a checkpoint against its lock",
     "Checks that the checkpoint is whole and all its values finite, then compares weights, tokenizer, "
     "configuration "
     "and engine version with firstlight.lock.json beside it; --write writes that file. Exit code 65: the "
     "checkpoint "
     "is broken; 78: something differs from the lock, or there is none.",
     "verify build/models/spark-66m --write", fl_cmd_verify},
    {"tokenize", FL_VERB_TOKENIZE, "MODEL [TEXT...]", 1, 1 << 20, "text to token ids and back",
     "Writes the ids of the text, of the files, or of standard input. With --decode the operands are ids and "
     "the text "
     "is written.",
     "tokenize build/models/spark-66m \"Hello, world\"", fl_cmd_tokenize},
    {"opcheck", FL_VERB_OPCHECK, "", 0, 0, "check and time every op against its definition",
     "Runs every op of every backend that this CPU has on seeded cases and compares with the reference. Exit "
     "code 1: a "
     "case failed.",
     "opcheck --bench --only matmul", fl_cmd_opcheck},
    {"bench prefill", FL_VERB_BENCH_PREFILL, "[MODEL]", 0, 1, "time the reading of a prompt",
     "Times the first token of prompts of running text, cold each time, and shows beside it what this "
     "machine "
     "could do at "
     "most, measured in the same minute. --synthetic takes the place of MODEL: random weights of a public "
     "model's shape, for times without a download; it says nothing of quality.",
     "bench prefill build/models/spark-66m --tokens 2k,8k", fl_cmd_bench_prefill},
    {"bench decode", FL_VERB_BENCH_DECODE, "[MODEL]", 0, 1, "time the making of tokens",
     "Times tokens made one by one behind a prompt of random tokens, and shows beside it what this memory "
     "could do at "
     "most.",
     "bench decode build/models/spark-66m --depth 8k", fl_cmd_bench_decode},
    {"bench graph", FL_VERB_BENCH_GRAPH, "[MODEL]", 0, 1, "run one step op by op and as a CUDA graph",
     "Runs a step of one shape both ways, compares the logits bit by bit and shows both times. Where a step "
     "cannot be recorded it says which op failed. Steps of prompts are filled up with rows that nobody "
     "reads; where "
     "products depend on the number of rows, as cuBLASLt's do, that may change bits, which is shown. Exit "
     "code 1: the "
     "logits of both ways differ, or nothing was recorded.",
     "bench graph build/models/spark-66m --shape 4:8k", fl_cmd_bench_graph},
    {"bench kernels", FL_VERB_BENCH_KERNELS, "", 0, 0, "time single ops at the sizes of models",
     "Times attention, matrix products and the passes over rows on random data, at the sizes that "
     "DeepSeek-V3 and Moonlight give them on a GPU and at small ones on a CPU, and shows beside it what the "
     "machine could do at most, measured in the same minute. Needs 24 GiB of GPU memory, no model.",
     "bench kernels --backend cuda --only prefill", fl_cmd_bench_kernels},
    {"bench ladder", FL_VERB_BENCH_LADDER, "[MODEL]", 0, 1, "time the first token stage by stage",
     "Starts from full attention with KV in bf16 and switches on one thing at a time: smaller KV, sparse "
     "attention, other positions where the length needs them, scheduling, prefix reuse. Every row idle and "
     "beside decode streams, with what was predicted and what answers lose against row 1, from an evaluation "
     "at "
     "the same length. What this machine or model cannot run is no row.",
     "bench ladder build/models/spark-66m --tokens 8k --also blocks --eval-n 2", fl_cmd_bench_ladder},
    {"bench frontier", FL_VERB_BENCH_FRONTIER, "[MODEL]", 0, 1, "time growing contexts",
     "Times the reading of prompts and the making of tokens behind them at growing lengths, as a table, CSV "
     "and a "
     "plot, so that one sees how cost grows.",
     "bench frontier build/models/spark-66m --tokens 1k,2k,4k,8k --svg frontier.svg", fl_cmd_bench_frontier},
    {"bench serve", FL_VERB_BENCH_SERVE, "", 0, 0, "put a load on a running server and time its answers",
     "Sends streamed chat requests to --url as a crowd of clients would, and shows by class of request when "
     "first "
     "tokens "
     "came, the gaps between tokens, what was refused, how many answers came within their limit, and how "
     "steady the "
     "server "
     "was. With --rate requests are timed from when they were due, so that a server that stalls cannot hide "
     "it.",
     "bench serve --url http://127.0.0.1:8000 --rate 2 --duration 120", fl_cmd_bench_serve},
    {"eval", FL_VERB_EVAL, "MODEL", 1, 1, "measure what a policy or KV format costs in quality",
     "Asks the same questions of a baseline and of each variant, about documents it makes itself, and shows "
     "score, "
     "loss, difference in log-probability and KL by task, length, depth and distance, with intervals and "
     "tests. "
     "--policy, --kv-cache-dtype, --tail, --rope and --rope-factor together name one variant; --variant "
     "names more. "
     "Without any, the baseline is measured alone. Formats and policies that exist as bad examples are known "
     "here "
     "only.",
     "eval build/models/spark-66m --lengths 4k --n 10 --policy window-anchors", fl_cmd_eval},
    {"calibrate", FL_VERB_CALIBRATE, "MODEL", 1, 1, "find the numbers of sparse attention for a checkpoint",
     "Measures on documents it makes itself, and on yours, how much attention block lists keep by layer and "
     "head, and "
     "what answers lose; chooses alpha, block, bias and dense heads of --policy blocks for --max-loss, "
     "outlier "
     "dimensions of int4 KV, and with --rope the temperature; writes calibration.json beside the checkpoint.",
     "calibrate build/models/spark-66m --length 4k --n 4", fl_cmd_calibrate},
    {"plan", FL_VERB_PLAN, "[MODEL]", 0, 1, "do the sums before a model, a machine and a target meet",
     "Says what weights, KV and steps need on each GPU, what a prompt costs in FLOPs, bytes and "
     "communication, how soon "
     "its first token can come at best, and if that is not possible the smallest changes that make it so. "
     "All from the "
     "engine's own forward pass on a backend that only counts; times are projections by data sheets.",
     "plan --shape deepseek-v3 --gpus 8xH20 --context 512k --kv int4 --ttft 2.6s", fl_cmd_plan},
    {"version", FL_VERB_VERSION, "", 0, 0, "show version, build and backends",
     "Shows the version, how it was built, and the backends that this CPU can run.", "version --json",
     fl_cmd_version},
    {"help", FL_VERB_HELP, "[VERB]", 0, 2, "show this, or the options of a verb",
     "Shows the verbs, or the options of one.", "help run", fl_cmd_help},
    {0},
};
