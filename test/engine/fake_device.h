/* An engine whose device is made of a CPU backend: it keeps the ops of a recording with their arguments and runs them
 * again on what memory holds by then. So what a recording keeps that it should have read, or reads from another place
 * than the step wrote, shows in the answer's bits. Functions fail the running cmocka test when something goes wrong. */
#ifndef TEST_FAKE_DEVICE_H
#define TEST_FAKE_DEVICE_H

#include "engine/engine.h"

enum { ANSWER = 40, REQUESTS = 3 };

/* What the device does; open_fake_policy() sets all of it to 0. */
struct fake_device {
    const fl_op_table *real;
    fl_op_table table;
    fl_recording *open;                           /* being recorded */
    int32_t n_open, n_replays, n_mixed, n_allocs; /* mixed: of the replays, document rows beside answers */
    bool refuse, refuse_replay, lost, refuse_thread;
    pthread_t entered;            /* the thread that entered last */
    int32_t n_entered, n_strange; /* ops and copies by another thread */
    int32_t poisoned_rows; /* draws of so many rows find a NaN as the second row's first logit; 0 = none */
    int32_t n_poisoned;
    fl_err (*alloc)(fl_backend *be, int64_t bytes, void **out);
};
extern struct fake_device fake;

typedef struct answer {
    int32_t tokens[ANSWER];
    float logprobs[ANSWER];
    int32_t n;
    fl_err err;
    char detail[512];
} answer;

/* Of the prompts that ask_fake() asks; answers are so much shorter than ANSWER; not 0: no document is found again. */
extern int32_t document_tokens, answers_shorter, salt;

/* Of spark-66m, for 2,048 tokens, 256 document rows a step, on this machine's best CPU backend; policy "full". */
fl_engine *open_fake(void);
fl_engine *open_fake_policy(const char *policy);

/* The engine's backend becomes a device that can record. No request runs. */
void become_device(fl_engine *e);

/* The worker ends and another begins. No request runs. */
void change_worker(fl_engine *e);

/* For be->alloc: counts, then calls fake.alloc. */
fl_err counted_alloc(fl_backend *be, int64_t bytes, void **out);

/* All events until DONE. */
void read_fake_answer(fl_request *r, answer *out);

/* Requests of n[i] prompt tokens at once. */
void ask_fake(fl_engine *e, const int32_t *n, int32_t n_requests, answer *out);

void assert_same_answer(const answer *a, const answer *b);

#endif
