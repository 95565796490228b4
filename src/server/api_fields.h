/* The table of the API's fields: which endpoint takes them, what they must be, where they go. Adding a
 * field starts with a line in api_fields.c. null counts as absent everywhere; fields not in the table are
 * ignored. */
#ifndef FL_SERVER_API_FIELDS_H
#define FL_SERVER_API_FIELDS_H

#include "server/api_request.h"

/* What readers work on. */
typedef struct fl_api_parser {
    const fl_api_settings *settings;
    fl_api_request *request;
    fl_api_error *error;
} fl_api_parser;

/* Reads one value that is there and not null. */
typedef fl_err fl_api_read_fn(fl_api_parser *parser, const char *name, json_t *value);

typedef enum fl_api_type {
    FL_API_TYPE_INT,     /* int64_t at `offset`, min..max */
    FL_API_TYPE_REAL,    /* double at `offset`, min..max, a whole number is one too */
    FL_API_TYPE_BOOL,    /* bool at `offset` */
    FL_API_TYPE_STRING,  /* const char * at `offset`, min..max bytes, no NUL inside */
    FL_API_TYPE_OBJECT,  /* json_t * at `offset`, borrowed */
    FL_API_TYPE_CODE,    /* by `read` */
    FL_API_TYPE_REFUSED, /* false, null and empty values only; `text` says why */
} fl_api_type;

typedef struct fl_api_field {
    const char *name;
    unsigned endpoints; /* bits 1 << fl_api_kind */
    fl_api_type type;
    double min, max;
    bool above_min; /* REAL: min itself is not allowed */
    bool below_max; /* REAL: max itself is not allowed */
    size_t offset;  /* into fl_api_request */
    fl_api_read_fn *read;
    const char *text;
} fl_api_field;

extern const fl_api_field fl_api_fields[]; /* ends with a NULL name */

/* Reads every field of the table that the body has, in the table's order. */
fl_err fl_api_fields_read(fl_api_parser *parser, const json_t *root);

/* ---- for readers --------------------------------------------------------------------------------------- */

/* "a string", "null", "the number 3", for messages. */
typedef struct fl_api_found {
    char text[96];
} fl_api_found;
fl_api_found fl_api_found_of(const json_t *value);

/* Is it this string, to its last byte (a NUL inside does not end it)? */
bool fl_api_is(const json_t *value, const char *text);

/* 400, "PARAM: expected WANTED, found ...". */
fl_err fl_api_refuse(fl_api_parser *parser, const char *param, const char *wanted, const json_t *found);

/* A string of min..max bytes without NUL inside, borrowed. */
fl_err fl_api_read_string(fl_api_parser *parser, const char *param, json_t *value, size_t max_bytes,
                          const char **out);

/* A whole number min..max. */
fl_err fl_api_read_int(fl_api_parser *parser, const char *param, const json_t *value, int64_t min,
                       int64_t max, int64_t *out);

/* Room for the path of a field: "messages[12].content[3].text". */
typedef struct fl_api_path {
    char text[96];
} fl_api_path;
fl_api_path fl_api_path_of(const char *format, ...) FL_PRINTF(1, 2);

/* Readers, by file. */
fl_api_read_fn fl_api_read_messages, fl_api_read_tools,
    fl_api_read_tool_choice; /* api_messages.c, api_tools.c */
fl_api_read_fn fl_api_read_prompt, fl_api_read_tokens, fl_api_read_stop, fl_api_read_stop_tokens,
    fl_api_read_logit_bias, fl_api_read_response_format, fl_api_read_stream_options,
    fl_api_read_legacy_logprobs; /* api_values.c */

/* After all fields of a chat: the question of its last user message. api_messages.c */
void fl_api_find_question(fl_api_request *request);

#endif
