#include "sched/sched_sim.h"

#include <math.h>
#include <stdlib.h>

enum { SPAN = 4096, TILE = 64, ANSWER = 32, LIVE_MAX = 4096, DECODE_MAX = 64, LAYERS = 8 };

/* spark-66m: linear work of a row, attention of a row on a key, a key rebuilt; and how fast. A prompt of 256 tokens
 * takes 22 ms, of 8,192 1.33 s. */
static const double ROW_FLOPS = 4.4e7, PAIR_FLOPS = 20480, KEY_FLOPS = 2.1e6, FLOPS_PER_S = 800e9;
static const double STEP_S = 6e-3, DECODE_S = 1.2e-3, DECODE_ROW_S = 0.25e-3;

typedef struct sim_request {
    fl_sched_item item;
    int32_t n_prompt, pos, n_answer;
    double last_s;
    bool is_long;
} sim_request;

typedef struct sim {
    fl_sched sched;
    fl_step_rate rate;
    const sim_load *load;
    uint64_t random;
    double now_s, answered_s, next_s, long_chance, gap_s;
    sim_request live[LIVE_MAX];
    int32_t n;
    double *first[2], *stalls; /* of short and long ones */
    int32_t n_first[2], first_max, n_stalls, stalls_max;
    double *windows;
    int32_t n_windows;
    double n_tokens;
} sim;

static double draw(sim *s) {
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(s->random >> 11) / 9007199254740992.0;
}

static double step_flops(int32_t pos, int32_t rows) {
    return rows * (ROW_FLOPS + PAIR_FLOPS * (pos + 0.5 * rows)) + KEY_FLOPS * (pos + rows);
}

static double prompt_flops(int32_t pos, int32_t n) {
    double flops = 0;
    for (; pos < n; pos += SPAN) flops += step_flops(pos, n - pos < SPAN ? n - pos : SPAN);
    return flops;
}

static double prefill_s(double flops) {
    return STEP_S + flops / FLOPS_PER_S;
}

/* What a request takes of a machine that is busy enough to decode eight at once. */
static double work_s(int32_t n_prompt) {
    return prefill_s(prompt_flops(0, n_prompt)) + ANSWER * (DECODE_S / 8 + DECODE_ROW_S);
}

static void add(sim *s, bool is_long, int32_t n_prompt, double arrival_s) {
    double cost_s = fl_step_rate_seconds(&s->rate, prompt_flops(0, n_prompt));
    if (s->n == LIVE_MAX) abort();
    s->live[s->n++] = (sim_request){
        .item = {.bin = fl_sched_bin(&s->sched.policy, cost_s), .arrival_s = arrival_s, .cost_s = cost_s},
        .n_prompt = n_prompt,
        .is_long = is_long};
}

static void arrive(sim *s) {
    while (s->next_s <= s->now_s && s->next_s < s->load->seconds) {
        bool is_long = draw(s) < s->long_chance;
        add(s, is_long, is_long ? s->load->long_tokens : 128 + (int32_t)(draw(s) * 385), s->next_s);
        s->next_s -= log(1 - draw(s)) * s->gap_s;
    }
}

static void say(sim *s, sim_request *r) {
    int32_t window = (int32_t)(s->now_s / 10);
    r->n_answer++;
    s->n_tokens++;
    if (window < s->n_windows) s->windows[window]++;
    if (r->n_answer == 1 && s->n_first[r->is_long] < s->first_max)
        s->first[r->is_long][s->n_first[r->is_long]++] = s->now_s - r->item.arrival_s;
    if (r->n_answer > 1 && s->n_stalls < s->stalls_max) s->stalls[s->n_stalls++] = s->now_s - r->last_s;
    r->last_s = s->now_s;
}

static int32_t cut(const sim *s, const sim_request *r, bool alone) {
    const fl_sched_policy *p = &s->sched.policy;
    int32_t most = r->n_prompt - r->pos < SPAN ? r->n_prompt - r->pos : SPAN;
    if (most <= TILE) return most;
    double one = step_flops(r->pos, TILE), all = step_flops(r->pos, most), each = (all - one) / (most - TILE);
    const fl_step_cost cost = {fmax(one - TILE * each, 0), each, TILE, most};
    return fl_step_rate_rows(&s->rate, &cost, fl_sched_step_s(p, alone ? FL_SCHED_ALONE : FL_SCHED_OTHERS),
                             p->overhead_max);
}

/* A token for every answer. */
static int32_t answer(sim *s) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->n && n < DECODE_MAX; i++) {
        if (s->live[i].n_answer == 0 || s->live[i].n_answer == ANSWER) continue;
        say(s, &s->live[i]);
        n++;
    }
    return n;
}

static int32_t n_answering(const sim *s) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->n; i++) n += s->live[i].n_answer > 0 && s->live[i].n_answer < ANSWER;
    return n < DECODE_MAX ? n : DECODE_MAX;
}

/* A prompt's step, with answers between its layers where it is long. Returns what it took without them. */
static double prompt_step(sim *s, double seconds) {
    const fl_sched_policy *p = &s->sched.policy;
    if (seconds <= p->stall_s) {
        s->now_s += seconds + n_answering(s) * DECODE_ROW_S;
        answer(s);
        return seconds;
    }
    for (int32_t i = 0; i < LAYERS; i++) {
        if (s->now_s - s->answered_s + seconds / LAYERS >= p->stall_s && n_answering(s) > 0) {
            s->now_s += DECODE_S + n_answering(s) * DECODE_ROW_S;
            answer(s);
            s->answered_s = s->now_s;
        }
        s->now_s += seconds / LAYERS;
    }
    return seconds;
}

static void step(sim *s) {
    static const fl_sched_item *items[LIVE_MAX];
    static int32_t at[LIVE_MAX];
    int32_t n_items = 0, n_decode = n_answering(s);
    for (int32_t i = 0; i < s->n; i++) {
        if (s->live[i].n_answer > 0) continue;
        at[n_items] = i;
        items[n_items++] = &s->live[i].item;
    }
    int32_t picked = fl_sched_pick(&s->sched, items, n_items, s->now_s), rows = 0;
    sim_request *r = picked >= 0 ? &s->live[at[picked]] : NULL;
    if (!r) {
        s->now_s += DECODE_S + n_decode * DECODE_ROW_S;
        answer(s);
        s->answered_s = s->now_s;
        return;
    }
    rows = cut(s, r, n_items == 1 && n_decode == 0);
    double flops = step_flops(r->pos, rows), seconds = prompt_step(s, prefill_s(flops));
    if (seconds <= s->sched.policy.stall_s) s->answered_s = s->now_s;
    fl_step_rate_learn(&s->rate, flops, seconds);
    fl_sched_charge(&s->sched, r->item.bin, fl_step_rate_seconds(&s->rate, flops));
    r->item.started = true;
    r->pos += rows;
    if (r->pos == r->n_prompt) say(s, r);
}

static void drop_done(sim *s) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->n; i++)
        if (s->live[i].n_answer < ANSWER) s->live[n++] = s->live[i];
    s->n = n;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *values, int32_t n, double q) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n > 0 ? values[(int32_t)(q * (n - 1))] : 0;
}

static double variation(const double *windows, int32_t n) {
    double sum = 0, squares = 0;
    for (int32_t i = 0; i < n; i++) sum += windows[i];
    for (int32_t i = 0; i < n; i++) squares += (windows[i] - sum / n) * (windows[i] - sum / n);
    return sum > 0 ? sqrt(squares / n) / (sum / n) : 0;
}

static void open_sim(sim *s, const fl_sched_policy *policy, const sim_load *load) {
    *s = (sim){.load = load, .random = load->seed};
    if (fl_sched_open(policy, &s->sched) != FL_ERR_OK) abort();
    fl_step_rate_learn(&s->rate, step_flops(0, 256), prefill_s(step_flops(0, 256)));
    s->stalls_max = s->first_max = 1 << 22;
    s->n_windows = (int32_t)(load->seconds / 10);
    for (int32_t i = 0; i < 2; i++) s->first[i] = malloc((size_t)s->first_max * sizeof(double));
    s->stalls = malloc((size_t)s->stalls_max * sizeof(double));
    s->windows = calloc((size_t)s->n_windows + 1, sizeof(double));
    if (!s->first[0] || !s->first[1] || !s->stalls || !s->windows) abort();
}

static void close_sim(sim *s) {
    free(s->first[0]);
    free(s->first[1]);
    free(s->stalls);
    free(s->windows);
}

void sim_run(const fl_sched_policy *policy, const sim_load *load, sim_result *out) {
    static sim s;
    open_sim(&s, policy, load);
    double long_s = work_s(load->long_tokens), short_s = work_s(320);
    double longs = load->long_share / (load->in_tokens ? load->long_tokens : long_s);
    double shorts = (1 - load->long_share) / (load->in_tokens ? 320 : short_s);
    s.long_chance = longs / (longs + shorts);
    s.gap_s = (s.long_chance * long_s + (1 - s.long_chance) * short_s) / load->utilisation;
    while (s.next_s < load->seconds || s.n > 0) {
        if (s.n == 0) s.now_s = fmax(s.now_s, s.next_s);
        arrive(&s);
        if (s.n == 0) break;
        step(&s);
        drop_done(&s);
    }
    *out = (sim_result){.n_short = s.n_first[0],
                        .n_long = s.n_first[1],
                        .short_p50_s = quantile(s.first[0], s.n_first[0], 0.5),
                        .short_p95_s = quantile(s.first[0], s.n_first[0], 0.95),
                        .long_p50_s = quantile(s.first[1], s.n_first[1], 0.5),
                        .long_p95_s = quantile(s.first[1], s.n_first[1], 0.95),
                        .tokens_per_s = s.n_tokens / s.now_s,
                        .variation = variation(s.windows, s.n_windows),
                        .stall_p99_s = quantile(s.stalls, s.n_stalls, 0.99)};
    close_sim(&s);
}

double sim_makespan(const fl_sched_policy *policy, int32_t tokens, int32_t n) {
    static sim s;
    const sim_load load = {.seconds = 0};
    double last_s = 0;
    open_sim(&s, policy, &load);
    for (int32_t i = 0; i < n; i++) add(&s, true, tokens, 0);
    while (s.n > 0) {
        step(&s);
        drop_done(&s);
    }
    for (int32_t i = 0; i < s.n_first[1]; i++) last_s = fmax(last_s, s.first[1][i]);
    close_sim(&s);
    return last_s;
}
