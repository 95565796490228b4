/* Answers with lists in force: the alpha, the block, and the heads that stay dense. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate/calibrate_private.h"

enum { HEAD_LENGTH_MAX = 4096, HEAD_DOCUMENTS_MAX = 2, DENSE_SHARE = 4, ROUNDS = 2 };

static double score_share(const fl_calibrating *c) {
    const fl_config *k = c->e->config;
    double score = k->qk_nope_head_dim + k->qk_rope_head_dim;
    return score / (score + k->v_head_dim);
}

double fl_calibrate_work(double density, int32_t block_tokens, double share) {
    return density + (1 - density + share) / block_tokens;
}

/* One answer alone is always allowed: fewer cannot be lost. */
static bool within(const fl_calibrating *c, const fl_calibrate_loss *l) {
    double one = 100.0 / c->set.n_counted, most = c->plan->max_loss_points;
    return l->measured && fmax(l->nll, l->text) <= c->out->nll_max && l->points <= fmax(most, one) + 1e-9;
}

static fl_err measure(fl_calibrating *c, int32_t block, int32_t alpha, const bool *dense,
                      fl_calibrate_loss *out) {
    fl_calibrate_answers answers;
    fl_calibrate_heads_use(c, block, alpha, dense);
    FL_TRY(fl_calibrate_ask(c, &c->set, &answers));
    *out = (fl_calibrate_loss){.measured = true,
                               .points = 100 * (c->set.full.score - answers.score),
                               .nll = answers.nll - c->set.full.nll,
                               .text = answers.text_nll - c->set.full.text_nll,
                               .density = fl_attend_config_density(&c->e->attending)};
    fl_attend_config_density_by_head(&c->e->attending, c->attended);
    return FL_ERR_OK;
}

/* ---- alpha and block -------------------------------------------------------------------------------------------- */

static float *walked(const fl_calibrating *c, int32_t block, int32_t alpha) {
    return c->walked + (size_t)(block * FL_CALIBRATE_ALPHAS + alpha) * fl_calibrate_heads(c);
}

/* From the sparsest on until the target holds twice in a row; the sparser of the two, or the densest there is. */
static fl_err walk(fl_calibrating *c, int32_t block, int32_t *chosen) {
    fl_calibrate_loss *losses = c->out->losses[block];
    *chosen = FL_CALIBRATE_ALPHAS - 1;
    for (int32_t i = 0; i < FL_CALIBRATE_ALPHAS; i++) {
        FL_TRY(measure(c, block, i, NULL, &losses[i]));
        memcpy(walked(c, block, i), c->attended, fl_calibrate_heads(c) * sizeof(float));
        if (i == 0 || !within(c, &losses[i]) || !within(c, &losses[i - 1])) continue;
        *chosen = i - 1;
        break;
    }
    return FL_ERR_OK;
}

static double work_of(const fl_calibrating *c, int32_t block, const fl_calibrate_loss *loss) {
    return fl_calibrate_work(loss->density, fl_calibrate_block_tokens(block), score_share(c));
}

static void choose(fl_calibrating *c, int32_t block, int32_t alpha, const fl_calibrate_loss *loss,
                   const float *attended) {
    c->out->block = block;
    c->out->alpha = alpha;
    c->out->loss = *loss;
    c->out->reached = within(c, loss);
    memcpy(c->out->chosen.density_by_head, attended, fl_calibrate_heads(c) * sizeof(float));
}

static fl_err choose_block(fl_calibrating *c) {
    for (int32_t block = 0; block < FL_CALIBRATE_BLOCKS; block++) {
        int32_t alpha;
        FL_TRY(walk(c, block, &alpha));
        const fl_calibrate_loss *loss = &c->out->losses[block][alpha];
        bool first = block == 0, reached = within(c, loss);
        bool cheaper = work_of(c, block, loss) < work_of(c, c->out->block, &c->out->loss);
        if (first || (reached && !c->out->reached) || (reached == c->out->reached && cheaper))
            choose(c, block, alpha, loss, walked(c, block, alpha));
    }
    return FL_ERR_OK;
}

/* ---- heads alone ------------------------------------------------------------------------------------------------ */

/* Heads by the mass kept at this alpha, least first: order[n]. */
static void order_heads(const double *kept, int32_t n, int32_t *order) {
    for (int32_t i = 0; i < n; i++) {
        int32_t at = i;
        for (; at > 0 && kept[order[at - 1]] > kept[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
}

static fl_err measure_heads(fl_calibrating *c, int32_t block, int32_t alpha, const int32_t *order) {
    fl_calibrate_result *out = c->out;
    size_t n = fl_calibrate_heads(c);
    fl_calibrate_heads_use(c, block, -1, c->all_dense);
    FL_TRY(fl_calibrate_ask_full(c, &c->head_set));
    for (int32_t i = 0; i < out->n_heads_measured; i++) {
        fl_calibrate_answers answers;
        memcpy(c->dense, c->all_dense, n * sizeof(bool));
        c->dense[order[i]] = false;
        fl_calibrate_heads_use(c, block, alpha, c->dense);
        FL_TRY(fl_calibrate_ask(c, &c->head_set, &answers));
        out->head_loss[order[i]] =
            fmax(answers.nll - c->head_set.full.nll, answers.text_nll - c->head_set.full.text_nll);
    }
    return FL_ERR_OK;
}

static fl_err ablate(fl_calibrating *c, int32_t block, int32_t alpha) {
    fl_calibrate_result *out = c->out;
    size_t n = fl_calibrate_heads(c);
    int32_t *order = malloc(n * sizeof(int32_t));
    if (!order) return FL_FAIL(FL_ERR_NOMEM, "order of %zu heads", n);
    int64_t length = c->set.length_tokens < HEAD_LENGTH_MAX ? c->set.length_tokens : HEAD_LENGTH_MAX;
    int32_t n_documents = c->set.n < HEAD_DOCUMENTS_MAX ? c->set.n : HEAD_DOCUMENTS_MAX;
    out->n_heads_measured = c->plan->heads_max < (int32_t)n ? c->plan->heads_max : (int32_t)n;
    out->head_alpha = alpha;
    out->head_length_tokens = length;
    out->n_head_documents = n_documents;
    order_heads(out->mass[block].kept + (size_t)alpha * n, (int32_t)n, order);
    c->phase = "heads alone";
    fl_err err = FL_ERR_OK;
    if (out->n_heads_measured > 0) err = fl_calibrate_set_open(c, length, n_documents, &c->head_set);
    if (err == FL_ERR_OK && out->n_heads_measured > 0) err = measure_heads(c, block, alpha, order);
    free(order);
    return err;
}

int32_t fl_calibrate_mark(const fl_calibrate_losers *l, bool *dense) {
    double sum = 0, left = l->total;
    int32_t n = 0;
    for (int32_t i = 0; i < l->n; i++) {
        dense[i] = false;
        if (l->loss[i] > 0) sum += l->loss[i]; /* false for what was not measured */
    }
    for (; n < l->n_max && left > l->target; n++) {
        int32_t worst = -1;
        for (int32_t i = 0; i < l->n; i++)
            if (!dense[i] && l->loss[i] > 0 && (worst < 0 || l->loss[i] > l->loss[worst])) worst = i;
        if (worst < 0) break;
        dense[worst] = true;
        left -= l->total * l->loss[worst] / sum;
    }
    return n;
}

/* A sparser alpha whose worst heads stay dense, if that holds the target and saves work. */
static fl_err try_dense_heads(fl_calibrating *c, int32_t block, int32_t alpha) {
    fl_calibrate_result *out = c->out;
    int32_t n = (int32_t)fl_calibrate_heads(c), before = 0;
    c->phase = "dense heads";
    for (int round = 0; round < ROUNDS; round++) {
        const fl_calibrate_losers losers = {
            .loss = out->head_loss,
            .n = n,
            .n_max = n / DENSE_SHARE,
            .total = fmax(out->losses[block][alpha].nll, out->losses[block][alpha].text),
            .target = out->nll_max / (1 << 2 * round)}; /* a quarter in the next round */
        int32_t marked = fl_calibrate_mark(&losers, c->dense);
        if (marked == before) return FL_ERR_OK;
        before = marked;
        FL_TRY(measure(c, block, alpha, c->dense, &out->trial));
        bool saves = !out->reached || work_of(c, block, &out->trial) < work_of(c, block, &out->loss);
        if (!within(c, &out->trial) || !saves) continue;
        choose(c, block, alpha, &out->trial, c->attended);
        out->chosen.dense = malloc((size_t)n * sizeof(bool));
        if (!out->chosen.dense) return FL_FAIL(FL_ERR_NOMEM, "%d heads", n);
        memcpy(out->chosen.dense, c->dense, (size_t)n * sizeof(bool));
        return FL_ERR_OK;
    }
    return FL_ERR_OK;
}

/* The bias makes the means weigh, on average, what the keys they stand for weigh. That is right for the sum and may be
 * wrong for the direction: one loud key of one block is made up for by all means. So it has to show that it helps. */
static fl_err try_bias(fl_calibrating *c) {
    fl_calibrate_result *out = c->out;
    size_t n = fl_calibrate_heads(c);
    const double *bias = out->mass[out->block].bias + (size_t)out->alpha * n;
    c->phase = "bias of the means";
    c->use_bias = true;
    FL_TRY(measure(c, out->block, out->alpha, out->chosen.dense, &out->with_bias));
    c->use_bias = false;
    if (out->with_bias.text >= out->loss.text || !within(c, &out->with_bias)) return FL_ERR_OK;
    out->loss = out->with_bias;
    memcpy(out->chosen.density_by_head, c->attended, n * sizeof(float));
    out->chosen.bias = malloc(n * sizeof(float));
    if (!out->chosen.bias) return FL_FAIL(FL_ERR_NOMEM, "bias of %zu heads", n);
    for (size_t k = 0; k < n; k++) out->chosen.bias[k] = (float)bias[k];
    return FL_ERR_OK;
}

fl_err fl_calibrate_measure_loss(fl_calibrating *c) {
    fl_calibrate_result *out = c->out;
    c->phase = "full attention";
    fl_calibrate_heads_use(c, 0, -1, c->all_dense);
    FL_TRY(fl_calibrate_ask_full(c, &c->set));
    out->full_nll = c->set.full.nll;
    out->full_text = c->set.full.text_nll;
    out->full_points = 100 * c->set.full.score;
    out->n_questions = c->set.n_questions;
    out->n_counted = c->set.n_counted;
    c->phase = "answers lost";
    FL_TRY(choose_block(c));
    int32_t block = out->block, sparser = out->alpha > 0 ? out->alpha - 1 : 0;
    FL_TRY(ablate(c, block, sparser));
    if (!within(c, &out->losses[block][sparser])) FL_TRY(try_dense_heads(c, block, sparser));
    out->chosen.block = fl_calibrate_block_tokens(out->block);
    out->chosen.alpha = fl_calibrate_alpha(out->alpha);
    out->chosen.density = out->loss.density;
    return try_bias(c);
}
