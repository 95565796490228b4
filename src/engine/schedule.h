/* The engine's side of scheduling (src/sched decides, this asks it): who is given pages, who is given up, whose rows
 * the next step computes and how many. Worker only, unless said otherwise. */
#ifndef FL_ENGINE_SCHEDULE_H
#define FL_ENGINE_SCHEDULE_H

#include "engine/engine.h"

/* Policy from settings, and the cost of prompts. After the dry run is there. */
fl_err fl_schedule_open(fl_engine *engine, const fl_settings *settings);

/* Any thread, a request that nobody else sees yet: its place before the worker knows what of it is cached. */
void fl_schedule_enter(fl_request *request, const fl_request_params *params);

/* Ends requests that are cancelled or too late and admits queued ones. Moves those that can compute to the front of
 * run[n], in their order, and returns how many. */
int32_t fl_schedule_admit(fl_engine *engine, fl_request **run, int32_t n);

/* The one in PREFILL of run[n] whose rows come next, or NULL. */
fl_request *fl_schedule_pick(fl_engine *engine, fl_request **run, int32_t n);

/* Rows of a step. */
typedef struct fl_schedule_piece {
    int32_t document_rows, tail_rows;
} fl_schedule_piece;

typedef struct fl_schedule_beside {
    int32_t n_decode; /* answers */
    bool others;      /* more prompts could compute now */
    bool
        between; /* answers can have tokens between the piece's layers, so the piece need not be short for them */
} fl_schedule_beside;

/* How many rows of `request` come next. At least one. */
fl_schedule_piece fl_schedule_cut(fl_engine *engine, const fl_request *request,
                                  const fl_schedule_beside *beside);

/* A step of `seconds` ran: flops of the request's rows, of what answers added, of what is left of the request. */
typedef struct fl_schedule_ran {
    double flops, flops_beside, flops_left, seconds;
} fl_schedule_ran;

void fl_schedule_learn(fl_engine *engine, fl_request *request, const fl_schedule_ran *ran);

/* Predicted FLOPs of a prompt's rows from pos on. */
double fl_schedule_left(fl_engine *engine, const fl_request *request, int32_t pos);

#endif
