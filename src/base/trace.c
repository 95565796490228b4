#include "base/trace.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* state: 0 = never written; 2 * (index + 1) = holds event `index`; odd = being written. All words are atomic, so that
 * a reader beside a writer is no data race; it takes an event only if its state was the same before and after. */
enum { NAME, BEGIN, END, WHERE, ID, WORK, COUNT, N_WORDS };

struct fl_trace_slot {
    _Alignas(64) atomic_ullong state;
    atomic_ullong word[N_WORDS];
};

fl_err fl_trace_open(fl_trace **out) {
    fl_trace *t = aligned_alloc(_Alignof(fl_trace), sizeof *t);
    if (!t) return FL_FAIL(FL_ERR_NOMEM, "trace");
    memset(t, 0, sizeof *t);
    *out = t;
    return FL_ERR_OK;
}

void fl_trace_close(fl_trace *t) {
    if (!t) return;
    free(t->slots);
    free(t);
}

static fl_err reserve(fl_trace *t, int64_t events) {
    int64_t capacity = FL_TRACE_EVENTS_MIN;
    if (events < FL_TRACE_EVENTS_MIN || events > FL_TRACE_EVENTS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "trace: expected room for %d to %d events, found %lld",
                       FL_TRACE_EVENTS_MIN, FL_TRACE_EVENTS_MAX, (long long)events);
    while (capacity < events) capacity *= 2;
    size_t bytes = (size_t)capacity * sizeof(fl_trace_slot);
    t->slots = aligned_alloc(64, bytes);
    if (!t->slots) return FL_FAIL(FL_ERR_NOMEM, "trace of %lld events", (long long)capacity);
    memset(t->slots, 0, bytes); /* touched now rather than by the first events */
    t->capacity = capacity;
    return FL_ERR_OK;
}

fl_err fl_trace_start(fl_trace *t, int64_t events) {
    fl_trace_stop(t);
    if (!t->slots) FL_TRY(reserve(t, events > 0 ? events : FL_TRACE_EVENTS_DEFAULT));
    t->start_s = fl_now_s();
    t->first = atomic_load(&t->next);
    atomic_store(&t->n_busy, 0);
    atomic_store_explicit(&t->on, true, memory_order_release);
    return FL_ERR_OK;
}

void fl_trace_stop(fl_trace *t) {
    atomic_store(&t->on, false);
}

/* ---- events and words ---- */

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double value_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void pack(const fl_trace_event *e, uint64_t word[N_WORDS]) {
    uint32_t work[2];
    memcpy(&work[0], &e->flops, sizeof work[0]);
    memcpy(&work[1], &e->bytes, sizeof work[1]);
    word[NAME] = (uintptr_t)e->name;
    word[BEGIN] = bits_of(e->begin_s);
    word[END] = bits_of(e->end_s);
    word[WHERE] = (uint64_t)(uint32_t)e->lane << 8 | (uint64_t)e->kind;
    word[ID] = e->id;
    word[WORK] = (uint64_t)work[1] << 32 | work[0];
    word[COUNT] = (uint64_t)e->count;
}

static void unpack(const uint64_t word[N_WORDS], fl_trace_event *e) {
    uint32_t work[2] = {(uint32_t)word[WORK], (uint32_t)(word[WORK] >> 32)};
    e->name = (const char *)(uintptr_t)word[NAME];
    e->begin_s = value_of(word[BEGIN]);
    e->end_s = value_of(word[END]);
    e->lane = (int32_t)(word[WHERE] >> 8);
    e->kind = (fl_trace_kind)(word[WHERE] & 0xff);
    e->id = word[ID];
    memcpy(&e->flops, &work[0], sizeof e->flops);
    memcpy(&e->bytes, &work[1], sizeof e->bytes);
    e->count = (int64_t)word[COUNT];
}

/* A slot may still be held by a thread that stopped in the middle of an event one round ago, or may hold a newer event
 * by the time this thread comes to it: then the event is given up rather than waited for. */
void fl_trace_add(fl_trace *t, const fl_trace_event *e) {
    uint64_t word[N_WORDS];
    if (!t || !atomic_load_explicit(&t->on, memory_order_acquire)) return;
    unsigned long long index = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
    fl_trace_slot *s = &t->slots[index & (uint64_t)(t->capacity - 1)];
    unsigned long long state = atomic_load_explicit(&s->state, memory_order_relaxed);
    if (state % 2 == 1 || state / 2 > index ||
        !atomic_compare_exchange_strong_explicit(&s->state, &state, state | 1, memory_order_acquire,
                                                 memory_order_relaxed)) {
        atomic_fetch_add_explicit(&t->n_busy, 1, memory_order_relaxed);
        return;
    }
    /* The thread's next event is likely to come soon and close: else each would wait for a line of memory. */
    __builtin_prefetch(&t->slots[(index + 2) & (uint64_t)(t->capacity - 1)], 1);
    pack(e, word);
    /* Each word after the odd state, and none after the even one: a reader that saw a word of this event sees at
     * least the odd state when it looks again. */
    for (int i = 0; i < N_WORDS; i++) atomic_store_explicit(&s->word[i], word[i], memory_order_release);
    atomic_store_explicit(&s->state, 2 * (index + 1), memory_order_release);
}

/* Events since the start that the ring may still hold: [*first, end). */
static uint64_t range(const fl_trace *t, uint64_t *first) {
    uint64_t end = atomic_load(&t->next), capacity = (uint64_t)t->capacity;
    *first = end - t->first > capacity ? end - capacity : t->first;
    return end;
}

fl_trace_counts fl_trace_get_counts(const fl_trace *t) {
    uint64_t first, end = range(t, &first), n_busy = atomic_load(&t->n_busy);
    return (fl_trace_counts){.kept = (int64_t)(end - first), .lost = (int64_t)(first - t->first + n_busy)};
}

bool fl_trace_get(const fl_trace *t, int64_t i, fl_trace_event *out) {
    uint64_t first, end = range(t, &first), index = first + (uint64_t)i, word[N_WORDS];
    if (i < 0 || index >= end) return false;
    fl_trace_slot *s = &t->slots[index & (uint64_t)(t->capacity - 1)];
    if (atomic_load_explicit(&s->state, memory_order_acquire) != 2 * (index + 1)) return false;
    for (int w = 0; w < N_WORDS; w++) word[w] = atomic_load_explicit(&s->word[w], memory_order_acquire);
    if (atomic_load_explicit(&s->state, memory_order_relaxed) != 2 * (index + 1)) return false;
    unpack(word, out);
    return true;
}

/* ---- threads ---- */

/* A thread has one lane in all traces: -1 = none yet. */
static _Thread_local int32_t thread_lane = -1;

void fl_trace_set_lane(int32_t lane) {
    thread_lane = lane;
}

int32_t fl_trace_lane(void) {
    static atomic_int n_callers;
    if (thread_lane < 0)
        thread_lane = FL_LANE_CALLER + atomic_fetch_add(&n_callers, 1) % (FL_LANE_DEVICE - FL_LANE_CALLER);
    return thread_lane;
}

double fl_trace_now(const fl_trace *t) {
    return fl_trace_on(t) ? fl_now_s() : 0;
}

void fl_trace_span(fl_trace *t, fl_trace_kind kind, const char *name, double begin_s, int64_t count) {
    if (begin_s == 0 || !fl_trace_on(t)) return;
    const fl_trace_event e = {.name = name,
                              .kind = kind,
                              .lane = fl_trace_lane(),
                              .begin_s = begin_s,
                              .end_s = fl_now_s(),
                              .count = count};
    fl_trace_add(t, &e);
}
