/* The evaluator: walks the tree, keeps variables, writes text.
 *
 * Variables. Each name has one slot with its innermost visible value; entering a scope (an iteration, a set
 * block, a macro call) notes where the list of saved values stands, the first assignment in it saves the
 * slot, leaving puts it back. A macro sees its own scopes and the top level, not its caller's loops. */
#include "text/jinja_ops.h"
#include "text/jinja_str.h"
#include "text/jinja_text.h"

#include <inttypes.h>
#include <string.h>

typedef struct slot {
    fl_jval value;
    size_t scope; /* whose variable this is; 0 = not set, 1 = the top level */
} slot;

typedef struct saved {
    uint32_t symbol;
    slot slot;
} saved;

typedef enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow;

typedef struct machine {
    const fl_jinja *jinja;
    fl_jrun *run;
    slot *slots; /* [n_symbols] */
    saved *saves;
    size_t n_saves, cap_saves;
    size_t scope; /* the innermost */
    size_t frame; /* the running macro's first scope; 1 outside macros */
    size_t depth; /* calls of eval and exec that are open */
    flow flow;
    const fl_jnode **macros; /* [n_symbols] NULL = not defined yet */
    fl_jbuf *out;
} machine;

static fl_err eval(machine *m, const fl_jnode *node, fl_jval *out);
static fl_err exec(machine *m, const fl_jnode *node);

/* ---- variables ----------------------------------------------------------------------------------------- */

static fl_err lookup(machine *m, uint32_t symbol, fl_jval *out) {
    const slot *found = &m->slots[symbol];
    if (found->scope > 1 && found->scope < m->frame) {
        /* A caller's variable hides the top level's: look for that among the saved ones. */
        found = NULL;
        FL_TRY(fl_jrun_charge(m->run, m->n_saves * 8));
        for (size_t i = 0; i < m->n_saves && found == NULL; i++) {
            if (m->saves[i].symbol == symbol && m->saves[i].slot.scope <= 1) found = &m->saves[i].slot;
        }
    }
    *out = found != NULL && found->scope > 0 ? found->value : fl_jval_undefined(m->jinja->symbols[symbol]);
    return FL_ERR_OK;
}

static fl_err assign(machine *m, uint32_t symbol, const fl_jval *value) {
    slot *target = &m->slots[symbol];
    if (target->scope != m->scope && m->scope > 1) {
        if (m->n_saves == m->cap_saves) {
            saved *grown = fl_jarena_grow(&m->run->arena, m->saves, m->n_saves, sizeof *grown, &m->cap_saves);
            if (grown == NULL) return fl_jarena_error(&m->run->arena);
            m->saves = grown;
        }
        m->saves[m->n_saves++] = (saved){.symbol = symbol, .slot = *target};
    }
    *target = (slot){.value = *value, .scope = m->scope};
    return FL_ERR_OK;
}

/* Opens a scope; give what it returns to leave_scope. */
static size_t enter_scope(machine *m) {
    m->scope++;
    return m->n_saves;
}

static void leave_scope(machine *m, size_t mark) {
    while (m->n_saves > mark) {
        const saved *last = &m->saves[--m->n_saves];
        m->slots[last->symbol] = last->slot;
    }
    m->scope--;
}

/* Gives `value` to one name, or its items to several. */
static fl_err assign_targets(machine *m, const fl_jnode *node, const fl_jval *value) {
    if (node->n_symbols == 1) return assign(m, node->symbol, value);
    const fl_jval *items;
    size_t n;
    if (value->kind == FL_JUNDEFINED) return fl_jval_fail_undefined(m->run, value);
    FL_TRY(fl_jval_items(m->run, value, &items, &n));
    if (n != node->n_symbols) {
        return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": %zu variables for %zu values",
                       m->run->line, node->n_symbols, n);
    }
    for (size_t i = 0; i < n; i++) FL_TRY(assign(m, node->symbols[i], &items[i]));
    return FL_ERR_OK;
}

/* ---- expressions --------------------------------------------------------------------------------------- */

/* The values of items [0, n) of a node; NULL items are absent. */
static fl_err eval_items(machine *m, const fl_jnode *node, fl_jval **out) {
    fl_jval *values = fl_jarena_alloc(&m->run->arena, node->n_items, sizeof *values);
    if (values == NULL) return fl_jarena_error(&m->run->arena);
    for (size_t i = 0; i < node->n_items; i++) {
        if (node->items[i] != NULL) FL_TRY(eval(m, node->items[i], &values[i]));
    }
    *out = values;
    return FL_ERR_OK;
}

static fl_err eval_list(machine *m, const fl_jnode *node, fl_jval *out) {
    fl_jval *items = NULL;
    FL_TRY(eval_items(m, node, &items));
    return fl_jval_from_items(m->run, items, node->n_items, node->flag, out);
}

static fl_err eval_dict(machine *m, const fl_jnode *node, fl_jval *out) {
    size_t n = node->n_items / 2;
    fl_jpair *pairs = fl_jarena_alloc(&m->run->arena, n, sizeof *pairs);
    if (pairs == NULL) return fl_jarena_error(&m->run->arena);
    for (size_t i = 0; i < n; i++) {
        FL_TRY(eval(m, node->items[2 * i], &pairs[i].key));
        FL_TRY(eval(m, node->items[2 * i + 1], &pairs[i].value));
    }
    return fl_jval_from_pairs(m->run, pairs, n, out);
}

/* dict(a=1) and namespace(a=1) */
static fl_err eval_named(machine *m, const fl_jnode *node, fl_jval *out) {
    fl_jarena *arena = &m->run->arena;
    fl_jpair *pairs = fl_jarena_alloc(arena, node->n_items, sizeof *pairs);
    if (pairs == NULL) return fl_jarena_error(arena);
    for (size_t i = 0; i < node->n_items; i++) {
        pairs[i].key = fl_jval_str(node->names[i]);
        FL_TRY(eval(m, node->items[i], &pairs[i].value));
    }
    FL_TRY(fl_jval_from_pairs(m->run, pairs, node->n_items, out));
    if (node->kind == FL_JNODE_DICT_CALL) return FL_ERR_OK;
    fl_jnamespace *space = fl_jarena_alloc(arena, 1, sizeof *space);
    if (space == NULL) return fl_jarena_error(arena);
    *space = (fl_jnamespace){.pairs = pairs, .n = out->as.dict->n, .cap = node->n_items};
    *out = (fl_jval){.kind = FL_JNAMESPACE, .as.space = space};
    return FL_ERR_OK;
}

/* Filters, tests, methods and functions. */
static fl_err eval_builtin(machine *m, const fl_jnode *node, fl_jval *out) {
    fl_jval args[1 + FL_JPARAMS_MAX] = {0};
    for (size_t i = 0; i < node->n_items; i++) {
        if (node->items[i] != NULL) FL_TRY(eval(m, node->items[i], &args[i]));
    }
    m->run->line = node->line;
    FL_TRY(node->builtin->call(m->run, args, out));
    if (node->kind == FL_JNODE_TEST && node->flag) *out = fl_jval_bool(!out->as.truth);
    return FL_ERR_OK;
}

static fl_err eval_logic(machine *m, const fl_jnode *node, fl_jval *out) {
    for (size_t i = 0; i < node->n_items; i++) {
        FL_TRY(eval(m, node->items[i], out));
        if (fl_jval_truth(out) == (node->kind == FL_JNODE_OR)) break;
    }
    return FL_ERR_OK;
}

static fl_err eval_compare(machine *m, const fl_jnode *node, fl_jval *out) {
    fl_jval left, right;
    bool holds = true;
    FL_TRY(eval(m, node->items[0], &left));
    for (size_t i = 1; holds && i < node->n_items; i++) {
        FL_TRY(eval(m, node->items[i], &right));
        m->run->line = node->line;
        FL_TRY(fl_jop_compare(m->run, node->ops[i - 1], &left, &right, &holds));
        left = right;
    }
    *out = fl_jval_bool(holds);
    return FL_ERR_OK;
}

/* Makes what `buf` holds, if it is in use, the value. */
static fl_err settle(fl_jbuf *buf, fl_jval *value) {
    const fl_jstr *made;
    if (buf->run == NULL) return FL_ERR_OK;
    FL_TRY(fl_jbuf_finish(buf, &made));
    *value = fl_jval_str(made);
    buf->run = NULL;
    return FL_ERR_OK;
}

/* From left to right. A run of string additions goes into one buffer: adding two at a time would copy a long
 * document once an operator. */
static fl_err eval_arith(machine *m, const fl_jnode *node, fl_jval *out) {
    fl_jbuf buf = {0};
    fl_jval right;
    FL_TRY(eval(m, node->items[0], out));
    for (size_t i = 1; i < node->n_items; i++) {
        FL_TRY(eval(m, node->items[i], &right));
        m->run->line = node->line;
        if (node->ops[i - 1] == FL_JOP_ADD && out->kind == FL_JSTR && right.kind == FL_JSTR) {
            if (buf.run == NULL) {
                buf = (fl_jbuf){.run = m->run, .max_bytes = SIZE_MAX};
                FL_TRY(fl_jbuf_add(&buf, out->as.str, 0, out->as.str->n));
            }
            FL_TRY(fl_jbuf_add(&buf, right.as.str, 0, right.as.str->n));
            continue;
        }
        FL_TRY(settle(&buf, out));
        fl_jval left = *out;
        FL_TRY(fl_jop_arith(m->run, node->ops[i - 1], &left, &right, out));
    }
    return settle(&buf, out);
}

static fl_err eval_concat(machine *m, const fl_jnode *node, fl_jval *out) {
    fl_jval *items = NULL;
    FL_TRY(eval_items(m, node, &items));
    m->run->line = node->line;
    return fl_jtext_join(m->run, &(fl_jstr){.bytes = ""}, items, node->n_items, false, out);
}

static fl_err eval_access(machine *m, const fl_jnode *node, fl_jval *out) {
    fl_jval object, key, *bounds = NULL;
    FL_TRY(eval(m, node->a, &object));
    m->run->line = node->line;
    if (node->kind == FL_JNODE_ATTRIBUTE) return fl_jop_attribute(m->run, &object, node->value.as.str, out);
    if (node->kind == FL_JNODE_INDEX) {
        FL_TRY(eval(m, node->b, &key));
        return fl_jop_index(m->run, &object, &key, out);
    }
    FL_TRY(eval_items(m, node, &bounds));
    return fl_jop_slice(m->run, &object, bounds, out);
}

static fl_err fail_argument(const machine *m, const fl_jnode *macro, const char *what) {
    const fl_jstr *name = m->jinja->symbols[macro->symbol];
    return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": the macro '%.*s' is called with %s",
                   m->run->line, (int)(name->n < 40 ? name->n : 40), name->bytes, what);
}

/* values[i] for parameter i of the macro, FL_JABSENT where none is given. */
static fl_err bind_macro(machine *m, const fl_jnode *call, const fl_jnode *macro, fl_jval *values) {
    if (call->n_positional > macro->n_symbols) return fail_argument(m, macro, "too many arguments");
    for (size_t i = 0; i < call->n_items; i++) {
        size_t at = i;
        if (i >= call->n_positional) {
            const fl_jstr *name = call->names[i - call->n_positional];
            for (at = 0; at < macro->n_symbols; at++) {
                if (fl_jstr_same(m->jinja->symbols[macro->symbols[at]], name)) break;
            }
            FL_TRY(fl_jrun_charge(m->run, macro->n_symbols));
            if (at == macro->n_symbols) return fail_argument(m, macro, "an unknown argument");
            if (values[at].kind != FL_JABSENT) return fail_argument(m, macro, "an argument given twice");
        }
        FL_TRY(eval(m, call->items[i], &values[at]));
    }
    return FL_ERR_OK;
}

static fl_err eval_macro(machine *m, const fl_jnode *call, fl_jval *out) {
    const fl_jnode *macro = m->macros[call->symbol];
    m->run->line = call->line;
    if (macro == NULL) {
        fl_jval unset = fl_jval_undefined(m->jinja->symbols[call->symbol]);
        return fl_jval_fail_undefined(m->run, &unset);
    }
    fl_jval *values = fl_jarena_alloc(&m->run->arena, macro->n_symbols, sizeof *values);
    if (values == NULL) return fl_jarena_error(&m->run->arena);
    FL_TRY(bind_macro(m, call, macro, values));
    fl_jbuf buf = {.run = m->run, .max_bytes = SIZE_MAX}, *before = m->out;
    size_t frame = m->frame, mark = enter_scope(m);
    m->frame = m->scope;
    m->out = &buf;
    for (size_t i = 0; i < macro->n_symbols; i++) {
        if (values[i].kind == FL_JABSENT) {
            values[i] = fl_jval_undefined(m->jinja->symbols[macro->symbols[i]]);
            if (macro->items[i] != NULL) FL_TRY(eval(m, macro->items[i], &values[i]));
        }
        FL_TRY(assign(m, macro->symbols[i], &values[i]));
    }
    FL_TRY(exec(m, macro->a));
    leave_scope(m, mark);
    m->frame = frame;
    m->out = before;
    return settle(&buf, out);
}

static fl_err eval_kind(machine *m, const fl_jnode *node, fl_jval *out) {
    fl_jval value;
    switch (node->kind) {
    case FL_JNODE_CONST: *out = node->value; return FL_ERR_OK;
    case FL_JNODE_NAME: return lookup(m, node->symbol, out);
    case FL_JNODE_LIST: return eval_list(m, node, out);
    case FL_JNODE_DICT: return eval_dict(m, node, out);
    case FL_JNODE_ATTRIBUTE:
    case FL_JNODE_INDEX:
    case FL_JNODE_SLICE: return eval_access(m, node, out);
    case FL_JNODE_FILTER:
    case FL_JNODE_TEST:
    case FL_JNODE_METHOD:
    case FL_JNODE_FUNCTION: return eval_builtin(m, node, out);
    case FL_JNODE_NAMESPACE:
    case FL_JNODE_DICT_CALL: return eval_named(m, node, out);
    case FL_JNODE_MACRO_CALL: return eval_macro(m, node, out);
    case FL_JNODE_OR:
    case FL_JNODE_AND: return eval_logic(m, node, out);
    case FL_JNODE_COMPARE: return eval_compare(m, node, out);
    case FL_JNODE_ARITH: return eval_arith(m, node, out);
    case FL_JNODE_CONCAT: return eval_concat(m, node, out);
    case FL_JNODE_NOT:
        FL_TRY(eval(m, node->a, &value));
        *out = fl_jval_bool(fl_jval_truth(&value) == node->flag);
        return FL_ERR_OK;
    case FL_JNODE_SIGN:
        FL_TRY(eval(m, node->a, &value));
        m->run->line = node->line;
        return fl_jop_sign(m->run, node->flag, &value, out);
    case FL_JNODE_IF_ELSE:
        FL_TRY(eval(m, node->a, &value));
        if (fl_jval_truth(&value)) return eval(m, node->b, out);
        if (node->c != NULL) return eval(m, node->c, out);
        *out = fl_jval_undefined(NULL);
        return FL_ERR_OK;
    default: return FL_FAIL(FL_ERR_INTERNAL, "chat template: a statement as an expression");
    }
}

static fl_err enter_level(machine *m, const fl_jnode *node) {
    m->run->line = node->line;
    FL_TRY(fl_jrun_charge(m->run, 0));
    if (++m->depth <= m->jinja->limits.eval_nesting) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_LIMIT, "chat template line %" PRIu32 ": evaluation nested deeper than %zu levels",
                   node->line, m->jinja->limits.eval_nesting);
}

static fl_err eval(machine *m, const fl_jnode *node, fl_jval *out) {
    FL_TRY(enter_level(m, node));
    FL_TRY(eval_kind(m, node, out));
    m->depth--;
    return FL_ERR_OK;
}

/* ---- statements ---------------------------------------------------------------------------------------- */

static fl_err exec_print(machine *m, const fl_jnode *node) {
    fl_jval value;
    const fl_jstr *text;
    FL_TRY(eval(m, node->a, &value));
    m->run->line = node->line;
    FL_TRY(fl_jval_text(m->run, &value, &text));
    return fl_jbuf_add(m->out, text, 0, text->n);
}

static fl_err exec_if(machine *m, const fl_jnode *node) {
    for (size_t i = 0; i < node->n_items; i += 2) {
        fl_jval test;
        FL_TRY(eval(m, node->items[i], &test));
        if (fl_jval_truth(&test)) return exec(m, node->items[i + 1]);
    }
    return node->c != NULL ? exec(m, node->c) : FL_ERR_OK;
}

/* Keeps the items for which the loop's filter holds. */
static fl_err filter_items(machine *m, const fl_jnode *node, const fl_jval **items, size_t *n) {
    fl_jval *kept = fl_jarena_alloc(&m->run->arena, *n, sizeof *kept);
    if (kept == NULL) return fl_jarena_error(&m->run->arena);
    size_t n_kept = 0;
    for (size_t i = 0; i < *n; i++) {
        fl_jval test;
        size_t mark = enter_scope(m);
        FL_TRY(assign_targets(m, node, &(*items)[i]));
        FL_TRY(eval(m, node->b, &test));
        leave_scope(m, mark);
        if (fl_jval_truth(&test)) kept[n_kept++] = (*items)[i];
    }
    *items = kept;
    *n = n_kept;
    return FL_ERR_OK;
}

static fl_err exec_for(machine *m, const fl_jnode *node) {
    fl_jval over;
    FL_TRY(eval(m, node->a, &over));
    m->run->line = node->line;
    /* In the arena, because the template may keep `loop` in a namespace. */
    fl_jloop *loop = fl_jarena_alloc(&m->run->arena, 1, sizeof *loop);
    if (loop == NULL) return fl_jarena_error(&m->run->arena);
    FL_TRY(fl_jval_items(m->run, &over, &loop->items, &loop->n));
    if (node->b != NULL) FL_TRY(filter_items(m, node, &loop->items, &loop->n));
    const fl_jval loop_value = {.kind = FL_JLOOP, .as.loop = loop};
    bool finished = false; /* some iteration ran to its end: only then does Jinja skip the else block */
    for (loop->at = 0; loop->at < loop->n && m->flow == FLOW_ON; loop->at++) {
        size_t mark = enter_scope(m);
        m->run->line = node->line;
        FL_TRY(fl_jrun_charge(m->run, 0));
        FL_TRY(assign(m, FL_JSYMBOL_LOOP, &loop_value));
        FL_TRY(assign_targets(m, node, &loop->items[loop->at]));
        FL_TRY(exec(m, node->items[0]));
        leave_scope(m, mark);
        if (m->flow == FLOW_ON) finished = true;
        if (m->flow == FLOW_CONTINUE) m->flow = FLOW_ON;
    }
    m->flow = FLOW_ON;
    if (finished || node->c == NULL) return FL_ERR_OK;
    size_t mark = enter_scope(m);
    FL_TRY(exec(m, node->c));
    leave_scope(m, mark);
    return FL_ERR_OK;
}

static fl_err set_attribute(machine *m, const fl_jnode *node, const fl_jval *value) {
    fl_jarena *arena = &m->run->arena;
    fl_jval target;
    const fl_jval *found, key = node->value;
    m->run->line = node->line;
    FL_TRY(lookup(m, node->symbol, &target));
    if (target.kind != FL_JNAMESPACE)
        return fl_jval_fail_kind(m->run, "setting an attribute", "a namespace", &target);
    fl_jnamespace *space = target.as.space;
    FL_TRY(fl_jval_find(m->run, &target, &key, &found));
    if (found == NULL && space->n == space->cap) {
        fl_jpair *grown = fl_jarena_grow(arena, space->pairs, space->n, sizeof *grown, &space->cap);
        if (grown == NULL) return fl_jarena_error(arena);
        space->pairs = grown;
    }
    if (found == NULL) space->pairs[space->n++] = (fl_jpair){.key = key, .value = *value};
    for (size_t i = 0; found != NULL && i < space->n; i++) {
        if (&space->pairs[i].value == found) space->pairs[i].value = *value;
    }
    return FL_ERR_OK;
}

static fl_err exec_set(machine *m, const fl_jnode *node) {
    fl_jval value;
    FL_TRY(eval(m, node->a, &value));
    m->run->line = node->line;
    if (node->value.kind == FL_JSTR) return set_attribute(m, node, &value);
    return assign_targets(m, node, &value);
}

static fl_err exec_set_block(machine *m, const fl_jnode *node) {
    fl_jbuf buf = {.run = m->run, .max_bytes = SIZE_MAX}, *before = m->out;
    fl_jval value;
    size_t mark = enter_scope(m);
    m->out = &buf;
    FL_TRY(exec(m, node->a));
    m->out = before;
    leave_scope(m, mark);
    FL_TRY(settle(&buf, &value));
    return assign(m, node->symbol, &value);
}

static fl_err exec_kind(machine *m, const fl_jnode *node) {
    switch (node->kind) {
    case FL_JNODE_BLOCK:
        for (size_t i = 0; i < node->n_items && m->flow == FLOW_ON; i++) FL_TRY(exec(m, node->items[i]));
        return FL_ERR_OK;
    case FL_JNODE_TEXT: return fl_jbuf_add(m->out, node->value.as.str, 0, node->value.as.str->n);
    case FL_JNODE_PRINT: return exec_print(m, node);
    case FL_JNODE_IF: return exec_if(m, node);
    case FL_JNODE_FOR: return exec_for(m, node);
    case FL_JNODE_SET: return exec_set(m, node);
    case FL_JNODE_SET_BLOCK: return exec_set_block(m, node);
    case FL_JNODE_MACRO: m->macros[node->symbol] = node; return FL_ERR_OK;
    case FL_JNODE_BREAK: m->flow = FLOW_BREAK; return FL_ERR_OK;
    case FL_JNODE_CONTINUE: m->flow = FLOW_CONTINUE; return FL_ERR_OK;
    default: return FL_FAIL(FL_ERR_INTERNAL, "chat template: an expression as a statement");
    }
}

static fl_err exec(machine *m, const fl_jnode *node) {
    FL_TRY(enter_level(m, node));
    FL_TRY(exec_kind(m, node));
    m->depth--;
    return FL_ERR_OK;
}

fl_err fl_jinja_render(const fl_jinja *jinja, fl_jrun *run, const fl_jvar *vars, size_t n_vars,
                       const fl_jstr **out) {
    fl_jbuf buf = {.run = run, .max_bytes = run->limits->output_bytes};
    machine m = {.jinja = jinja, .run = run, .scope = 1, .frame = 1, .out = &buf};
    m.slots = fl_jarena_alloc(&run->arena, jinja->n_symbols, sizeof *m.slots);
    m.macros = fl_jarena_alloc(&run->arena, jinja->n_symbols, sizeof(fl_jnode *));
    if (m.slots == NULL || m.macros == NULL) return fl_jarena_error(&run->arena);
    for (size_t i = 0; i < n_vars; i++) {
        for (size_t symbol = 0; symbol < jinja->n_symbols; symbol++) {
            if (fl_jstr_is(jinja->symbols[symbol], vars[i].name))
                m.slots[symbol] = (slot){.value = vars[i].value, .scope = 1};
        }
    }
    FL_TRY(exec(&m, jinja->root));
    return fl_jbuf_finish(&buf, out);
}
