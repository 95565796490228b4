/* JSON numbers digit by digit, within bounds or without. */
#include <string.h>

#include "text/schema_impl.h"

/* Where a number is; with bounds also its sign and how it stands to them (frame.at), digits of the part in
 * frame.count. */
enum {
    SIGN,
    ZERO,
    WHOLE,
    POINT,
    FRACTION,
    EXPONENT, /* behind e */
    EXPONENT_SIGN,
    EXPONENT_DIGITS,
    PART = 15, /* mask */
    SIGN_BIT = 16,
    STANDS_SHIFT = 5,
    WHOLE_SHIFT = 8, /* behind the point count also holds the digits before it */
    DIGITS_MASK = 255,
    EXPONENT_MAX = 2,
};

enum { LESS, EQUAL, MORE }; /* digits so far, against a bound */

/* --- without bounds ------------------------------------------------------------------------------------------- */

static int free_step(int part, uint32_t count, uint8_t byte) {
    bool digit = byte >= '0' && byte <= '9', e = byte == 'e' || byte == 'E',
         after = part == ZERO || part == WHOLE;
    if (part == SIGN) return !digit ? -1 : byte == '0' ? ZERO : WHOLE;
    if (after && byte == '.') return POINT;
    if ((after || part == FRACTION) && e) return EXPONENT;
    if (part == EXPONENT && (byte == '+' || byte == '-')) return EXPONENT_SIGN;
    if (!digit || part == ZERO) return -1;
    if (part == WHOLE) return count < FL_SCHEMA_DIGITS_MAX ? WHOLE : -1;
    if (part == POINT || part == FRACTION) return count < FL_SCHEMA_DIGITS_MAX ? FRACTION : -1;
    return count < EXPONENT_MAX ? EXPONENT_DIGITS : -1;
}

static bool free_take(fl_schema_frame *f, uint8_t byte) {
    int part = free_step(f->at, f->count, byte);
    if (part < 0) return false;
    bool digit = byte >= '0' && byte <= '9', same = part == f->at || f->at == POINT || f->at >= EXPONENT;
    f->count = digit ? (same ? f->count : 0) + 1 : 0;
    f->at = (uint16_t)part;
    return true;
}

/* --- within bounds -------------------------------------------------------------------------------------------- */

static int stand(int before, int digit, const char *bound, int n_bound, int at) {
    int other = at < n_bound ? bound[at] : '0';
    if (before != EQUAL || digit == other) return before;
    return digit < other ? LESS : MORE;
}

/* A whole part of n digits that stood so to a bound's first n digits, against all of its whole part. */
static int stand_whole(int before, int n, const fl_schema_decimal *bound) {
    return n < bound->n_whole ? LESS : n > bound->n_whole ? MORE : before;
}

static bool is_rest_zero(const fl_schema_decimal *bound, int at) {
    for (int i = at; i < bound->n_fraction; i++)
        if (bound->fraction[i] != '0') return false;
    return true;
}

/* Whether the number may end behind n digits of its fraction. */
static bool is_inside(const fl_schema_side *side, int to_lower, int to_upper, int n) {
    bool zero = is_rest_zero(&side->lower, n);
    if (to_lower == LESS || (to_lower == EQUAL && (!zero || side->lower_strict))) return false;
    if (side->unbounded) return true;
    zero = is_rest_zero(&side->upper, n);
    return to_upper == LESS || (to_upper == EQUAL && (!zero || !side->upper_strict));
}

static bool is_live(uint16_t live, int to_lower, int to_upper) {
    return live >> (3 * to_lower + to_upper) & 1;
}

static int digits_max(bool integer) {
    return integer ? FL_SCHEMA_DIGITS_MAX : FL_SCHEMA_EXACT_DIGITS;
}

/* How a number of `whole` digits stands to the bounds when one more digit comes behind its point. */
static bool is_next_live(const fl_schema_side *side, int to_lower, int to_upper, int whole, int n) {
    for (int digit = '0'; digit <= '9'; digit++) {
        int low = stand(to_lower, digit, side->lower.fraction, side->lower.n_fraction, n);
        int high = stand(to_upper, digit, side->upper.fraction, side->upper.n_fraction, n);
        if (is_live(side->live_fraction[whole][n + 1], low, high)) return true;
    }
    return false;
}

static bool is_whole_live(const fl_schema_side *side, int to_lower, int to_upper, int n, int n_max) {
    int low = stand_whole(to_lower, n, &side->lower), high = stand_whole(to_upper, n, &side->upper);
    if (is_live(side->live_fraction[n][0], low, high)) return true;
    for (int digit = '0'; digit <= '9' && n < n_max; digit++) {
        low = stand(to_lower, digit, side->lower.whole, side->lower.n_whole, n);
        high = stand(to_upper, digit, side->upper.whole, side->upper.n_whole, n);
        if (is_live(side->live_whole[n + 1], low, high)) return true;
    }
    return false;
}

void fl_schema_side_finish(fl_schema_side *side, bool integer) {
    int n_max = digits_max(integer);
    for (int whole = 0; whole <= n_max; whole++)
        for (int n = integer ? 0 : n_max - whole; n >= 0; n--)
            for (int i = 0; i < 9; i++) {
                bool more = !integer && whole + n < n_max && is_next_live(side, i / 3, i % 3, whole, n);
                if (more || is_inside(side, i / 3, i % 3, n))
                    side->live_fraction[whole][n] |= (uint16_t)(1u << i);
            }
    for (int n = n_max; n >= 1; n--)
        for (int i = 0; i < 9; i++)
            if (is_whole_live(side, i / 3, i % 3, n, n_max)) side->live_whole[n] |= (uint16_t)(1u << i);
}

static void put(fl_schema_frame *f, int part, int to_lower, int to_upper) {
    f->at = (uint16_t)(part | (f->at & SIGN_BIT) | (3 * to_lower + to_upper) << STANDS_SHIFT);
}

/* The first digit. */
static bool bound_first(const fl_schema_side *side, fl_schema_frame *f, uint8_t byte) {
    if (byte < '0' || byte > '9') return false;
    if (byte == '0') {
        int low = stand_whole(EQUAL, 0, &side->lower), high = stand_whole(EQUAL, 0, &side->upper);
        put(f, ZERO, low, high);
        return is_live(side->live_fraction[0][0], low, high);
    }
    int low = stand(EQUAL, byte, side->lower.whole, side->lower.n_whole, 0);
    int high = stand(EQUAL, byte, side->upper.whole, side->upper.n_whole, 0);
    put(f, WHOLE, low, high);
    f->count = 1;
    return is_live(side->live_whole[1], low, high);
}

/* To the point behind n digits: some digit must be able to follow. */
static bool bound_point(const fl_schema_side *side, fl_schema_frame *f, int low, int high) {
    int whole = (int)f->count;
    put(f, POINT, low, high);
    f->count <<= WHOLE_SHIFT;
    return whole < FL_SCHEMA_EXACT_DIGITS && is_next_live(side, low, high, whole, 0);
}

static bool bound_whole_digit(const fl_schema_side *side, fl_schema_frame *f, uint8_t byte, int n_max) {
    int stands = f->at >> STANDS_SHIFT, n = (int)f->count;
    if (n == n_max) return false;
    int low = stand(stands / 3, byte, side->lower.whole, side->lower.n_whole, n);
    int high = stand(stands % 3, byte, side->upper.whole, side->upper.n_whole, n);
    put(f, WHOLE, low, high);
    f->count++;
    return is_live(side->live_whole[n + 1], low, high);
}

static bool bound_fraction_digit(const fl_schema_side *side, fl_schema_frame *f, uint8_t byte) {
    int stands = f->at >> STANDS_SHIFT, whole = (int)(f->count >> WHOLE_SHIFT),
        n = (int)(f->count & DIGITS_MASK);
    if (whole + n == FL_SCHEMA_EXACT_DIGITS) return false;
    int low = stand(stands / 3, byte, side->lower.fraction, side->lower.n_fraction, n);
    int high = stand(stands % 3, byte, side->upper.fraction, side->upper.n_fraction, n);
    put(f, FRACTION, low, high);
    f->count++;
    return is_live(side->live_fraction[whole][n + 1], low, high);
}

static bool bound_take(const fl_schema_bounds *b, fl_schema_frame *f, uint8_t byte) {
    int part = f->at & PART, stands = f->at >> STANDS_SHIFT, low = stands / 3, high = stands % 3;
    const fl_schema_side *side = &b->side[(f->at & SIGN_BIT) != 0];
    int n = (int)f->count;
    if (part == SIGN) return bound_first(side, f, byte);
    if (byte == '.' && !b->integer && part == ZERO) return bound_point(side, f, low, high);
    if (byte == '.' && !b->integer && part == WHOLE)
        return bound_point(side, f, stand_whole(low, n, &side->lower), stand_whole(high, n, &side->upper));
    if (byte < '0' || byte > '9' || part == ZERO) return false;
    return part == WHOLE ? bound_whole_digit(side, f, byte, digits_max(b->integer))
                         : bound_fraction_digit(side, f, byte);
}

static bool bound_may_end(const fl_schema_bounds *b, const fl_schema_frame *f) {
    int part = f->at & PART, stands = f->at >> STANDS_SHIFT, low = stands / 3, high = stands % 3;
    const fl_schema_side *side = &b->side[(f->at & SIGN_BIT) != 0];
    int n = (int)f->count;
    if (part == WHOLE)
        return is_inside(side, stand_whole(low, n, &side->lower), stand_whole(high, n, &side->upper), 0);
    return (part == ZERO || part == FRACTION) && is_inside(side, low, high, n & DIGITS_MASK);
}

/* Behind a minus some digit must be able to follow. */
static bool is_sign_live(const fl_schema_bounds *b) {
    for (int digit = '0'; digit <= '9'; digit++) {
        fl_schema_frame f = {.at = SIGN_BIT};
        if (bound_first(&b->side[1], &f, (uint8_t)digit)) return true;
    }
    return false;
}

/* --- both ----------------------------------------------------------------------------------------------------- */

bool fl_schema_number_begin(const fl_schema *s, const fl_schema_node *node, uint8_t byte,
                            fl_schema_frame *f) {
    const fl_schema_bounds *b = node->detail != FL_SCHEMA_NONE ? &s->bounds[node->detail] : NULL;
    f->at = byte == '-' && b ? SIGN | SIGN_BIT : SIGN;
    f->count = 0;
    if (byte == '-') return !b || is_sign_live(b);
    return b ? bound_take(b, f, byte) : free_take(f, byte);
}

fl_schema_move fl_schema_number_step(const fl_schema *s, const fl_schema_node *node, fl_schema_frame *f,
                                     uint8_t byte) {
    fl_schema_frame next = *f;
    bool free = node->detail == FL_SCHEMA_NONE;
    if (!(free ? free_take(&next, byte) : bound_take(&s->bounds[node->detail], &next, byte)))
        return FL_SCHEMA_REFUSED;
    *f = next;
    return FL_SCHEMA_GOES_ON;
}

bool fl_schema_number_may_end(const fl_schema *s, const fl_schema_node *node, const fl_schema_frame *f) {
    if (node->detail != FL_SCHEMA_NONE) return bound_may_end(&s->bounds[node->detail], f);
    return f->at == ZERO || f->at == WHOLE || f->at == FRACTION || f->at == EXPONENT_DIGITS;
}
