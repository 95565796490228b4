/* The part of attn_prefill's check that is about which keys a row sees. */
#ifndef FL_OP_ATTN_PREFILL_VIEW_CHECK_H
#define FL_OP_ATTN_PREFILL_VIEW_CHECK_H

struct oc_run;

void fl_attn_prefill_view_check(struct oc_run *run);

#endif
