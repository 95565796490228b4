/* Reading arguments of filters, tests, methods and functions. `doing` names the caller in error texts. */
#ifndef FL_TEXT_JINJA_ARGS_H
#define FL_TEXT_JINJA_ARGS_H

#include "text/jinja_value.h"

/* A string. FL_ERR_DATA for other kinds. */
fl_err fl_jarg_str(fl_jrun *run, const fl_jval *arg, const char *doing, const fl_jstr **out);

/* A string, NULL when absent or none. */
fl_err fl_jarg_optional_str(fl_jrun *run, const fl_jval *arg, const char *doing, const fl_jstr **out);

/* An integer (booleans are 0 and 1), `otherwise` when absent or none. */
fl_err fl_jarg_int(fl_jrun *run, const fl_jval *arg, const char *doing, int64_t otherwise, int64_t *out);

#endif
