/* Operators on values. */
#include "text/jinja_ops.h"

#include "text/jinja_args.h"
#include "text/jinja_str.h"
#include "text/jinja_text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- arithmetic ---------------------------------------------------------------------------------------- */

static fl_err fail_operands(const fl_jrun *run, fl_jop op, const fl_jval *a, const fl_jval *b) {
    static const char *const texts[] = {"+", "-", "*", "/", "//", "%"};
    if (a->kind == FL_JUNDEFINED) return fl_jval_fail_undefined(run, a);
    if (b->kind == FL_JUNDEFINED) return fl_jval_fail_undefined(run, b);
    if (op == FL_JOP_MOD && a->kind == FL_JSTR) {
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "chat template line %" PRIu32 ": '%%' on a string is not supported", run->line);
    }
    return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": '%s' of %s and %s", run->line, texts[op],
                   fl_jval_kind_name(a), fl_jval_kind_name(b));
}

static fl_err fail_overflow(const fl_jrun *run) {
    return FL_FAIL(FL_ERR_LIMIT, "chat template line %" PRIu32 ": an integer of more than 64 bits",
                   run->line);
}

static bool is_number(const fl_jval *value) {
    return value->kind == FL_JBOOL || value->kind == FL_JINT || value->kind == FL_JFLOAT;
}

static int64_t integer_of(const fl_jval *value) {
    return value->kind == FL_JBOOL ? value->as.truth : value->as.integer;
}

static double real_of(const fl_jval *value) {
    return value->kind == FL_JFLOAT ? value->as.real : (double)integer_of(value);
}

static fl_err arith_int(fl_jrun *run, fl_jop op, int64_t a, int64_t b, int64_t *out) {
    bool overflow = false;
    switch (op) {
    case FL_JOP_ADD: overflow = __builtin_add_overflow(a, b, out); break;
    case FL_JOP_SUB: overflow = __builtin_sub_overflow(a, b, out); break;
    case FL_JOP_MUL: overflow = __builtin_mul_overflow(a, b, out); break;
    default: /* floor division and its rest; b is not 0 */
        if (b == -1) {
            *out = 0;
            if (op == FL_JOP_FLOOR_DIV) overflow = __builtin_sub_overflow(0, a, out);
            break;
        }
        int64_t quotient = a / b, rest = a % b;
        if (rest != 0 && (rest < 0) != (b < 0)) {
            quotient--;
            rest += b;
        }
        *out = op == FL_JOP_MOD ? rest : quotient;
    }
    return overflow ? fail_overflow(run) : FL_ERR_OK;
}

static double arith_float(fl_jop op, double a, double b) {
    switch (op) {
    case FL_JOP_ADD: return a + b;
    case FL_JOP_SUB: return a - b;
    case FL_JOP_MUL: return a * b;
    case FL_JOP_DIV: return a / b;
    default: break;
    }
    /* The rest has the divisor's sign, and the quotient is the whole number that belongs to it. */
    double rest = fmod(a, b), quotient = (a - rest) / b;
    if (rest == 0) {
        rest = copysign(0.0, b);
    } else if ((rest < 0) != (b < 0)) {
        rest += b;
        quotient -= 1;
    }
    if (op == FL_JOP_MOD) return rest;
    if (quotient == 0) return copysign(0.0, a / b);
    double whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1 : whole;
}

static fl_err repeat(fl_jrun *run, const fl_jstr *str, int64_t count, fl_jval *out) {
    fl_jbuf buf = {.run = run, .max_bytes = SIZE_MAX};
    const fl_jstr *made;
    for (int64_t i = 0; str->n > 0 && i < count; i++) FL_TRY(fl_jbuf_add(&buf, str, 0, str->n));
    FL_TRY(fl_jbuf_finish(&buf, &made));
    *out = fl_jval_str(made);
    return FL_ERR_OK;
}

static fl_err add_lists(fl_jrun *run, const fl_jlist *a, const fl_jlist *b, fl_jval *out) {
    fl_jval *items = fl_jarena_alloc(&run->arena, a->n + b->n, sizeof *items);
    if (items == NULL) return fl_jarena_error(&run->arena);
    for (size_t i = 0; i < a->n; i++) items[i] = a->items[i];
    for (size_t i = 0; i < b->n; i++) items[a->n + i] = b->items[i];
    return fl_jval_from_items(run, items, a->n + b->n, a->tuple, out);
}

static fl_err arith_other(fl_jrun *run, fl_jop op, const fl_jval *a, const fl_jval *b, fl_jval *out) {
    if (op == FL_JOP_ADD && a->kind == FL_JLIST && b->kind == FL_JLIST &&
        a->as.list->tuple == b->as.list->tuple) {
        return add_lists(run, a->as.list, b->as.list, out);
    }
    if (op == FL_JOP_MUL) {
        const fl_jval *str = a->kind == FL_JSTR ? a : b, *count = a->kind == FL_JSTR ? b : a;
        if (str->kind == FL_JSTR && (count->kind == FL_JINT || count->kind == FL_JBOOL)) {
            return repeat(run, str->as.str, integer_of(count), out);
        }
    }
    return fail_operands(run, op, a, b);
}

fl_err fl_jop_arith(fl_jrun *run, fl_jop op, const fl_jval *a, const fl_jval *b, fl_jval *out) {
    if (!is_number(a) || !is_number(b)) return arith_other(run, op, a, b, out);
    bool trusted = a->trusted && b->trusted;
    if ((op == FL_JOP_DIV || op == FL_JOP_FLOOR_DIV || op == FL_JOP_MOD) && real_of(b) == 0) {
        return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": division by zero", run->line);
    }
    if (op == FL_JOP_DIV || a->kind == FL_JFLOAT || b->kind == FL_JFLOAT) {
        *out = fl_jval_float(arith_float(op, real_of(a), real_of(b)), trusted);
        return FL_ERR_OK;
    }
    int64_t result;
    FL_TRY(arith_int(run, op, integer_of(a), integer_of(b), &result));
    *out = fl_jval_int(result, trusted);
    return FL_ERR_OK;
}

fl_err fl_jop_sign(fl_jrun *run, bool plus, const fl_jval *a, fl_jval *out) {
    if (!is_number(a)) return fl_jval_fail_kind(run, plus ? "the sign '+'" : "the sign '-'", "a number", a);
    if (a->kind == FL_JFLOAT) {
        *out = fl_jval_float(plus ? a->as.real : -a->as.real, a->trusted);
        return FL_ERR_OK;
    }
    int64_t value = integer_of(a);
    if (!plus && __builtin_sub_overflow(0, value, &value)) return fail_overflow(run);
    *out = fl_jval_int(value, a->trusted);
    return FL_ERR_OK;
}

fl_err fl_jop_compare(fl_jrun *run, fl_jop op, const fl_jval *a, const fl_jval *b, bool *out) {
    int order;
    switch (op) {
    case FL_JOP_EQ: return fl_jval_equal(run, a, b, out);
    case FL_JOP_IN: return fl_jval_contains(run, b, a, out);
    case FL_JOP_NE:
        FL_TRY(fl_jval_equal(run, a, b, out));
        *out = !*out;
        return FL_ERR_OK;
    case FL_JOP_NOT_IN:
        FL_TRY(fl_jval_contains(run, b, a, out));
        *out = !*out;
        return FL_ERR_OK;
    default: FL_TRY(fl_jval_compare(run, a, b, &order));
    }
    *out = (op == FL_JOP_LT && order == -1) || (op == FL_JOP_GT && order == 1) ||
           (op == FL_JOP_LE && order <= 0) || (op == FL_JOP_GE && (order == 0 || order == 1));
    return FL_ERR_OK;
}

/* ---- attributes and indices ---------------------------------------------------------------------------- */

static fl_err loop_attribute(fl_jrun *run, const fl_jloop *loop, const fl_jstr *name, fl_jval *out) {
    int64_t at = (int64_t)loop->at, n = (int64_t)loop->n;
    *out = fl_jval_undefined(name);
    if (fl_jstr_is(name, "index")) *out = fl_jval_int(at + 1, true);
    else if (fl_jstr_is(name, "index0")) *out = fl_jval_int(at, true);
    else if (fl_jstr_is(name, "revindex")) *out = fl_jval_int(n - at, true);
    else if (fl_jstr_is(name, "revindex0")) *out = fl_jval_int(n - at - 1, true);
    else if (fl_jstr_is(name, "length")) *out = fl_jval_int(n, true);
    else if (fl_jstr_is(name, "first")) *out = fl_jval_bool(at == 0);
    else if (fl_jstr_is(name, "last")) *out = fl_jval_bool(at == n - 1);
    else if (fl_jstr_is(name, "previtem")) *out = at > 0 ? loop->items[at - 1] : *out;
    else if (fl_jstr_is(name, "nextitem")) *out = at < n - 1 ? loop->items[at + 1] : *out;
    else {
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "chat template line %" PRIu32 ": the loop attribute '%.*s' is not supported",
                       run->line, (int)(name->n < 40 ? name->n : 40), name->bytes);
    }
    return FL_ERR_OK;
}

static fl_err refuse_method(const fl_jrun *run, const fl_jval *object, const fl_jstr *name) {
    if (!fl_jbuiltin_is_python_method(object, name)) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_UNSUPPORTED,
                   "chat template line %" PRIu32
                   ": the method '%.*s' of a %s without a call is not supported",
                   run->line, (int)name->n, name->bytes, fl_jval_kind_name(object));
}

fl_err fl_jop_attribute(fl_jrun *run, const fl_jval *object, const fl_jstr *name, fl_jval *out) {
    if (object->kind == FL_JUNDEFINED) return fl_jval_fail_undefined(run, object);
    if (object->kind == FL_JLOOP) return loop_attribute(run, object->as.loop, name, out);
    *out = fl_jval_undefined(name);
    FL_TRY(refuse_method(run, object, name));
    if (object->kind != FL_JDICT && object->kind != FL_JNAMESPACE) return FL_ERR_OK;
    const fl_jval key = fl_jval_str(name), *found;
    FL_TRY(fl_jval_find(run, object, &key, &found));
    if (found != NULL) *out = *found;
    return FL_ERR_OK;
}

static fl_err character(fl_jrun *run, const fl_jstr *str, int64_t index, fl_jval *out) {
    FL_TRY(fl_jrun_charge(run, str->n));
    if (index < 0) index += (int64_t)fl_jstr_length(str->bytes, str->n);
    if (index < 0) return FL_ERR_OK;
    size_t at = fl_jstr_offset(str->bytes, str->n, (size_t)index);
    if (at >= str->n) return FL_ERR_OK;
    uint32_t c;
    const fl_jstr *slice;
    FL_TRY(fl_jstr_slice(run, str, at, at + fl_jstr_char(str->bytes + at, str->n - at, &c), &slice));
    *out = fl_jval_str(slice);
    return FL_ERR_OK;
}

fl_err fl_jop_index(fl_jrun *run, const fl_jval *object, const fl_jval *key, fl_jval *out) {
    bool number = key->kind == FL_JINT || key->kind == FL_JBOOL;
    if (object->kind == FL_JUNDEFINED) return fl_jval_fail_undefined(run, object);
    *out = fl_jval_undefined(key->kind == FL_JSTR ? key->as.str : NULL);
    if (object->kind == FL_JDICT) {
        const fl_jval *found;
        FL_TRY(fl_jval_find(run, object, key, &found));
        if (found != NULL) {
            *out = *found;
            return FL_ERR_OK;
        }
    }
    if (key->kind == FL_JSTR) return fl_jop_attribute(run, object, key->as.str, out);
    if (object->kind == FL_JSTR && number) return character(run, object->as.str, integer_of(key), out);
    if (object->kind == FL_JLIST && number) {
        const fl_jlist *list = object->as.list;
        int64_t at = integer_of(key);
        if (at < 0) at += (int64_t)list->n;
        if (at >= 0 && (uint64_t)at < list->n) *out = list->items[at];
    }
    return FL_ERR_OK;
}

/* ---- slices -------------------------------------------------------------------------------------------- */

typedef struct slice {
    int64_t begin, step;
    size_t n; /* items: begin, begin + step, ... */
} slice;

static int64_t clamp(int64_t at, int64_t n, int64_t low, int64_t high) {
    if (at < 0) at += n;
    return at < low ? low : at > high ? high : at;
}

static fl_err resolve(fl_jrun *run, const fl_jval *bounds, size_t length, slice *out) {
    int64_t given[3] = {0, 0, 1}, n = (int64_t)length;
    bool is_given[3];
    for (size_t i = 0; i < 3; i++) {
        is_given[i] = bounds[i].kind != FL_JABSENT && bounds[i].kind != FL_JNONE;
        FL_TRY(fl_jarg_int(run, &bounds[i], "a slice", given[i], &given[i]));
    }
    int64_t step = given[2];
    if (step == 0)
        return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": a slice with a step of 0", run->line);
    if (step < -n - 1) step = -n - 1; /* beyond the ends anyway, and safe to negate and add */
    if (step > n + 1) step = n + 1;
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    int64_t begin = is_given[0] ? clamp(given[0], n, low, high) : step > 0 ? low : high;
    int64_t end = is_given[1] ? clamp(given[1], n, low, high) : step > 0 ? high : low;
    int64_t distance = step > 0 ? end - begin : begin - end, stride = step > 0 ? step : -step;
    *out =
        (slice){.begin = begin, .step = step, .n = distance > 0 ? (size_t)((distance - 1) / stride + 1) : 0};
    return FL_ERR_OK;
}

static fl_err slice_string(fl_jrun *run, const fl_jstr *str, const slice *s, fl_jval *out) {
    if (s->step == 1) {
        size_t begin = fl_jstr_offset(str->bytes, str->n, (size_t)s->begin);
        size_t n = fl_jstr_offset(str->bytes + begin, str->n - begin, s->n);
        const fl_jstr *made;
        FL_TRY(fl_jstr_slice(run, str, begin, begin + n, &made));
        *out = fl_jval_str(made);
        return FL_ERR_OK;
    }
    const fl_jval whole = fl_jval_str(str), *chars;
    size_t n_chars;
    FL_TRY(fl_jval_items(run, &whole, &chars, &n_chars));
    fl_jval *items = fl_jarena_alloc(&run->arena, s->n, sizeof *items);
    if (items == NULL) return fl_jarena_error(&run->arena);
    for (size_t i = 0; i < s->n; i++) items[i] = chars[s->begin + (int64_t)i * s->step];
    return fl_jtext_join(run, &(fl_jstr){.bytes = ""}, items, s->n, true, out);
}

fl_err fl_jop_slice(fl_jrun *run, const fl_jval *object, const fl_jval *bounds, fl_jval *out) {
    slice s;
    if (object->kind == FL_JSTR) {
        const fl_jstr *str = object->as.str;
        FL_TRY(fl_jrun_charge(run, str->n));
        FL_TRY(resolve(run, bounds, fl_jstr_length(str->bytes, str->n), &s));
        return slice_string(run, str, &s, out);
    }
    if (object->kind != FL_JLIST) return fl_jval_fail_kind(run, "a slice", "a string or list", object);
    const fl_jlist *list = object->as.list;
    FL_TRY(resolve(run, bounds, list->n, &s));
    fl_jval *items = fl_jarena_alloc(&run->arena, s.n, sizeof *items);
    if (items == NULL) return fl_jarena_error(&run->arena);
    for (size_t i = 0; i < s.n; i++) items[i] = list->items[s.begin + (int64_t)i * s.step];
    return fl_jval_from_items(run, items, s.n, list->tuple, out);
}
