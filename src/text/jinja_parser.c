/* Statements, and the parser's tools that expressions share. */
#include "text/jinja_parser.h"

#include "text/jinja_str.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- failing ------------------------------------------------------------------------------------------- */

fl_err fl_jparser_fail_expected(const fl_jparser *ps, const char *wanted) {
    const fl_jtoken *token = ps->token;
    int n = (int)(token->n < 40 ? token->n : 40);
    switch (token->kind) {
    case FL_JTOK_END:
        return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": expected %s, found the template's end",
                       token->line, wanted);
    case FL_JTOK_DATA:
        return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": expected %s, found text", token->line,
                       wanted);
    case FL_JTOK_STRING:
        return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": expected %s, found the string '%.*s'",
                       token->line, wanted, n, token->text);
    default:
        return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": expected %s, found '%.*s'", token->line,
                       wanted, n, token->text);
    }
}

fl_err fl_jparser_fail_unsupported(uint32_t line, const char *what, const char *name, size_t n) {
    return FL_FAIL(FL_ERR_UNSUPPORTED, "chat template line %" PRIu32 ": %s '%.*s' is not supported", line,
                   what, (int)(n < 40 ? n : 40), name);
}

static fl_err fail_nesting(const fl_jparser *ps, uint32_t line) {
    return FL_FAIL(FL_ERR_LIMIT, "chat template line %" PRIu32 ": nested deeper than %zu levels", line,
                   ps->jinja->limits.nesting);
}

/* ---- tools --------------------------------------------------------------------------------------------- */

fl_err fl_jparser_enter(fl_jparser *ps) {
    if (ps->level >= ps->jinja->limits.nesting) return fail_nesting(ps, ps->token->line);
    ps->level++;
    return FL_ERR_OK;
}

void fl_jparser_leave(fl_jparser *ps) {
    ps->level--;
}

fl_err fl_jparser_node(fl_jparser *ps, fl_jnode_kind kind, fl_jnode **out) {
    fl_jarena *arena = &ps->jinja->arena;
    fl_jnode *node = fl_jarena_alloc(arena, 1, sizeof *node);
    if (node == NULL) return fl_jarena_error(arena);
    node->kind = kind;
    node->line = ps->token->line;
    node->depth = 1;
    *out = node;
    return FL_ERR_OK;
}

fl_err fl_jparser_adopt(fl_jparser *ps, fl_jnode *parent, const fl_jnode *child) {
    if (child == NULL) return FL_ERR_OK;
    if (child->depth >= ps->jinja->limits.nesting) return fail_nesting(ps, parent->line);
    if (child->depth >= parent->depth) parent->depth = child->depth + 1;
    return FL_ERR_OK;
}

fl_err fl_jparser_push(fl_jparser *ps, fl_jnodes *nodes, const fl_jnode *node) {
    fl_jarena *arena = &ps->jinja->arena;
    if (nodes->n == nodes->cap) {
        const fl_jnode **grown =
            fl_jarena_grow(arena, nodes->items, nodes->n, sizeof(fl_jnode *), &nodes->cap);
        if (grown == NULL) return fl_jarena_error(arena);
        nodes->items = grown;
    }
    nodes->items[nodes->n++] = node;
    return FL_ERR_OK;
}

fl_err fl_jparser_give(fl_jparser *ps, fl_jnode *parent, const fl_jnodes *nodes) {
    for (size_t i = 0; i < nodes->n; i++) FL_TRY(fl_jparser_adopt(ps, parent, nodes->items[i]));
    parent->items = nodes->items;
    parent->n_items = nodes->n;
    return FL_ERR_OK;
}

fl_err fl_jparser_symbol(fl_jparser *ps, const fl_jtoken *name, uint32_t *out) {
    fl_jinja *jinja = ps->jinja;
    const fl_jstr wanted = {.bytes = name->text, .n = name->n};
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < name->n; i++) hash = (hash ^ (unsigned char)name->text[i]) * 16777619u;
    size_t slot = hash % FL_JSYMBOL_SLOTS;
    for (; ps->symbol_table[slot] != 0; slot = (slot + 1) % FL_JSYMBOL_SLOTS) {
        *out = ps->symbol_table[slot] - 1u;
        if (fl_jstr_same(jinja->symbols[*out], &wanted)) return FL_ERR_OK;
    }
    if (jinja->n_symbols == FL_JSYMBOLS_MAX) {
        return FL_FAIL(FL_ERR_LIMIT, "chat template line %" PRIu32 ": more than %d variable names",
                       name->line, FL_JSYMBOLS_MAX);
    }
    fl_jval text;
    FL_TRY(fl_jval_from_bytes(&jinja->arena, name->text, name->n, &text));
    jinja->symbols[jinja->n_symbols] = text.as.str;
    *out = (uint32_t)jinja->n_symbols++;
    ps->symbol_table[slot] = (uint16_t)(*out + 1);
    return FL_ERR_OK;
}

fl_err fl_jparser_text(fl_jparser *ps, const fl_jtoken *token, fl_jval *out) {
    return fl_jval_from_marked(&ps->jinja->arena, token->text, token->n, FL_JORIGIN_TEMPLATE, out);
}

static bool token_is(const fl_jtoken *token, fl_jtoken_kind kind, const char *text) {
    return token->kind == kind && token->n == strlen(text) && memcmp(token->text, text, token->n) == 0;
}

bool fl_jparser_at_operator(const fl_jparser *ps, const char *text) {
    return token_is(ps->token, FL_JTOK_OPERATOR, text);
}

bool fl_jparser_at_name(const fl_jparser *ps, const char *text) {
    return token_is(ps->token, FL_JTOK_NAME, text);
}

bool fl_jparser_skip_operator(fl_jparser *ps, const char *text) {
    bool there = fl_jparser_at_operator(ps, text);
    ps->token += there;
    return there;
}

bool fl_jparser_skip_name(fl_jparser *ps, const char *text) {
    bool there = fl_jparser_at_name(ps, text);
    ps->token += there;
    return there;
}

fl_err fl_jparser_expect_operator(fl_jparser *ps, const char *text) {
    if (fl_jparser_skip_operator(ps, text)) return FL_ERR_OK;
    char wanted[8] = {'\'', 0};
    strncat(wanted, text, 4);
    return fl_jparser_fail_expected(ps, strcat(wanted, "'"));
}

/* ---- statements ---------------------------------------------------------------------------------------- */

static fl_err parse_block(fl_jparser *ps, const fl_jnode **out);

static fl_err expect_kind(fl_jparser *ps, fl_jtoken_kind kind, const char *wanted) {
    if (ps->token->kind != kind) return fl_jparser_fail_expected(ps, wanted);
    if (kind != FL_JTOK_END) ps->token++;
    return FL_ERR_OK;
}

static fl_err expect_tag_end(fl_jparser *ps) {
    return expect_kind(ps, FL_JTOK_TAG_END, "'%}'");
}

/* Moves past "{% name": what closes or continues a statement. */
static fl_err expect_tag(fl_jparser *ps, const char *name) {
    if (ps->token->kind == FL_JTOK_TAG_BEGIN && token_is(ps->token + 1, FL_JTOK_NAME, name)) {
        ps->token += 2;
        return FL_ERR_OK;
    }
    if (ps->token->kind == FL_JTOK_TAG_BEGIN) ps->token++;
    return fl_jparser_fail_expected(ps, name);
}

static bool at_tag(const fl_jparser *ps, const char *name) {
    return ps->token->kind == FL_JTOK_TAG_BEGIN && token_is(ps->token + 1, FL_JTOK_NAME, name);
}

/* A name that may be assigned to. */
static fl_err parse_target(fl_jparser *ps, uint32_t *symbol) {
    static const char *const reserved[] = {"true", "True", "false", "False", "none", "None", "not",
                                           "and",  "or",   "in",    "is",    "if",   "else"};
    if (ps->token->kind != FL_JTOK_NAME) return fl_jparser_fail_expected(ps, "a variable name");
    for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++) {
        if (fl_jparser_at_name(ps, reserved[i])) return fl_jparser_fail_expected(ps, "a variable name");
    }
    FL_TRY(fl_jparser_symbol(ps, ps->token, symbol));
    if (*symbol == FL_JSYMBOL_LOOP) return fl_jparser_fail_unsupported(ps->token->line, "setting", "loop", 4);
    ps->token++;
    return FL_ERR_OK;
}

/* Adds a variable's name to the list of symbols that `node` will have; *symbols is the list so far. */
static fl_err add_target(fl_jparser *ps, fl_jnode *node, uint32_t **symbols, size_t *cap) {
    fl_jarena *arena = &ps->jinja->arena;
    if (*symbols == NULL || node->n_symbols == *cap) {
        uint32_t *grown = fl_jarena_grow(arena, *symbols, node->n_symbols, sizeof *grown, cap);
        if (grown == NULL) return fl_jarena_error(arena);
        *symbols = grown;
    }
    FL_TRY(parse_target(ps, &(*symbols)[node->n_symbols]));
    node->n_symbols++;
    node->symbols = *symbols;
    return FL_ERR_OK;
}

/* name {, name} */
static fl_err parse_targets(fl_jparser *ps, fl_jnode *node) {
    uint32_t *symbols = NULL;
    size_t cap = 0;
    do {
        FL_TRY(add_target(ps, node, &symbols, &cap));
    } while (fl_jparser_skip_operator(ps, ","));
    node->symbol = symbols[0];
    return FL_ERR_OK;
}

/* A block in a scope of its own; `loop`: break may be in it. */
static fl_err parse_scope(fl_jparser *ps, bool loop, const fl_jnode **out) {
    size_t loops = ps->loops;
    ps->loops = loop ? loops + 1 : 0;
    ps->scopes++;
    FL_TRY(parse_block(ps, out));
    ps->scopes--;
    ps->loops = loops;
    return FL_ERR_OK;
}

static fl_err parse_if(fl_jparser *ps, const fl_jnode **out) {
    fl_jnode *node = NULL;
    fl_jnodes nodes = {0};
    FL_TRY(fl_jparser_node(ps, FL_JNODE_IF, &node));
    do {
        const fl_jnode *test = NULL, *block = NULL;
        FL_TRY(fl_jparser_expression(ps, &test));
        FL_TRY(expect_tag_end(ps));
        FL_TRY(parse_block(ps, &block));
        FL_TRY(fl_jparser_push(ps, &nodes, test));
        FL_TRY(fl_jparser_push(ps, &nodes, block));
    } while (at_tag(ps, "elif") && expect_tag(ps, "elif") == FL_ERR_OK);
    FL_TRY(fl_jparser_give(ps, node, &nodes));
    if (at_tag(ps, "else")) {
        FL_TRY(expect_tag(ps, "else"));
        FL_TRY(expect_tag_end(ps));
        FL_TRY(parse_block(ps, &node->c));
        FL_TRY(fl_jparser_adopt(ps, node, node->c));
    }
    FL_TRY(expect_tag(ps, "endif"));
    *out = node;
    return expect_tag_end(ps);
}

static fl_err parse_for(fl_jparser *ps, const fl_jnode **out) {
    fl_jnode *node = NULL;
    fl_jnodes body = {0};
    FL_TRY(fl_jparser_node(ps, FL_JNODE_FOR, &node));
    FL_TRY(parse_targets(ps, node));
    if (!fl_jparser_skip_name(ps, "in")) return fl_jparser_fail_expected(ps, "'in'");
    FL_TRY(fl_jparser_condition(ps, &node->a));
    FL_TRY(fl_jparser_adopt(ps, node, node->a));
    if (fl_jparser_skip_name(ps, "if")) {
        FL_TRY(fl_jparser_expression(ps, &node->b));
        FL_TRY(fl_jparser_adopt(ps, node, node->b));
    }
    if (fl_jparser_at_name(ps, "recursive")) {
        return fl_jparser_fail_unsupported(ps->token->line, "the loop modifier", "recursive", 9);
    }
    FL_TRY(expect_tag_end(ps));
    const fl_jnode *block = NULL;
    FL_TRY(parse_scope(ps, true, &block));
    FL_TRY(fl_jparser_push(ps, &body, block));
    FL_TRY(fl_jparser_give(ps, node, &body));
    if (at_tag(ps, "else")) {
        FL_TRY(expect_tag(ps, "else"));
        FL_TRY(expect_tag_end(ps));
        FL_TRY(parse_block(ps, &node->c));
        FL_TRY(fl_jparser_adopt(ps, node, node->c));
    }
    FL_TRY(expect_tag(ps, "endfor"));
    *out = node;
    return expect_tag_end(ps);
}

/* One value, or several with commas between as a tuple. */
static fl_err parse_values(fl_jparser *ps, const fl_jnode **out) {
    FL_TRY(fl_jparser_expression(ps, out));
    if (!fl_jparser_at_operator(ps, ",")) return FL_ERR_OK;
    fl_jnode *tuple = NULL;
    fl_jnodes nodes = {0};
    FL_TRY(fl_jparser_node(ps, FL_JNODE_LIST, &tuple));
    FL_TRY(fl_jparser_push(ps, &nodes, *out));
    while (fl_jparser_skip_operator(ps, ",") && ps->token->kind != FL_JTOK_TAG_END) {
        FL_TRY(fl_jparser_expression(ps, out));
        FL_TRY(fl_jparser_push(ps, &nodes, *out));
    }
    tuple->flag = true;
    *out = tuple;
    return fl_jparser_give(ps, tuple, &nodes);
}

static fl_err parse_set_block(fl_jparser *ps, fl_jnode *node) {
    FL_TRY(expect_tag_end(ps));
    node->kind = FL_JNODE_SET_BLOCK;
    FL_TRY(parse_scope(ps, false, &node->a));
    FL_TRY(fl_jparser_adopt(ps, node, node->a));
    FL_TRY(expect_tag(ps, "endset"));
    return expect_tag_end(ps);
}

static fl_err parse_set(fl_jparser *ps, const fl_jnode **out) {
    fl_jnode *node = NULL;
    FL_TRY(fl_jparser_node(ps, FL_JNODE_SET, &node));
    *out = node;
    FL_TRY(parse_targets(ps, node));
    if (node->n_symbols == 1 && fl_jparser_skip_operator(ps, ".")) {
        if (ps->token->kind != FL_JTOK_NAME) return fl_jparser_fail_expected(ps, "an attribute name");
        FL_TRY(fl_jparser_text(ps, ps->token, &node->value));
        ps->token++;
    } else if (fl_jparser_at_operator(ps, "|")) {
        return fl_jparser_fail_unsupported(ps->token->line, "a filter on", "set", 3);
    } else if (node->n_symbols == 1 && ps->token->kind == FL_JTOK_TAG_END) {
        return parse_set_block(ps, node);
    }
    FL_TRY(fl_jparser_expect_operator(ps, "="));
    FL_TRY(parse_values(ps, &node->a));
    FL_TRY(fl_jparser_adopt(ps, node, node->a));
    return expect_tag_end(ps);
}

/* (name [= default] {, ...}) of a macro. */
static fl_err parse_macro_params(fl_jparser *ps, fl_jnode *node, fl_jnodes *defaults) {
    uint32_t *symbols = NULL;
    size_t cap = 0;
    FL_TRY(fl_jparser_expect_operator(ps, "("));
    while (!fl_jparser_skip_operator(ps, ")")) {
        FL_TRY(add_target(ps, node, &symbols, &cap));
        const fl_jnode *given = NULL;
        bool had_default = defaults->n > 0 && defaults->items[defaults->n - 1] != NULL;
        if (fl_jparser_skip_operator(ps, "=")) FL_TRY(fl_jparser_expression(ps, &given));
        else if (had_default) return fl_jparser_fail_expected(ps, "a default value");
        FL_TRY(fl_jparser_push(ps, defaults, given));
        if (!fl_jparser_at_operator(ps, ")")) FL_TRY(fl_jparser_expect_operator(ps, ","));
    }
    return FL_ERR_OK;
}

static fl_err parse_macro(fl_jparser *ps, const fl_jnode **out) {
    fl_jnode *node = NULL;
    fl_jnodes defaults = {0};
    FL_TRY(fl_jparser_node(ps, FL_JNODE_MACRO, &node));
    if (ps->scopes > 0)
        return fl_jparser_fail_unsupported(node->line, "inside a loop, macro or set, the statement", "macro",
                                           5);
    FL_TRY(parse_target(ps, &node->symbol));
    ps->is_macro[node->symbol] = true;
    FL_TRY(parse_macro_params(ps, node, &defaults));
    FL_TRY(fl_jparser_give(ps, node, &defaults));
    FL_TRY(expect_tag_end(ps));
    FL_TRY(parse_scope(ps, false, &node->a));
    FL_TRY(fl_jparser_adopt(ps, node, node->a));
    FL_TRY(expect_tag(ps, "endmacro"));
    if (ps->token->kind == FL_JTOK_NAME) ps->token++; /* the macro's name may be repeated here */
    *out = node;
    return expect_tag_end(ps);
}

static fl_err parse_jump(fl_jparser *ps, fl_jnode_kind kind, const fl_jnode **out) {
    if (ps->loops == 0) {
        return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": %s outside a loop", ps->token->line,
                       kind == FL_JNODE_BREAK ? "break" : "continue");
    }
    fl_jnode *node = NULL;
    FL_TRY(fl_jparser_node(ps, kind, &node));
    *out = node;
    return expect_tag_end(ps);
}

/* `token` is behind "{%". */
static fl_err parse_statement(fl_jparser *ps, const fl_jnode **out) {
    const fl_jtoken *name = ps->token;
    FL_TRY(expect_kind(ps, FL_JTOK_NAME, "a statement"));
    if (token_is(name, FL_JTOK_NAME, "if")) return parse_if(ps, out);
    if (token_is(name, FL_JTOK_NAME, "for")) return parse_for(ps, out);
    if (token_is(name, FL_JTOK_NAME, "set")) return parse_set(ps, out);
    if (token_is(name, FL_JTOK_NAME, "macro")) return parse_macro(ps, out);
    if (token_is(name, FL_JTOK_NAME, "break")) return parse_jump(ps, FL_JNODE_BREAK, out);
    if (token_is(name, FL_JTOK_NAME, "continue")) return parse_jump(ps, FL_JNODE_CONTINUE, out);
    return fl_jparser_fail_unsupported(name->line, "the statement", name->text, name->n);
}

/* Does this tag end the block that is being read? */
static bool at_block_end(const fl_jparser *ps) {
    static const char *const enders[] = {"elif", "else", "endif", "endfor", "endset", "endmacro"};
    for (size_t i = 0; i < sizeof enders / sizeof enders[0]; i++) {
        if (at_tag(ps, enders[i])) return true;
    }
    return ps->token->kind == FL_JTOK_END;
}

/* Everything up to the tag that ends the block, which is left for the caller. */
static fl_err parse_block(fl_jparser *ps, const fl_jnode **out) {
    fl_jnode *block = NULL, *node = NULL;
    fl_jnodes nodes = {0};
    FL_TRY(fl_jparser_enter(ps));
    FL_TRY(fl_jparser_node(ps, FL_JNODE_BLOCK, &block));
    while (!at_block_end(ps)) {
        const fl_jtoken *token = ps->token;
        const fl_jnode *made = NULL;
        if (token->kind == FL_JTOK_DATA) {
            FL_TRY(fl_jparser_node(ps, FL_JNODE_TEXT, &node));
            FL_TRY(fl_jparser_text(ps, token, &node->value));
            ps->token++;
            made = node;
        } else if (token->kind == FL_JTOK_PRINT_BEGIN) {
            ps->token++;
            FL_TRY(fl_jparser_node(ps, FL_JNODE_PRINT, &node));
            FL_TRY(fl_jparser_expression(ps, &node->a));
            FL_TRY(fl_jparser_adopt(ps, node, node->a));
            FL_TRY(expect_kind(ps, FL_JTOK_PRINT_END, "'}}'"));
            made = node;
        } else {
            ps->token++;
            FL_TRY(parse_statement(ps, &made));
        }
        FL_TRY(fl_jparser_push(ps, &nodes, made));
    }
    FL_TRY(fl_jparser_give(ps, block, &nodes));
    fl_jparser_leave(ps);
    *out = block;
    return FL_ERR_OK;
}

/* ---- whole templates ----------------------------------------------------------------------------------- */

/* Macros may be called before they are defined, so calls are checked when all are known. */
static fl_err check_calls(const fl_jparser *ps) {
    for (size_t i = 0; i < ps->n_calls; i++) {
        const fl_jnode *call = ps->calls[i];
        const fl_jstr *name = ps->jinja->symbols[call->symbol];
        if (!ps->is_macro[call->symbol]) {
            return fl_jparser_fail_unsupported(call->line, "the function", name->bytes, name->n);
        }
    }
    return FL_ERR_OK;
}

static fl_err parse_all(fl_jinja *jinja, const char *text, size_t n_bytes) {
    static const fl_jtoken loop = {.kind = FL_JTOK_NAME, .text = "loop", .n = 4};
    fl_jarena *arena = &jinja->arena;
    fl_jtoken *tokens;
    uint32_t symbol;
    FL_TRY(fl_jinja_lex(arena, text, n_bytes, jinja->limits.nesting, &tokens));
    fl_jparser ps = {.jinja = jinja, .token = tokens};
    ps.symbol_table = fl_jarena_alloc(arena, FL_JSYMBOL_SLOTS, sizeof *ps.symbol_table);
    ps.is_macro = fl_jarena_alloc(arena, FL_JSYMBOLS_MAX, sizeof *ps.is_macro);
    jinja->symbols = fl_jarena_alloc(arena, FL_JSYMBOLS_MAX, sizeof(fl_jstr *));
    if (ps.symbol_table == NULL || ps.is_macro == NULL || jinja->symbols == NULL)
        return fl_jarena_error(arena);
    FL_TRY(fl_jparser_symbol(&ps, &loop, &symbol)); /* becomes FL_JSYMBOL_LOOP */
    FL_TRY(parse_block(&ps, &jinja->root));
    if (ps.token->kind == FL_JTOK_TAG_BEGIN) {
        ps.token++;
        return fl_jparser_fail_expected(&ps, "a statement");
    }
    return check_calls(&ps);
}

fl_err fl_jinja_open(const char *text, size_t n_bytes, const fl_jinja_limits *limits, fl_jinja **out) {
    if (n_bytes > limits->template_bytes) {
        return FL_FAIL(FL_ERR_LIMIT, "chat template: %zu bytes, at most %zu are allowed", n_bytes,
                       limits->template_bytes);
    }
    fl_jinja *jinja = calloc(1, sizeof *jinja);
    if (jinja == NULL) return FL_FAIL(FL_ERR_NOMEM, "chat template: %zu bytes", sizeof *jinja);
    jinja->limits = *limits;
    fl_jarena_init(&jinja->arena, limits->tree_bytes);
    fl_err err = parse_all(jinja, text, n_bytes);
    if (err != FL_ERR_OK) {
        fl_jinja_close(jinja);
        return err;
    }
    *out = jinja;
    return FL_ERR_OK;
}

void fl_jinja_close(fl_jinja *jinja) {
    if (jinja == NULL) return;
    fl_jarena_clear(&jinja->arena);
    free(jinja);
}
