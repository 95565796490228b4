/* Operators on values: arithmetic, comparison, attributes, indices, slices. Python's rules. */
#ifndef FL_TEXT_JINJA_OPS_H
#define FL_TEXT_JINJA_OPS_H

#include "text/jinja_tree.h"

/* a + b and so on, but for string + string, which the evaluator adds into one buffer. FL_ERR_DATA: wrong kinds,
 * division by zero. FL_ERR_LIMIT: beyond 64 bits. */
fl_err fl_jop_arith(fl_jrun *run, fl_jop op, const fl_jval *a, const fl_jval *b, fl_jval *out);

/* -a, or +a. */
fl_err fl_jop_sign(fl_jrun *run, bool plus, const fl_jval *a, fl_jval *out);

/* a == b, a in b and so on. */
fl_err fl_jop_compare(fl_jrun *run, fl_jop op, const fl_jval *a, const fl_jval *b, bool *out);

/* object.name: a dictionary's key, a namespace's variable, loop.*; else undefined. FL_ERR_UNSUPPORTED: Jinja
 * would give a method. */
fl_err fl_jop_attribute(fl_jrun *run, const fl_jval *object, const fl_jstr *name, fl_jval *out);

/* object[key]; undefined if there is no such item. */
fl_err fl_jop_index(fl_jrun *run, const fl_jval *object, const fl_jval *key, fl_jval *out);

/* object[bounds[0]:bounds[1]:bounds[2]], FL_JABSENT where not given. */
fl_err fl_jop_slice(fl_jrun *run, const fl_jval *object, const fl_jval *bounds, fl_jval *out);

#endif
