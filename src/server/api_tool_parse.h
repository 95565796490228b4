/* Function calls in a model's answer, found while it streams in: text pieces in, content and calls out.
 *
 * Three forms. Markers, as DeepSeek-V3 and V3.1 write them:
 *   <calls begin><call begin>function<sep>NAME\n```json\nARGUMENTS\n```<call end>...<calls end>
 *   <calls begin><call begin>NAME<sep>ARGUMENTS<call end>...<calls end>
 * JSON objects {"name": NAME, "arguments": {..}} that make up the whole answer, NAME one of the request's
 * tools: what models without markers are asked for. Written in this order, their arguments stream; in
 * another order the object is held until it is whole. And, when a call was forced, the arguments alone.
 * What fits none is content. */
#ifndef FL_SERVER_API_TOOL_PARSE_H
#define FL_SERVER_API_TOOL_PARSE_H

#include "server/api_request.h"

/* Where the parser puts what it found, in the answer's order. */
typedef struct fl_tool_sink {
    void (*content)(void *context, const char *text, size_t n);
    void (*call)(void *context, const char *name, size_t n);      /* a call begins */
    void (*arguments)(void *context, const char *text, size_t n); /* a piece of that call's arguments */
    void *context;
} fl_tool_sink;

enum { FL_TOOL_HELD_BYTES_MAX = 1 << 20 }; /* of a call in the JSON form, which is held until it is whole */

typedef enum fl_tool_state {
    FL_TOOL_START,          /* nothing but calls in the JSON form so far */
    FL_TOOL_JSON,           /* in an object that may be a call */
    FL_TOOL_JSON_ARGUMENTS, /* it is one: its arguments are given out as they come */
    FL_TOOL_JSON_TAIL,      /* what is behind them in the object is passed over */
    FL_TOOL_CONTENT,
    FL_TOOL_BETWEEN, /* after calls begin or call end */
    FL_TOOL_HEAD,
    FL_TOOL_NAME, /* V3: the name's line */
    FL_TOOL_FENCE,
    FL_TOOL_ARGUMENTS,
    FL_TOOL_FORCED, /* all of it is arguments */
} fl_tool_state;

/* Plain data but for `held`. */
typedef struct fl_tool_parser {
    const fl_api_request *request; /* borrowed */
    fl_tool_sink sink;
    fl_tool_state state;
    bool called;    /* a call in the JSON form came: white space behind it is no content */
    bool whole;     /* JSON: held to the end of the object, then looked at */
    bool fenced;    /* V3's form: the arguments end with a fence */
    fl_buffer held; /* text not yet decided on */
    size_t seen;    /* JSON: bytes of it walked over */
    int32_t depth;
    bool in_string, escaped;
} fl_tool_parser;

/* For a request with tools and tool_choice other than none. */
void fl_tool_parser_init(fl_tool_parser *parser, const fl_api_request *request, fl_tool_sink sink);
void fl_tool_parser_free(fl_tool_parser *parser);

/* FL_ERR_NOMEM. */
fl_err fl_tool_parser_push(fl_tool_parser *parser, const char *text, size_t n);

/* The end of the answer: what was held is given out as what it can be. */
fl_err fl_tool_parser_finish(fl_tool_parser *parser);

#endif
