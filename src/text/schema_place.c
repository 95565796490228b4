/* Places in a schema: JSON pointers (RFC 6901) to things and from references. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hex.h"
#include "text/schema_build.h"

enum { DEPTH_MAX = 2048 /* jansson's */, POINTER_BYTES = 256, TOKEN_BYTES = 1024 };

/* One open container of the walk. */
typedef struct place {
    const json_t *value, *resource; /* what "#" means in it */
    void *iterator;                 /* objects */
    size_t index;                   /* arrays: of the next */
} place;

static void append(char *out, size_t *n, const char *text) {
    for (; *text && *n < POINTER_BYTES - 3; text++) {
        bool escaped = *text == '~' || *text == '/';
        out[(*n)++] = escaped ? '~' : *text;
        if (escaped) out[(*n)++] = *text == '~' ? '0' : '1';
    }
    out[*n] = '\0';
}

static void write_pointer(const place *stack, int depth, char *out) {
    char number[24];
    size_t n = 1;
    out[0] = '#';
    out[1] = '\0';
    for (int i = 0; i < depth; i++) {
        const place *p = &stack[i];
        if (n < POINTER_BYTES - 3) out[n++] = '/';
        snprintf(number, sizeof number, "%zu", p->index - 1);
        append(out, &n, json_is_object(p->value) ? json_object_iter_key(p->iterator) : number);
    }
}

/* The next child of a container, NULL behind the last. */
static const json_t *next_child(place *p) {
    json_t *value = (json_t *)(uintptr_t)p->value; /* jansson's iterators take no const */
    if (json_is_array(value)) return json_array_get(value, p->index++);
    p->iterator = p->iterator ? json_object_iter_next(value, p->iterator) : json_object_iter(value);
    return p->iterator ? json_object_iter_value(p->iterator) : NULL;
}

/* Depth first, until `target` is met. */
static void find(const json_t *root, const json_t *target, char *out) {
    place *stack = calloc(DEPTH_MAX, sizeof *stack);
    int depth = 0;
    snprintf(out, POINTER_BYTES, "#");
    if (!stack || root == target) {
        free(stack);
        return;
    }
    stack[depth++] = (place){.value = root};
    while (depth > 0) {
        const json_t *child = next_child(&stack[depth - 1]);
        if (!child) {
            depth--;
        } else if (child == target) {
            write_pointer(stack, depth, out);
            break;
        } else if ((json_is_object(child) || json_is_array(child)) && depth < DEPTH_MAX) {
            stack[depth++] = (place){.value = child};
        }
    }
    free(stack);
}

fl_err fl_schema_fail(fl_schema_build *b, fl_err code, const json_t *at, const char *keyword,
                      const char *format, ...) {
    char pointer[POINTER_BYTES], why[256];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    find(b->root, at, pointer);
    return fl_err_set(code, __FILE__, __LINE__, "json_schema: %s%s%.64s: %s", pointer, keyword ? "/" : "",
                      keyword ? keyword : "", why);
}

/* One token of the pointer at *text, unescaped into out; false: it is too long. */
static bool read_token(const char **text, char *out) {
    size_t n = 0;
    const char *p = *text;
    while (*p && *p != '/') {
        char c = *p++;
        if (c == '%' && fl_hex_digit(p[0]) >= 0 && fl_hex_digit(p[1]) >= 0) {
            c = (char)(fl_hex_digit(p[0]) << 4 | fl_hex_digit(p[1]));
            p += 2;
        }
        if (c == '~' && (*p == '0' || *p == '1')) c = *p++ == '0' ? '~' : '/';
        if (n == TOKEN_BYTES - 1) return false;
        out[n++] = c;
    }
    out[n] = '\0';
    *text = p;
    return true;
}

/* Notes where "#" means another schema than the root. */
static fl_err note_reference(fl_schema_build *b, const json_t *schema, const json_t *resource) {
    if (resource == b->root || !json_object_get(schema, "$ref")) return FL_ERR_OK;
    if (b->n_references == FL_SCHEMA_REFERENCES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "json_schema: more than %d references below $id",
                       FL_SCHEMA_REFERENCES_MAX);
    b->references[b->n_references++] = (fl_schema_reference){schema, resource};
    return FL_ERR_OK;
}

static fl_err note_all(fl_schema_build *b, place *stack) {
    int depth = 0;
    stack[depth++] = (place){.value = b->root, .resource = b->root};
    FL_TRY(note_reference(b, b->root, b->root));
    while (depth > 0) {
        const place *p = &stack[depth - 1];
        const json_t *child = next_child(&stack[depth - 1]), *resource = p->resource;
        if (!child) {
            depth--;
        } else if ((json_is_object(child) || json_is_array(child)) && depth < DEPTH_MAX) {
            if (json_is_string(json_object_get(child, "$id"))) resource = child;
            FL_TRY(note_reference(b, child, resource));
            stack[depth++] = (place){.value = child, .resource = resource};
        }
    }
    return FL_ERR_OK;
}

static int by_schema(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const fl_schema_reference *)a)->schema;
    uintptr_t y = (uintptr_t)((const fl_schema_reference *)b)->schema;
    return x < y ? -1 : x > y;
}

fl_err fl_schema_find_references(fl_schema_build *b) {
    place *stack = calloc(DEPTH_MAX, sizeof *stack);
    if (!stack) return FL_FAIL(FL_ERR_NOMEM, "json_schema");
    fl_err err = note_all(b, stack);
    free(stack);
    if (b->n_references > 0) qsort(b->references, b->n_references, sizeof *b->references, by_schema);
    return err;
}

static const json_t *resource_of(const fl_schema_build *b, const json_t *schema) {
    const fl_schema_reference key = {schema, NULL}, *found = NULL;
    if (b->n_references > 0)
        found = bsearch(&key, b->references, b->n_references, sizeof *b->references, by_schema);
    return found ? found->resource : b->root;
}

static const json_t *child_named(const json_t *parent, const char *token) {
    if (json_is_object(parent)) return json_object_get(parent, token);
    bool number = token[0] && strspn(token, "0123456789") == strlen(token);
    return number ? json_array_get(parent, (size_t)strtoul(token, NULL, 10))
                  : NULL; /* NULL if it is no array */
}

fl_err fl_schema_resolve(fl_schema_build *b, const json_t *schema, const char *reference,
                         const json_t **out) {
    char token[TOKEN_BYTES];
    const json_t *at = resource_of(b, schema);
    const char *text = reference + 1;
    if (reference[0] != '#' || (*text && *text != '/'))
        return FL_SCHEMA_FAIL(b, FL_ERR_UNSUPPORTED, schema, "$ref",
                              "only \"#\" and \"#/...\", found \"%.64s\"", reference);
    while (*text && at) {
        text++;
        at = read_token(&text, token) ? child_named(at, token) : NULL;
    }
    if (!json_is_object(at) && !json_is_boolean(at))
        return FL_SCHEMA_FAIL(b, FL_ERR_INVALID, schema, "$ref", "no schema at \"%.64s\"", reference);
    *out = at;
    return FL_ERR_OK;
}
