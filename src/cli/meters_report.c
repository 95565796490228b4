#include "cli/meters_report.h"

#include "cli/format.h"

/* Shares of the time in steps, in the order they are shown. */
typedef struct share {
    const char *name;
    double time_s;
    bool always; /* shown even if it is nothing */
} share;

enum { N_SHARES = 7 };

static void make_shares(const fl_meters *m, share out[N_SHARES]) {
    double known_s = m->attention_s + m->linear_s + m->experts_s + m->kv_s + m->recorded_s + m->comm_s;
    const share all[N_SHARES] = {
        {"attention", m->attention_s, true}, {"linear", m->linear_s, true},
        {"experts", m->experts_s, true},     {"kv", m->kv_s, true},
        {"recorded", m->recorded_s, false},  {"other", m->step_s > known_s ? m->step_s - known_s : 0, true},
        {"communication", m->comm_s, true}};
    for (int32_t i = 0; i < N_SHARES; i++) out[i] = all[i];
}

void fl_meters_print(FILE *file, const fl_meters *m) {
    share shares[N_SHARES];
    char warning[256];
    const char *comma = "";
    if (!(m->step_s > 0)) return;
    make_shares(m, shares);
    fprintf(file, "steps   %s in %s:", fl_format_count(m->steps).s, fl_format_seconds(m->step_s).s);
    for (int32_t i = 0; i < N_SHARES; i++) {
        if (!shares[i].always && shares[i].time_s == 0) continue;
        fprintf(file, "%s %s %.1f%%", comma, shares[i].name, 100 * shares[i].time_s / m->step_s);
        comma = ",";
    }
    fprintf(file, "\nmemory  %s at most, of the %s planned\n", fl_format_bytes(m->peak_bytes).s,
            fl_format_bytes(m->planned_bytes).s);
    if (fl_meters_warning(m, 1, warning, sizeof warning)) fprintf(file, "warning: %s\n", warning);
}

json_t *fl_meters_json(const fl_meters *m) {
    share shares[N_SHARES];
    char warning[256];
    make_shares(m, shares);
    json_t *out = json_pack("{s:I, s:I, s:I, s:f}", "peak_bytes", (json_int_t)m->peak_bytes, "planned_bytes",
                            (json_int_t)m->planned_bytes, "steps", (json_int_t)m->steps, "step_s", m->step_s);
    for (int32_t i = 0; out && i < N_SHARES; i++)
        json_object_set_new(out, shares[i].name, json_real(m->step_s > 0 ? shares[i].time_s / m->step_s : 0));
    if (out && fl_meters_warning(m, 1, warning, sizeof warning))
        json_object_set_new(out, "warning", json_string(warning));
    return out;
}

fl_err fl_cli_write_trace(const fl_options *options, fl_engine *engine) {
    int64_t n_lost = 0;
    if (!options->trace) return FL_ERR_OK;
    fl_engine_trace_stop(engine);
    FL_TRY(fl_engine_trace_write(engine, options->trace, &n_lost));
    if (n_lost > 0)
        fprintf(stderr, "trace   the newest events only: %s older ones did not fit\n",
                fl_format_count(n_lost).s);
    return FL_ERR_OK;
}
