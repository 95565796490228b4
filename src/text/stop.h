/* Stop strings in a growing text: what may be shown now, what must be held back because it may begin a stop string, and
 * whether one is complete. */
#ifndef FL_TEXT_STOP_H
#define FL_TEXT_STOP_H

#include "base/err.h"

enum { FL_STOP_BYTES_MAX = 256 };

typedef struct fl_stop {
    char *texts[FL_STOPS_MAX]; /* owned */
    size_t bytes[FL_STOPS_MAX];
    int32_t n;
} fl_stop;

/* Copies the strings. FL_ERR_INVALID: too many, empty or longer than FL_STOP_BYTES_MAX. */
fl_err fl_stop_init(fl_stop *stop, const char *const *texts, int32_t n);
void fl_stop_free(fl_stop *stop);

/* `held` is all text not shown yet. *show_bytes of it may be shown. True: a stop string begins right after them and is
 * complete, so the text ends there. */
bool fl_stop_find(const fl_stop *stop, const char *held, size_t held_bytes, size_t *show_bytes);

#endif
