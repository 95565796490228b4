/* The report as JSON. Field names are those of the command line's contract; figures in points, nats and seconds. */
#include "eval/eval_report.h"

static json_t *sum_json(const fl_eval_summary *s) {
    return json_pack(
        "{s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:b}",
        "questions", (int)s->n_questions, "documents", (int)s->n_documents, "lost", (int)s->n_lost, "won",
        (int)s->n_won, "score", s->score, "score_full", s->score_full, "loss_points", s->loss.value,
        "loss_low", s->loss.low, "loss_high", s->loss.high, "loss_p", s->loss.p, "nll", s->nll, "nll_full",
        s->nll_full, "nll_diff", s->nll_diff.value, "nll_low", s->nll_diff.low, "nll_high", s->nll_diff.high,
        "nll_p", s->nll_diff.p, "kl", s->kl, "unseen_points", s->unseen_points, "worse", (int)s->worse);
}

static json_t *cell_json(const fl_eval_cell *cell) {
    json_t *out = sum_json(&cell->sum);
    json_object_set_new(out, "counts", json_boolean(cell->counts));
    return out;
}

static json_t *depths_json(const fl_eval_summary *sums) {
    json_t *all = json_array();
    for (int32_t b = 0; b < FL_EVAL_DEPTHS; b++) {
        if (sums[b].n_questions == 0) continue;
        json_t *one = sum_json(&sums[b]);
        json_object_set_new(one, "from", json_real((double)b / FL_EVAL_DEPTHS));
        json_object_set_new(one, "to", json_real((double)(b + 1) / FL_EVAL_DEPTHS));
        json_array_append_new(all, one);
    }
    return all;
}

static json_t *distances_json(const fl_eval_summary *sums) {
    json_t *all = json_object();
    for (int32_t b = 0; b < FL_EVAL_DISTANCES; b++)
        if (sums[b].n_questions > 0) json_object_set_new(all, fl_eval_distance_name(b), sum_json(&sums[b]));
    return all;
}

static json_t *tasks_json(const fl_eval_report *r, const fl_eval_view *v) {
    json_t *all = json_object();
    for (int32_t t = 0; t < r->n_tasks; t++) {
        bool counts = false;
        for (int32_t l = 0; l < r->n_lengths; l++) counts = counts || v->cells[t * r->n_lengths + l].counts;
        json_t *one = sum_json(&v->by_task[t]);
        json_object_set_new(one, "counts", json_boolean(counts));
        json_object_set_new(all, r->tasks[t], one);
    }
    return all;
}

static json_t *lengths_json(const fl_eval_report *r, const fl_eval_view *v) {
    json_t *all = json_object();
    for (int32_t l = 0; l < r->n_lengths; l++) {
        char name[32];
        json_t *one = sum_json(&v->by_length[l]), *tasks = json_object();
        for (int32_t t = 0; t < r->n_tasks; t++) {
            const fl_eval_cell *cell = &v->cells[t * r->n_lengths + l];
            if (cell->sum.n_questions > 0) json_object_set_new(tasks, r->tasks[t], cell_json(cell));
        }
        json_object_set_new(one, "by_task", tasks);
        json_object_set_new(one, "by_depth", depths_json(&v->by_depth[l * FL_EVAL_DEPTHS]));
        json_object_set_new(one, "by_segment_distance",
                            distances_json(&v->by_distance[l * FL_EVAL_DISTANCES]));
        snprintf(name, sizeof name, "%lld", (long long)r->lengths[l]);
        json_object_set_new(all, name, one);
    }
    return all;
}

static void set_side(json_t *out, const fl_eval_report *r, const fl_eval_about *about, int32_t side) {
    const fl_eval_side *s = &about->sides[side];
    const fl_eval_cost *c = &r->costs[side];
    json_object_set_new(out, "spec", json_string(s->spec));
    json_object_set_new(out, "policy", json_string(s->policy));
    json_object_set_new(out, "kv_dtype", json_string(s->kv_dtype));
    json_object_set_new(out, "backend", json_string(s->backend));
    json_object_set_new(out, "prefill_s", json_real(c->prefill_s));
    json_object_set_new(out, "computed_tokens", json_integer(c->computed_tokens));
    json_object_set_new(out, "cached_tokens", json_integer(c->cached_tokens));
    json_object_set_new(out, "document_reads", json_integer(c->n_reads));
    json_object_set_new(out, "block_density", json_real(s->block_density));
    json_object_set_new(out, "block_overflow", json_integer(s->block_overflow));
    if (s->position_warning) json_object_set_new(out, "position_warning", json_string(s->position_warning));
}

static json_t *view_json(const fl_eval_report *r, const fl_eval_about *about, int32_t view) {
    const fl_eval_view *v = &r->views[view];
    json_t *out = sum_json(&v->total);
    json_object_set_new(out, "worse", json_boolean(v->worse));
    set_side(out, r, about, fl_eval_side_of(r, view));
    json_object_set_new(out, "by_task", tasks_json(r, v));
    json_object_set_new(out, "by_length", lengths_json(r, v));
    return out;
}

json_t *fl_eval_report_json(const fl_eval_report *r, const fl_eval_about *about) {
    json_t *out = view_json(r, about, 0), *baseline = json_object(), *variants = json_array();
    set_side(baseline, r, about, 0);
    for (int32_t v = 0; v < r->n_views; v++) json_array_append_new(variants, view_json(r, about, v));
    json_object_set_new(out, "baseline", baseline);
    json_object_set_new(out, "variants", variants);
    json_object_set_new(out, "model", json_string(about->model));
    json_object_set_new(out, "haystack", json_string(about->documents));
    json_object_set_new(out, "seed", json_integer((json_int_t)about->seed));
    json_object_set_new(out, "difficulty", json_real(about->difficulty));
    json_object_set_new(out, "segments", json_integer(about->n_segments));
    return out;
}
