/* Errors of the whole library. Every fallible function returns fl_err: FL_ERR_OK is 0, all others are
 * negative. The detail text (what was wrong, where, what was expected) lives in a per-thread buffer until the
 * next failure. */
#ifndef FL_BASE_ERR_H
#define FL_BASE_ERR_H

#include <firstlight/firstlight.h>

#if defined(__GNUC__)
#define FL_PRINTF(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))
#else
#define FL_PRINTF(fmt_index, first_arg)
#endif

/* Records `code` with a printf-style detail text and returns `code`. The source place goes to the debug log
 * only: texts reach users and clients, who must not see internals. Control bytes in the text are replaced by
 * '?'. */
fl_err fl_err_set(fl_err code, const char *file, int line, const char *format, ...) FL_PRINTF(4, 5);

/* "FILE:LINE" of this thread's last failure, for debug logs; "" if there was none. */
const char *fl_err_place(void);

/* The process exit code that belongs to an error: 65 bad data, 69 no device, 70 internal, 75 again,
 * 78 config. */
int fl_err_exit_code(fl_err code);

/* Returns its first argument. Through it compilers and analysers see that a failure's code is not FL_ERR_OK. */
static inline fl_err fl_err_same(fl_err code, fl_err recorded) {
    (void)recorded;
    return code;
}

/* `code` is evaluated twice. */
#define FL_FAIL(code, ...) fl_err_same((code), fl_err_set((code), __FILE__, __LINE__, __VA_ARGS__))

#define FL_TRY(expression)                                                                                   \
    do {                                                                                                     \
        fl_err fl_try_err_ = (expression);                                                                   \
        if (fl_try_err_ != FL_ERR_OK) return fl_try_err_;                                                    \
    } while (0)

/* Like FL_TRY, for functions with one `fail:` label and a local `fl_err err`. */
#define FL_TRY_GOTO(expression)                                                                              \
    do {                                                                                                     \
        err = (expression);                                                                                  \
        if (err != FL_ERR_OK) goto fail;                                                                     \
    } while (0)

#endif
