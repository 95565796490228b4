#include "server/call.h"

#include "server/json_write.h"

static void write_mark(const fl_mark *m, double offset_s, fl_buffer *out) {
    fl_buffer_add_text(out, "{\"name\":");
    fl_json_text(out, m->name);
    fl_buffer_add_text(out, ",\"start_s\":");
    fl_json_real(out, m->start_s + offset_s, 6);
    fl_buffer_add_text(out, ",\"end_s\":");
    fl_json_real(out, m->end_s + offset_s, 6);
    fl_buffer_add_text(out, ",\"tokens\":");
    fl_json_int(out, m->tokens);
    fl_buffer_add_text(out, "}");
}

void fl_timeline_write(const fl_call *call, const fl_mark *marks, int32_t n_marks, fl_buffer *out) {
    double arrived_s = fl_http_get_head(call->exchange)->arrived_s, offset_s = call->submitted_s - arrived_s;
    const fl_mark front[] = {{.name = "receive", .end_s = call->read_s - arrived_s},
                             {.name = "tokenize",
                              .start_s = call->read_s - arrived_s,
                              .end_s = offset_s,
                              .tokens = call->prompt_tokens}};
    fl_buffer_add_text(out, ": timeline [");
    for (size_t i = 0; i < sizeof front / sizeof front[0]; i++) {
        write_mark(&front[i], 0, out);
        if (i == 0 || n_marks > 0) fl_buffer_add_text(out, ",");
    }
    for (int32_t i = 0; i < n_marks; i++) {
        write_mark(&marks[i], offset_s, out);
        if (i + 1 < n_marks) fl_buffer_add_text(out, ",");
    }
    fl_buffer_add_text(out, "]\n\n");
}
