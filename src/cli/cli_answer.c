#include "cli/cli_answer.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/trace.h"
#include "cli/format.h"

/* The request that Ctrl-C cancels; a signal handler has no other way to it. */
static _Atomic(fl_request *) running;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    fl_request *request = atomic_load(&running);
    if (request) fl_cancel(request);
}

/* One shot: after it Ctrl-C is what it was before, by default the end of the process. */
static void catch_interrupt(fl_request *request) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    atomic_store(&running, request);
    sigaction(SIGINT, &action, NULL);
}

static void release_interrupt(void) {
    signal(SIGINT, SIG_DFL);
    atomic_store(&running, NULL);
}

void fl_ask_engine(const fl_options *options, fl_settings *out) {
    fl_settings_default(out);
    out->model_path = options->operands.n > 0 ? options->operands.items[0] : NULL;
    out->backend = options->backend;
    out->device = (int32_t)options->device;
    out->deterministic = options->deterministic;
    out->n_threads = (int32_t)options->threads;
    out->span_tokens = (int32_t)options->span;
    out->kv_disk = options->kv_disk;
    out->kv_disk_bytes = options->kv_disk_bytes;
}

/* "0.125" or "12.5%" to a share. */
static fl_err parse_density(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    bool percent = *end == '%';
    if (percent) *out /= 100;
    if (end == text || end[percent] != '\0' || !(*out > 0 && *out <= 1))
        return FL_FAIL(FL_ERR_INVALID, "--density: expected a share such as 0.1 or 10%%, found '%s'", text);
    return FL_ERR_OK;
}

fl_err fl_ask_settings(const fl_options *options, int64_t ctx_tokens, fl_settings *out) {
    static const char control[] = "random-blocks";
    fl_ask_engine(options, out);
    if (strncmp(options->policy, control, sizeof control - 1) == 0)
        return FL_FAIL(FL_ERR_INVALID, "--policy %s: it is the control of `firstlight eval`", control);
    out->kv_dtype = options->kv_cache_dtype;
    out->policy = options->policy;
    out->tail = options->tail;
    out->rope = options->rope;
    out->rope_factor = options->rope_factor;
    out->force_positions = options->force_positions;
    out->calibration = options->calibration;
    out->enforce_eager = options->enforce_eager;
    out->kv_tokens = options->kv_tokens;
    out->max_decode_stall_s = options->decode_stall_max;
    out->trace_events = options->trace ? FL_TRACE_EVENTS_DEFAULT : 0;
    out->synthetic = options->synthetic;
    out->synthetic_seed = (uint64_t)options->seed;
    out->router_skew = options->skew;
    if (options->density) FL_TRY(parse_density(options->density, &out->block_density));
    out->block_density_from = options->density_from;
    if (strncmp(options->policy, "blocks", 6) != 0) { /* --also may be blocks */
        out->block_density = 0;
        out->block_density_from = NULL;
    }
    out->ctx_tokens = options->ctx > 0 ? options->ctx : ctx_tokens;
    return FL_ERR_OK;
}

fl_err fl_ask_open(const fl_options *options, int64_t ctx_tokens, fl_progress *progress, fl_engine **out) {
    fl_settings settings;
    FL_TRY(fl_ask_settings(options, ctx_tokens, &settings));
    settings.progress = fl_progress_bytes;
    settings.progress_context = progress;
    fl_progress_begin(progress, "loading");
    fl_err err = fl_engine_open(&settings, out);
    fl_progress_clear(progress);
    return err;
}

void fl_ask_params(const fl_options *options, fl_request_params *out) {
    fl_request_params_default(out);
    out->max_tokens = options->max_tokens;
    out->sampling = (fl_sampling){.temperature = (float)options->temperature,
                                  .top_k = (int32_t)options->top_k,
                                  .top_p = (float)options->top_p,
                                  .min_p = (float)options->min_p,
                                  .repetition_penalty = (float)options->repetition_penalty,
                                  .seed = (uint64_t)options->seed};
    out->stops = options->stops.items;
    out->n_stops = options->stops.n;
}

static fl_err take_text(fl_answer *answer, const fl_event *event, bool stream) {
    if (event->text_bytes == 0) return FL_ERR_OK;
    char *text = realloc(answer->text, answer->n_bytes + event->text_bytes + 1);
    if (!text) return FL_FAIL(FL_ERR_NOMEM, "answer of %zu bytes", answer->n_bytes + event->text_bytes);
    memcpy(text + answer->n_bytes, event->text, event->text_bytes);
    answer->text = text;
    answer->n_bytes += event->text_bytes;
    text[answer->n_bytes] = '\0';
    if (stream) {
        fwrite(event->text, 1, event->text_bytes, stdout);
        fflush(stdout); /* an error stays in the stream and ends the program at its end */
    }
    return FL_ERR_OK;
}

/* The rate is that of the whole prompt, as far as its predicted cost tells: the second half of a prompt costs more. */
static void show_prefill(fl_progress *progress, const fl_event *event) {
    char note[128];
    int64_t computed = event->prompt_tokens - event->cached_tokens;
    int n = snprintf(note, sizeof note, "%s tokens", fl_format_count(event->prompt_tokens).s);
    if (event->cached_tokens > 0)
        n += snprintf(note + n, sizeof note - (size_t)n, ", %s cached",
                      fl_format_count(event->cached_tokens).s);
    if (event->done_fraction > FL_PROGRESS_TELLING && event->elapsed_s > 0)
        snprintf(note + n, sizeof note - (size_t)n, ", %s tokens/s",
                 fl_format_rate((double)computed * event->done_fraction / event->elapsed_s).s);
    fl_progress_show(progress, event->done_fraction, note);
}

static fl_err follow(const fl_ask *ask, fl_request *request, fl_answer *out) {
    fl_event event;
    double first_s = 0, last_s = 0;
    do {
        FL_TRY(fl_poll(request, 0.1, &event));
        if (event.type == FL_EVENT_TOKEN || event.type == FL_EVENT_DONE) {
            fl_progress_clear(ask->progress);
            FL_TRY(take_text(out, &event, ask->stream));
        } else if (event.answer_tokens == 0) {
            show_prefill(ask->progress, &event);
        }
        if (event.type == FL_EVENT_TOKEN) {
            last_s = event.elapsed_s;
            if (event.answer_tokens == 1) first_s = event.ttft_s;
        }
    } while (event.type != FL_EVENT_DONE);
    out->finish = event.finish;
    out->prompt_tokens = event.prompt_tokens;
    out->cached_tokens = event.cached_tokens;
    out->answer_tokens = event.answer_tokens;
    out->ttft_s = event.ttft_s;
    out->total_s = event.elapsed_s;
    if (out->answer_tokens > 1 && last_s > first_s)
        out->decode_tokens_per_s = (double)(out->answer_tokens - 1) / (last_s - first_s);
    int32_t n = fl_request_timeline(request, out->marks, FL_ANSWER_MARKS_MAX);
    out->n_marks = n < FL_ANSWER_MARKS_MAX ? n : FL_ANSWER_MARKS_MAX;
    if (event.finish == FL_FINISH_ERROR) return FL_FAIL(event.err, "%s", event.err_detail);
    return FL_ERR_OK;
}

fl_err fl_ask_run(const fl_ask *ask, fl_answer *out) {
    fl_request *request = NULL;
    memset(out, 0, sizeof *out);
    FL_TRY(fl_submit(ask->session, ask->params, &request));
    catch_interrupt(request);
    fl_progress_begin(ask->progress, "reading");
    fl_err err = follow(ask, request, out);
    release_interrupt();
    fl_progress_clear(ask->progress);
    fl_request_close(request);
    if (err != FL_ERR_OK) fl_answer_close(out);
    return err;
}

void fl_answer_close(fl_answer *answer) {
    free(answer->text);
    *answer = (fl_answer){0};
}

/* The value of a line "NAME:   123 kB", or `otherwise` when it is another line. */
static int64_t status_bytes(const char *line, const char *name, int64_t otherwise) {
    size_t n = strlen(name);
    return strncmp(line, name, n) == 0 ? (int64_t)strtoll(line + n, NULL, 10) * 1024 : otherwise;
}

fl_memory_use fl_memory_now(void) {
    fl_memory_use use = {0};
    char line[256];
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file)) {
        use.peak_bytes = status_bytes(line, "VmHWM:", use.peak_bytes);
        use.anonymous_bytes = status_bytes(line, "RssAnon:", use.anonymous_bytes);
    }
    if (file) fclose(file);
    return use;
}
