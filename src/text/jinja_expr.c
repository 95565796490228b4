/* Expressions. From loosest to tightest: if-else, or, and, not, comparisons, + -, ~, * / // %, signs, then
 * calls, attributes, indices, and last filters and tests. Chains of equal precedence become one node with
 * many items, so that long ones are not deep. */
#include "text/jinja_parser.h"

#include "text/jinja_str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Arguments of a call as written. */
typedef struct arguments {
    fl_jnodes values;      /* positional ones first */
    const fl_jstr **names; /* [cap_names] names[i] belongs to values[n_positional + i] */
    size_t n_positional, n_names, cap_names;
} arguments;

static fl_err parse_unary(fl_jparser *ps, bool filters, const fl_jnode **out);

/* ---- calls --------------------------------------------------------------------------------------------- */

static fl_err parse_argument(fl_jparser *ps, arguments *args) {
    fl_jarena *arena = &ps->jinja->arena;
    const fl_jnode *value = NULL;
    if (fl_jparser_at_operator(ps, "*") || fl_jparser_at_operator(ps, "**")) {
        return fl_jparser_fail_unsupported(ps->token->line, "the argument prefix", ps->token->text,
                                           ps->token->n);
    }
    const fl_jtoken *next = ps->token + (ps->token->kind != FL_JTOK_END);
    if (ps->token->kind == FL_JTOK_NAME && next->kind == FL_JTOK_OPERATOR && next->n == 1 &&
        next->text[0] == '=') {
        fl_jval name;
        FL_TRY(fl_jparser_text(ps, ps->token, &name));
        ps->token += 2;
        if (args->n_names == args->cap_names) {
            const fl_jstr **grown =
                fl_jarena_grow(arena, args->names, args->n_names, sizeof(fl_jstr *), &args->cap_names);
            if (grown == NULL) return fl_jarena_error(arena);
            args->names = grown;
        }
        args->names[args->n_names++] = name.as.str;
    } else if (args->n_names > 0) {
        return fl_jparser_fail_expected(ps, "a named argument");
    } else {
        args->n_positional++;
    }
    FL_TRY(fl_jparser_expression(ps, &value));
    return fl_jparser_push(ps, &args->values, value);
}

/* The arguments of a call, "(" included. */
static fl_err parse_arguments(fl_jparser *ps, arguments *args) {
    FL_TRY(fl_jparser_expect_operator(ps, "("));
    while (!fl_jparser_skip_operator(ps, ")")) {
        FL_TRY(parse_argument(ps, args));
        if (!fl_jparser_at_operator(ps, ")")) FL_TRY(fl_jparser_expect_operator(ps, ","));
    }
    return FL_ERR_OK;
}

static int count_params(const fl_jbuiltin *builtin) {
    int n = 0;
    while (n < FL_JPARAMS_MAX && builtin->params[n] != NULL) n++;
    return n;
}

/* Puts each argument at its parameter's place: items[first + parameter]. */
static fl_err bind_arguments(fl_jparser *ps, fl_jnode *node, const fl_jnode *operand, const arguments *args) {
    const fl_jbuiltin *builtin = node->builtin;
    fl_jarena *arena = &ps->jinja->arena;
    int n_params = count_params(builtin);
    size_t first = operand != NULL;
    if (args->n_positional > (size_t)n_params) {
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "chat template line %" PRIu32
                       ": '%s' with %zu arguments is not supported (at most %d)",
                       node->line, builtin->name, args->n_positional, n_params);
    }
    node->n_items = first + (size_t)n_params;
    node->items = fl_jarena_alloc(arena, node->n_items, sizeof(fl_jnode *));
    if (node->items == NULL) return fl_jarena_error(arena);
    if (operand != NULL) node->items[0] = operand;
    for (size_t i = 0; i < args->values.n; i++) {
        size_t at = i;
        if (i >= args->n_positional) {
            const fl_jstr *name = args->names[i - args->n_positional];
            for (at = 0; at < (size_t)n_params && !fl_jstr_is(name, builtin->params[at]); at++) continue;
            if (at == (size_t)n_params || node->items[first + at] != NULL) {
                return FL_FAIL(FL_ERR_UNSUPPORTED,
                               "chat template line %" PRIu32 ": the argument '%.*s' of '%s' is not supported",
                               node->line, (int)(name->n < 40 ? name->n : 40), name->bytes, builtin->name);
            }
        }
        node->items[first + at] = args->values.items[i];
    }
    for (int i = 0; i < builtin->n_required; i++) {
        if (node->items[first + (size_t)i] != NULL) continue;
        return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": '%s' lacks its argument '%s'",
                       node->line, builtin->name, builtin->params[i]);
    }
    for (size_t i = 0; i < node->n_items; i++) FL_TRY(fl_jparser_adopt(ps, node, node->items[i]));
    return FL_ERR_OK;
}

static fl_err note_macro_call(fl_jparser *ps, const fl_jnode *node) {
    fl_jnodes calls = {.items = ps->calls, .n = ps->n_calls, .cap = ps->cap_calls};
    FL_TRY(fl_jparser_push(ps, &calls, node));
    ps->calls = calls.items;
    ps->n_calls = calls.n;
    ps->cap_calls = calls.cap;
    return FL_ERR_OK;
}

/* NAME ( ... ), `name` being the token before. */
static fl_err parse_call(fl_jparser *ps, const fl_jtoken *name, uint32_t symbol, const fl_jnode **out) {
    fl_jnode *node = NULL;
    arguments args = {0};
    const fl_jstr text = {.bytes = name->text, .n = name->n};
    FL_TRY(fl_jparser_node(ps, FL_JNODE_MACRO_CALL, &node));
    FL_TRY(parse_arguments(ps, &args));
    *out = node;
    node->builtin = fl_jbuiltin_function(name->text, name->n);
    if (node->builtin != NULL) {
        node->kind = FL_JNODE_FUNCTION;
        return bind_arguments(ps, node, NULL, &args);
    }
    node->symbol = symbol;
    node->names = args.names;
    node->n_positional = args.n_positional;
    FL_TRY(fl_jparser_give(ps, node, &args.values));
    if (!fl_jstr_is(&text, "namespace") && !fl_jstr_is(&text, "dict")) return note_macro_call(ps, node);
    if (args.n_positional > 0) {
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "chat template line %" PRIu32 ": an unnamed argument of '%.*s' is not supported",
                       node->line, (int)text.n, text.bytes);
    }
    node->kind = fl_jstr_is(&text, "dict") ? FL_JNODE_DICT_CALL : FL_JNODE_NAMESPACE;
    return FL_ERR_OK;
}

/* ---- primary expressions ------------------------------------------------------------------------------- */

static fl_err parse_name(fl_jparser *ps, const fl_jnode **out) {
    static const struct {
        const char *name;
        int constant; /* 0 and 1: a boolean, 2: none, 3: not an expression */
    } words[] = {{"true", 1}, {"True", 1}, {"false", 0}, {"False", 0}, {"none", 2}, {"None", 2}, {"and", 3},
                 {"or", 3},   {"not", 3},  {"in", 3},    {"is", 3},    {"if", 3},   {"else", 3}};
    fl_jnode *node = NULL;
    const fl_jtoken *name = ps->token;
    FL_TRY(fl_jparser_node(ps, FL_JNODE_CONST, &node));
    *out = node;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (!fl_jparser_at_name(ps, words[i].name)) continue;
        if (words[i].constant == 3) return fl_jparser_fail_expected(ps, "an expression");
        node->value = words[i].constant == 2 ? fl_jval_none() : fl_jval_bool(words[i].constant == 1);
        ps->token++;
        return FL_ERR_OK;
    }
    node->kind = FL_JNODE_NAME;
    FL_TRY(fl_jparser_symbol(ps, name, &node->symbol));
    ps->token++;
    if (fl_jparser_at_operator(ps, "(")) return parse_call(ps, name, node->symbol, out);
    return FL_ERR_OK;
}

/* Adjacent string literals are one string. */
static fl_err parse_strings(fl_jparser *ps, fl_jval *out) {
    fl_jarena *arena = &ps->jinja->arena;
    const fl_jtoken *first = ps->token;
    size_t n = 0;
    for (; ps->token->kind == FL_JTOK_STRING; ps->token++) n += ps->token->n;
    char *bytes = fl_jarena_alloc(arena, n, 1);
    if (bytes == NULL) return fl_jarena_error(arena);
    n = 0;
    for (const fl_jtoken *token = first; token < ps->token; token++) {
        memcpy(bytes + n, token->text, token->n);
        n += token->n;
    }
    return fl_jval_from_marked(arena, bytes, n, FL_JORIGIN_TEMPLATE, out);
}

static fl_err parse_number(fl_jparser *ps, fl_jval *out) {
    const fl_jtoken *token = ps->token++;
    if (token->kind == FL_JTOK_INT) {
        int64_t value = 0;
        for (size_t i = 0; i < token->n; i++) {
            if (__builtin_mul_overflow(value, 10, &value) ||
                __builtin_add_overflow(value, token->text[i] - '0', &value)) {
                return fl_jparser_fail_unsupported(token->line, "the large number", token->text, token->n);
            }
        }
        *out = fl_jval_int(value, true);
        return FL_ERR_OK;
    }
    /* strtod wants the locale's decimal point, so the number is given to it without one: 1.25e3 as 125e1. */
    char text[80];
    size_t n = 0, fraction = 0;
    long exponent = 0;
    bool point = false;
    if (token->n > 40)
        return fl_jparser_fail_unsupported(token->line, "the long number", token->text, token->n);
    for (size_t i = 0; i < token->n; i++) {
        char c = token->text[i];
        if (c == 'e' || c == 'E') {
            char digits[48] = {0};
            memcpy(digits, token->text + i + 1, token->n - i - 1);
            exponent = strtol(digits, NULL, 10);
            break;
        }
        if (c == '.') point = true;
        else text[n++] = c;
        fraction += point && c != '.';
    }
    if (exponent > 9999) exponent = 9999;
    if (exponent < -9999) exponent = -9999;
    snprintf(text + n, sizeof text - n, "e%ld", exponent - (long)fraction);
    *out = fl_jval_float(strtod(text, NULL), true);
    return FL_ERR_OK;
}

/* Expressions up to `closer`, which may follow a last comma. */
static fl_err parse_items(fl_jparser *ps, const char *closer, fl_jnodes *nodes) {
    while (!fl_jparser_skip_operator(ps, closer)) {
        const fl_jnode *item = NULL;
        FL_TRY(fl_jparser_expression(ps, &item));
        FL_TRY(fl_jparser_push(ps, nodes, item));
        if (!fl_jparser_at_operator(ps, closer)) FL_TRY(fl_jparser_expect_operator(ps, ","));
    }
    return FL_ERR_OK;
}

static fl_err parse_list(fl_jparser *ps, const fl_jnode **out) {
    fl_jnode *node = NULL;
    fl_jnodes nodes = {0};
    FL_TRY(fl_jparser_node(ps, FL_JNODE_LIST, &node));
    ps->token++;
    FL_TRY(parse_items(ps, "]", &nodes));
    *out = node;
    return fl_jparser_give(ps, node, &nodes);
}

/* (a) is a itself; (), (a,) and (a, b) are tuples. */
static fl_err parse_parentheses(fl_jparser *ps, const fl_jnode **out) {
    fl_jnode *node = NULL;
    fl_jnodes nodes = {0};
    FL_TRY(fl_jparser_node(ps, FL_JNODE_LIST, &node));
    ps->token++;
    FL_TRY(parse_items(ps, ")", &nodes));
    const fl_jtoken *before = ps->token - 2; /* what is before ")" */
    bool comma = before->kind == FL_JTOK_OPERATOR && before->text[0] == ',';
    if (nodes.n == 1 && !comma) {
        *out = nodes.items[0];
        return FL_ERR_OK;
    }
    node->flag = true;
    *out = node;
    return fl_jparser_give(ps, node, &nodes);
}

static fl_err parse_dict(fl_jparser *ps, const fl_jnode **out) {
    fl_jnode *node = NULL;
    fl_jnodes nodes = {0};
    FL_TRY(fl_jparser_node(ps, FL_JNODE_DICT, &node));
    ps->token++;
    while (!fl_jparser_skip_operator(ps, "}")) {
        const fl_jnode *key = NULL, *value = NULL;
        FL_TRY(fl_jparser_expression(ps, &key));
        FL_TRY(fl_jparser_expect_operator(ps, ":"));
        FL_TRY(fl_jparser_expression(ps, &value));
        FL_TRY(fl_jparser_push(ps, &nodes, key));
        FL_TRY(fl_jparser_push(ps, &nodes, value));
        if (!fl_jparser_at_operator(ps, "}")) FL_TRY(fl_jparser_expect_operator(ps, ","));
    }
    *out = node;
    return fl_jparser_give(ps, node, &nodes);
}

static fl_err parse_primary(fl_jparser *ps, const fl_jnode **out) {
    fl_jnode *node = NULL;
    switch (ps->token->kind) {
    case FL_JTOK_NAME: return parse_name(ps, out);
    case FL_JTOK_STRING:
    case FL_JTOK_INT:
    case FL_JTOK_FLOAT:
        FL_TRY(fl_jparser_node(ps, FL_JNODE_CONST, &node));
        *out = node;
        if (ps->token->kind == FL_JTOK_STRING) return parse_strings(ps, &node->value);
        return parse_number(ps, &node->value);
    default: break;
    }
    if (fl_jparser_at_operator(ps, "(")) return parse_parentheses(ps, out);
    if (fl_jparser_at_operator(ps, "[")) return parse_list(ps, out);
    if (fl_jparser_at_operator(ps, "{")) return parse_dict(ps, out);
    return fl_jparser_fail_expected(ps, "an expression");
}

/* ---- what follows a primary ---------------------------------------------------------------------------- */

static bool is_loop_attribute(const fl_jtoken *name) {
    static const char *const known[] = {"index", "index0", "revindex", "revindex0", "first",
                                        "last",  "length", "previtem", "nextitem"};
    const fl_jstr text = {.bytes = name->text, .n = name->n};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (fl_jstr_is(&text, known[i])) return true;
    }
    return false;
}

/* object . name, object . name ( ... ), object . 0; `token` is behind the dot. */
static fl_err parse_attribute(fl_jparser *ps, const fl_jnode *object, const fl_jnode **out) {
    const fl_jtoken *name = ps->token;
    fl_jnode *node = NULL, *index = NULL;
    FL_TRY(fl_jparser_node(ps, FL_JNODE_ATTRIBUTE, &node));
    *out = node;
    if (name->kind == FL_JTOK_INT) {
        FL_TRY(fl_jparser_node(ps, FL_JNODE_CONST, &index));
        FL_TRY(parse_number(ps, &index->value));
        *node = (fl_jnode){.kind = FL_JNODE_INDEX, .line = node->line, .depth = 2, .a = object, .b = index};
        return fl_jparser_adopt(ps, node, object);
    }
    if (name->kind != FL_JTOK_NAME) return fl_jparser_fail_expected(ps, "an attribute name");
    ps->token++;
    if (fl_jparser_at_operator(ps, "(")) {
        arguments args = {0};
        node->kind = FL_JNODE_METHOD;
        node->builtin = fl_jbuiltin_method(name->text, name->n);
        if (node->builtin == NULL)
            return fl_jparser_fail_unsupported(name->line, "the method", name->text, name->n);
        FL_TRY(parse_arguments(ps, &args));
        return bind_arguments(ps, node, object, &args);
    }
    bool of_loop = object->kind == FL_JNODE_NAME && object->symbol == FL_JSYMBOL_LOOP;
    if (of_loop && !is_loop_attribute(name)) {
        return fl_jparser_fail_unsupported(name->line, "the loop attribute", name->text, name->n);
    }
    node->a = object;
    FL_TRY(fl_jparser_text(ps, name, &node->value));
    return fl_jparser_adopt(ps, node, object);
}

/* object [ index ], object [ a : b : c ]; `token` is behind the bracket. */
static fl_err parse_subscript(fl_jparser *ps, const fl_jnode *object, const fl_jnode **out) {
    fl_jnode *node = NULL;
    fl_jnodes parts = {0};
    bool colon = false;
    FL_TRY(fl_jparser_node(ps, FL_JNODE_INDEX, &node));
    for (size_t i = 0; i < 3; i++) {
        const fl_jnode *part = NULL;
        if (!fl_jparser_at_operator(ps, ":") && !fl_jparser_at_operator(ps, "]"))
            FL_TRY(fl_jparser_expression(ps, &part));
        FL_TRY(fl_jparser_push(ps, &parts, part));
        if (i == 2 || !fl_jparser_skip_operator(ps, ":")) break;
        colon = true;
    }
    node->a = object;
    *out = node;
    FL_TRY(fl_jparser_adopt(ps, node, object));
    if (colon) {
        node->kind = FL_JNODE_SLICE;
        while (parts.n < 3) FL_TRY(fl_jparser_push(ps, &parts, NULL));
        FL_TRY(fl_jparser_give(ps, node, &parts));
    } else if (parts.items[0] != NULL) {
        node->b = parts.items[0];
        FL_TRY(fl_jparser_adopt(ps, node, node->b));
    } else {
        return fl_jparser_fail_expected(ps, "an index");
    }
    return fl_jparser_expect_operator(ps, "]");
}

static fl_err parse_postfix(fl_jparser *ps, const fl_jnode **node) {
    for (;;) {
        if (fl_jparser_skip_operator(ps, ".")) FL_TRY(parse_attribute(ps, *node, node));
        else if (fl_jparser_skip_operator(ps, "[")) FL_TRY(parse_subscript(ps, *node, node));
        else break;
    }
    if (fl_jparser_at_operator(ps, "(")) {
        return fl_jparser_fail_unsupported(ps->token->line, "a call of a value by", "(", 1);
    }
    return FL_ERR_OK;
}

/* `token` is behind "|". */
static fl_err parse_filter(fl_jparser *ps, const fl_jnode *operand, const fl_jnode **out) {
    const fl_jtoken *name = ps->token;
    fl_jnode *node = NULL;
    arguments args = {0};
    if (name->kind != FL_JTOK_NAME) return fl_jparser_fail_expected(ps, "a filter");
    FL_TRY(fl_jparser_node(ps, FL_JNODE_FILTER, &node));
    node->builtin = fl_jbuiltin_filter(name->text, name->n);
    if (node->builtin == NULL)
        return fl_jparser_fail_unsupported(name->line, "the filter", name->text, name->n);
    ps->token++;
    if (fl_jparser_at_operator(ps, "(")) FL_TRY(parse_arguments(ps, &args));
    *out = node;
    return bind_arguments(ps, node, operand, &args);
}

/* Does the token begin a test's argument written without parentheses (`x is divisibleby 3`)? */
static bool at_bare_argument(const fl_jparser *ps) {
    switch (ps->token->kind) {
    case FL_JTOK_STRING:
    case FL_JTOK_INT:
    case FL_JTOK_FLOAT: return true;
    case FL_JTOK_NAME:
        return !fl_jparser_at_name(ps, "else") && !fl_jparser_at_name(ps, "or") &&
               !fl_jparser_at_name(ps, "and");
    default: return fl_jparser_at_operator(ps, "[") || fl_jparser_at_operator(ps, "{");
    }
}

/* `token` is behind "is". */
static fl_err parse_test(fl_jparser *ps, const fl_jnode *operand, const fl_jnode **out) {
    fl_jnode *node = NULL;
    arguments args = {0};
    FL_TRY(fl_jparser_node(ps, FL_JNODE_TEST, &node));
    node->flag = fl_jparser_skip_name(ps, "not");
    const fl_jtoken *name = ps->token;
    if (name->kind != FL_JTOK_NAME) return fl_jparser_fail_expected(ps, "a test");
    node->builtin = fl_jbuiltin_test(name->text, name->n);
    if (node->builtin == NULL)
        return fl_jparser_fail_unsupported(name->line, "the test", name->text, name->n);
    ps->token++;
    if (fl_jparser_at_operator(ps, "(")) {
        FL_TRY(parse_arguments(ps, &args));
    } else if (node->builtin->n_required > 0 && at_bare_argument(ps)) {
        const fl_jnode *argument = operand; /* replaced below */
        FL_TRY(parse_primary(ps, &argument));
        FL_TRY(parse_postfix(ps, &argument));
        FL_TRY(fl_jparser_push(ps, &args.values, argument));
        args.n_positional = 1;
    }
    *out = node;
    return bind_arguments(ps, node, operand, &args);
}

static fl_err parse_filters(fl_jparser *ps, const fl_jnode **node) {
    for (;;) {
        if (fl_jparser_skip_operator(ps, "|")) FL_TRY(parse_filter(ps, *node, node));
        else if (fl_jparser_skip_name(ps, "is")) FL_TRY(parse_test(ps, *node, node));
        else return FL_ERR_OK;
    }
}

static fl_err parse_unary(fl_jparser *ps, bool filters, const fl_jnode **out) {
    FL_TRY(fl_jparser_enter(ps));
    if (fl_jparser_at_operator(ps, "-") || fl_jparser_at_operator(ps, "+")) {
        fl_jnode *node = NULL;
        FL_TRY(fl_jparser_node(ps, FL_JNODE_SIGN, &node));
        node->flag = fl_jparser_at_operator(ps, "+");
        ps->token++;
        FL_TRY(parse_unary(ps, false, &node->a));
        FL_TRY(fl_jparser_adopt(ps, node, node->a));
        *out = node;
    } else {
        FL_TRY(parse_primary(ps, out));
    }
    FL_TRY(parse_postfix(ps, out));
    if (filters) FL_TRY(parse_filters(ps, out));
    fl_jparser_leave(ps);
    return FL_ERR_OK;
}

/* ---- operators ----------------------------------------------------------------------------------------- */

typedef enum level { LEVEL_COMPARE, LEVEL_ADD, LEVEL_CONCAT, LEVEL_MUL, LEVEL_UNARY } level;

/* Moves past an operator of `at`, if one is there. */
static bool skip_chain_operator(fl_jparser *ps, level at, fl_jop *op) {
    static const struct {
        level at;
        const char *text;
        fl_jop op;
    } operators[] = {
        {LEVEL_COMPARE, "==", FL_JOP_EQ}, {LEVEL_COMPARE, "!=", FL_JOP_NE},
        {LEVEL_COMPARE, "<", FL_JOP_LT},  {LEVEL_COMPARE, "<=", FL_JOP_LE},
        {LEVEL_COMPARE, ">", FL_JOP_GT},  {LEVEL_COMPARE, ">=", FL_JOP_GE},
        {LEVEL_ADD, "+", FL_JOP_ADD},     {LEVEL_ADD, "-", FL_JOP_SUB},
        {LEVEL_CONCAT, "~", FL_JOP_ADD},  {LEVEL_MUL, "*", FL_JOP_MUL},
        {LEVEL_MUL, "/", FL_JOP_DIV},     {LEVEL_MUL, "//", FL_JOP_FLOOR_DIV},
        {LEVEL_MUL, "%", FL_JOP_MOD},
    };
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        if (operators[i].at != at || !fl_jparser_skip_operator(ps, operators[i].text)) continue;
        *op = operators[i].op;
        return true;
    }
    if (at != LEVEL_COMPARE) return false;
    *op = FL_JOP_IN;
    if (fl_jparser_skip_name(ps, "in")) return true;
    const fl_jtoken *token = ps->token;
    *op = FL_JOP_NOT_IN;
    if (!fl_jparser_skip_name(ps, "not")) return false;
    if (fl_jparser_skip_name(ps, "in")) return true;
    ps->token = token;
    return false;
}

/* operand {operator operand} of one level. */
static fl_err parse_chain(fl_jparser *ps, level at, const fl_jnode **out) {
    static const fl_jnode_kind kinds[] = {FL_JNODE_COMPARE, FL_JNODE_ARITH, FL_JNODE_CONCAT, FL_JNODE_ARITH};
    fl_jarena *arena = &ps->jinja->arena;
    if (at == LEVEL_UNARY) {
        FL_TRY(parse_unary(ps, true, out));
        if (!fl_jparser_at_operator(ps, "**")) return FL_ERR_OK;
        return fl_jparser_fail_unsupported(ps->token->line, "the operator", "**", 2);
    }
    fl_jnodes nodes = {0};
    fl_jop op, *ops = NULL;
    size_t n_ops = 0, cap = 0;
    fl_jnode *node = NULL;
    FL_TRY(parse_chain(ps, at + 1, out));
    while (skip_chain_operator(ps, at, &op)) {
        if (node == NULL) {
            FL_TRY(fl_jparser_node(ps, kinds[at], &node));
            FL_TRY(fl_jparser_push(ps, &nodes, *out));
        }
        if (n_ops == cap) {
            ops = fl_jarena_grow(arena, ops, n_ops, sizeof *ops, &cap);
            if (ops == NULL) return fl_jarena_error(arena);
        }
        ops[n_ops++] = op;
        FL_TRY(parse_chain(ps, at + 1, out));
        FL_TRY(fl_jparser_push(ps, &nodes, *out));
    }
    if (node == NULL) return FL_ERR_OK;
    node->ops = ops;
    *out = node;
    return fl_jparser_give(ps, node, &nodes);
}

static fl_err parse_not(fl_jparser *ps, const fl_jnode **out) {
    size_t nots = 0;
    fl_jnode *node = NULL;
    if (fl_jparser_at_name(ps, "not")) FL_TRY(fl_jparser_node(ps, FL_JNODE_NOT, &node));
    while (fl_jparser_skip_name(ps, "not")) nots++;
    FL_TRY(parse_chain(ps, LEVEL_COMPARE, out));
    if (node == NULL) return FL_ERR_OK;
    node->flag = nots % 2 == 0;
    node->a = *out;
    *out = node;
    return fl_jparser_adopt(ps, node, node->a);
}

static fl_err parse_logic(fl_jparser *ps, bool is_or, const fl_jnode **out) {
    const char *word = is_or ? "or" : "and";
    fl_jnodes nodes = {0};
    fl_jnode *node = NULL;
    FL_TRY(is_or ? parse_logic(ps, false, out) : parse_not(ps, out));
    if (!fl_jparser_at_name(ps, word)) return FL_ERR_OK;
    FL_TRY(fl_jparser_node(ps, is_or ? FL_JNODE_OR : FL_JNODE_AND, &node));
    FL_TRY(fl_jparser_push(ps, &nodes, *out));
    while (fl_jparser_skip_name(ps, word)) {
        FL_TRY(is_or ? parse_logic(ps, false, out) : parse_not(ps, out));
        FL_TRY(fl_jparser_push(ps, &nodes, *out));
    }
    *out = node;
    return fl_jparser_give(ps, node, &nodes);
}

fl_err fl_jparser_condition(fl_jparser *ps, const fl_jnode **out) {
    FL_TRY(fl_jparser_enter(ps));
    FL_TRY(parse_logic(ps, true, out));
    fl_jparser_leave(ps);
    return FL_ERR_OK;
}

fl_err fl_jparser_expression(fl_jparser *ps, const fl_jnode **out) {
    FL_TRY(fl_jparser_enter(ps));
    FL_TRY(parse_logic(ps, true, out));
    while (fl_jparser_at_name(ps, "if")) {
        fl_jnode *node = NULL;
        FL_TRY(fl_jparser_node(ps, FL_JNODE_IF_ELSE, &node));
        ps->token++;
        node->b = *out;
        FL_TRY(parse_logic(ps, true, &node->a));
        if (fl_jparser_skip_name(ps, "else")) FL_TRY(fl_jparser_expression(ps, &node->c));
        FL_TRY(fl_jparser_adopt(ps, node, node->a));
        FL_TRY(fl_jparser_adopt(ps, node, node->b));
        FL_TRY(fl_jparser_adopt(ps, node, node->c));
        *out = node;
    }
    fl_jparser_leave(ps);
    return FL_ERR_OK;
}
