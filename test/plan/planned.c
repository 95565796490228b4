#include "plan/planned.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "model/shapes.h"

void planned_open(const plan_words *w, planned *p) {
    fl_kv_format format;
    *p = (planned){.like = NULL};
    assert_int_equal(fl_shape_find(w->shape, &p->config), FL_ERR_OK);
    if (w->bf16_weights) p->config.quantisation = (fl_quantisation){FL_QUANTISATION_NONE, 0, 0};
    bool fp8 = p->config.quantisation.type == FL_QUANTISATION_FP8;
    assert_int_equal(fl_backend_open(fp8 ? "count:cuda-w8a8" : "count:cuda", 1, &p->like), FL_ERR_OK);
    assert_int_equal(fl_policy_parse(w->policy, w->tokens, &p->policy), FL_ERR_OK);
    assert_true(fl_kv_format_parse(w->kv ? w->kv : "bf16", &format));
    p->attend = fl_policy_attend(&p->policy);
    p->attend.planned_density = w->density;
    p->unread = calloc((size_t)p->config.layers * (size_t)p->config.heads, sizeof(float));
    assert_non_null(p->unread);
    p->attend.log2_alpha = p->attend.mean_bias = p->unread;
    p->task = (fl_plan_task){.config = &p->config,
                             .like = p->like,
                             .kv = fl_kv_shape_of_config(&p->config, format),
                             .attend = &p->attend,
                             .n_tokens = w->tokens,
                             .kv_tokens = w->tokens};
}

void planned_close(planned *p) {
    fl_backend_close(p->like);
    free(p->unread);
}

void assert_near(double a, double b, double share) {
    if (!(fabs(a - b) <= share * fabs(b))) fail_msg("%.9g is not within %g of %.9g", a, share, b);
}
