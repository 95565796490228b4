/* Functions that a model may call: the fields "tools" and "tool_choice". */
#ifndef FL_SERVER_API_TOOLS_H
#define FL_SERVER_API_TOOLS_H

#include "server/api_request.h"

/* The function object of tool i: {name, description, parameters}. */
json_t *fl_api_tool(const fl_api_request *request, size_t i);

/* Index of the tool of this name; the number of tools if there is none. */
size_t fl_api_tool_find(const fl_api_request *request, const char *name, size_t n_bytes);

/* After all fields were read: a choice that forces a call becomes a schema that the answer is held to. One
 * possible function: its arguments alone (REQUIRED becomes NAMED); several: {"name": .., "arguments": ..}
 * of any of them. */
fl_err fl_api_tools_force(fl_api_request *request, fl_api_error *error);

#endif
