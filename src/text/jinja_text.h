/* String operations that filters and methods share. All keep the marks of the bytes they copy. */
#ifndef FL_TEXT_JINJA_TEXT_H
#define FL_TEXT_JINJA_TEXT_H

#include "text/jinja_value.h"

typedef enum fl_jcase { FL_JCASE_UPPER, FL_JCASE_LOWER, FL_JCASE_CAPITALIZE } fl_jcase;

/* ASCII letters changed; capitalize: the first character upper, the rest lower. */
fl_err fl_jtext_case(fl_jrun *run, const fl_jstr *str, fl_jcase how, fl_jval *out);

/* Without the white space (chars NULL) or the characters in `chars` at its ends. */
fl_err fl_jtext_strip(fl_jrun *run, const fl_jstr *str, const fl_jstr *chars, bool left, bool right,
                      fl_jval *out);

typedef struct fl_jreplace {
    const fl_jstr *str, *old, *by;
    int64_t count; /* the most replacements; < 0 = all */
} fl_jreplace;

fl_err fl_jtext_replace(fl_jrun *run, const fl_jreplace *args, fl_jval *out);

/* At `separator`, NULL = runs of white space; at most `count` times, < 0 = everywhere. A list of strings. */
fl_err fl_jtext_split(fl_jrun *run, const fl_jstr *str, const fl_jstr *separator, int64_t count,
                      fl_jval *out);
fl_err fl_jtext_splitlines(fl_jrun *run, const fl_jstr *str, fl_jval *out);

/* The items' text forms (strict: they must be strings), `separator` between them. */
fl_err fl_jtext_join(fl_jrun *run, const fl_jstr *separator, const fl_jval *items, size_t n, bool strict,
                     fl_jval *out);

/* Python's json.dumps(ensure_ascii=False) unless told otherwise. */
typedef struct fl_jjson {
    bool ascii, sort, pretty;
    size_t indent;              /* pretty: spaces a level */
    const fl_jstr *item, *pair; /* separators; NULL = Python's usual ones */
} fl_jjson;

fl_err fl_jtext_json(fl_jrun *run, const fl_jval *value, const fl_jjson *style, fl_jval *out);

#endif
