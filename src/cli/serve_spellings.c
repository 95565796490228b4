/* What vLLM and SGLang call the options of `serve`, and which of theirs have no meaning here. */
#include "cli/options.h"

const fl_option_alias fl_serve_aliases[] = {
    {"model-path", "model"},
    {"context-length", "max-model-len"},
    {"ctx", "max-model-len"},
    {"max-running-requests", "max-num-seqs"},
    {"max-num-queued-reqs", "max-queued-requests"},
    {"max-num-queued-tokens", "max-queued-tokens"},
    {"max-num-batched-tokens", "span"},
    {"chunked-prefill-size", "span"},
    {"max-total-tokens", "kv-tokens"},
    {"uvicorn-log-level", "log-level"},
    {"schedule-policy", "scheduling-policy"},
    {NULL, NULL},
};

#define GRANTED(name, why)                                                                                   \
    { name, true, why }
#define REFUSED(name, why)                                                                                   \
    { name, false, why }
#define ONE_GPU "this server runs one worker on one device"
#define MEMORY  "memory is planned from the model and the KV pool; set --kv-tokens"

const fl_option_verdict fl_serve_verdicts[] = {
    GRANTED("enable-metrics", "always on, at /metrics"),
    GRANTED("enable-prefix-caching", "always on, exact"),
    GRANTED("enable-chunked-prefill", "always on"),
    GRANTED("enable-cache-report", "always on, in usage"),
    GRANTED("enable-prompt-tokens-details", "always on, in usage"),
    GRANTED("disable-log-requests", "texts are never logged"),
    REFUSED("gpu-memory-utilization", MEMORY),
    REFUSED("mem-fraction-static", MEMORY),
    REFUSED("tensor-parallel-size", ONE_GPU),
    REFUSED("tp", ONE_GPU),
    REFUSED("tp-size", ONE_GPU),
    REFUSED("pipeline-parallel-size", ONE_GPU),
    REFUSED("pp-size", ONE_GPU),
    REFUSED("data-parallel-size", ONE_GPU),
    REFUSED("dp", ONE_GPU),
    REFUSED("dp-size", ONE_GPU),
    REFUSED("enable-expert-parallel", ONE_GPU),
    REFUSED("ep-size", ONE_GPU),
    REFUSED("disaggregation-mode", ONE_GPU),
    REFUSED("no-enable-prefix-caching", "prefix reuse is exact and part of how documents are kept"),
    REFUSED("disable-radix-cache", "prefix reuse is exact and part of how documents are kept"),
    REFUSED("trust-remote-code", "checkpoints are data; code in them is never run"),
    REFUSED("dtype", "weights are computed as stored; --backend and --kv-cache-dtype choose the rest"),
    REFUSED("quantization", "weights are computed as stored; --backend cuda-w8a8 multiplies in fp8"),
    REFUSED("hf-overrides", "use --rope and --rope-factor for longer contexts"),
    REFUSED("json-model-override-args", "use --rope and --rope-factor for longer contexts"),
    REFUSED("chat-template", "the checkpoint's own template is used"),
    REFUSED("allowed-origins", "other sites' pages get no access; put a proxy in front to give it"),
    REFUSED("ssl-keyfile", "TLS is the business of a proxy in front"),
    REFUSED("ssl-certfile", "TLS is the business of a proxy in front"),
    {NULL, false, NULL},
};
