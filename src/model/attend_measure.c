/* What block lists keep of full attention, for calibration: three log-sum-exps a row, of all keys, of the listed
 * ones, and of the listed ones with the means of the others. Host memory only: it runs beside steps on CPU backends. */
#include <math.h>

#include "model/attention.h"

typedef struct measuring {
    fl_attention t; /* attends by `attend` */
    fl_attend attend;
    fl_kv_rows tile;
    fl_inputs out; /* not looked at */
    float *all, *listed, *with_means;
} measuring;

/* A share of mass below this is rounding. */
#define SHARE_MIN 1e-4

static void add_rows(const measuring *m, int32_t alpha) {
    const fl_attention *t = &m->t;
    fl_attend_probe *p = m->attend.probe;
    int64_t at = ((int64_t)alpha * t->w->config.layers + t->layer_index) * t->heads;
    for (int32_t r = 0; r < m->tile.n_rows; r++)
        for (int32_t h = 0; h < t->heads; h++) {
            int64_t i = (int64_t)r * t->heads + h;
            double kept = exp2((double)m->listed[i] - (double)m->all[i]);
            double means = exp2((double)m->with_means[i] - (double)m->all[i]) - kept;
            double left = 1 - kept;
            p->kept[at + h] += kept < 1 ? kept : 1;
            if (left < SHARE_MIN || means < SHARE_MIN) continue;
            p->bias[at + h] += left * log2(left / means);
            p->weight[at + h] += left;
        }
}

static fl_err measure_alpha(measuring *m, int32_t alpha, float *log2_alpha) {
    fl_attention *t = &m->t;
    int64_t n = (int64_t)t->w->config.layers * t->heads;
    for (int64_t i = 0; i < n; i++) log2_alpha[i] = m->attend.probe->log2_alpha[alpha];
    m->attend.log2_alpha = log2_alpha;
    m->attend.blocks = true;
    for (int drop = 0; drop < 2; drop++) {
        m->attend.drop_means = drop;
        m->attend.listed = drop ? m->attend.probe->listed + (int64_t)alpha * n : NULL;
        m->attend.visible = m->attend.probe->visible + (int64_t)alpha * t->w->config.layers;
        FL_TRY(fl_attend_document(t, &m->tile, &m->out, drop ? m->listed : m->with_means));
    }
    add_rows(m, alpha);
    return FL_ERR_OK;
}

fl_err fl_attend_measure(fl_attention *t, const fl_kv_rows *piece) {
    fl_attend_probe *probe = t->attend->probe;
    int64_t mark = fl_arena_mark(t->arena), n = (int64_t)FL_ATTN_LIST_ROWS * t->heads;
    if (piece->n_rows % FL_ATTN_LIST_ROWS != 0 || piece->pos % FL_ATTN_LIST_ROWS != 0) return FL_ERR_OK;
    measuring m = {.t = *t, .attend = *t->attend, .tile = *piece};
    float *log2_alpha;
    FL_TRY(fl_attention_take(t, n * t->v, &m.out.act));
    FL_TRY(fl_arena_take(t->arena, n, sizeof(float), &m.all));
    FL_TRY(fl_arena_take(t->arena, n, sizeof(float), &m.listed));
    FL_TRY(fl_arena_take(t->arena, n, sizeof(float), &m.with_means));
    FL_TRY(fl_arena_take(t->arena, (int64_t)t->w->config.layers * t->heads, sizeof(float), &log2_alpha));
    m.tile.row += piece->n_rows - FL_ATTN_LIST_ROWS;
    m.tile.pos += piece->n_rows - FL_ATTN_LIST_ROWS;
    m.tile.n_rows = FL_ATTN_LIST_ROWS;
    m.attend.dense = NULL;
    m.attend.probe = t->attend->probe;
    m.attend.blocks = false;
    m.t.attend = &m.attend;
    FL_TRY(fl_attend_document(&m.t, &m.tile, &m.out, m.all));
    for (int32_t i = 0; i < probe->n_alphas; i++) FL_TRY(measure_alpha(&m, i, log2_alpha));
    probe->rows[t->layer_index] += m.tile.n_rows;
    fl_arena_reset(t->arena, mark);
    return FL_ERR_OK;
}
