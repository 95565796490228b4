#include "cli/progress.h"

#include <math.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/format.h"

static const double redraw_s = 0.1;

void fl_progress_init(fl_progress *p, const fl_options *options) {
    *p = (fl_progress){.shown = !options->quiet && (options->progress || isatty(STDERR_FILENO)), .label = ""};
}

void fl_progress_begin(fl_progress *p, const char *label) {
    p->label = label;
    p->start_s = fl_now_s();
    p->last_s = 0;
}

int fl_terminal_columns(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 100;
}

/* Whole seconds: more would only flicker. */
static fl_text32 time_left(double left_s) {
    fl_text32 out;
    double whole_s = ceil(left_s);
    if (whole_s < 100) snprintf(out.s, sizeof out.s, "%.0f s", whole_s);
    else snprintf(out.s, sizeof out.s, "%.0f min", ceil(left_s / 60));
    return out;
}

void fl_progress_show(fl_progress *p, double fraction, const char *note) {
    double now_s = fl_now_s(), spent_s = now_s - p->start_s;
    if (!p->shown || now_s - p->last_s < redraw_s) return;
    p->last_s = now_s;
    fraction = fraction < 0 ? 0 : fraction > 1 ? 1 : fraction;
    char left[64] = "";
    if (fraction > FL_PROGRESS_TELLING && fraction < 1 && spent_s > 0.3)
        snprintf(left, sizeof left, ", %s left", time_left(spent_s * (1 - fraction) / fraction).s);
    char tail[160];
    int n = snprintf(tail, sizeof tail, " %3.0f%%  %s%s", fraction * 100, note, left);
    int room = fl_terminal_columns() - 1, width = room - 12 - n;
    if (width > 40) width = 40;
    if (width < 4) fprintf(stderr, "\r%-9.9s %3.0f%%\033[K", p->label, fraction * 100);
    else fprintf(stderr, "\r%-9s %s%s\033[K", p->label, fl_format_bar(0, fraction, width, "░").s, tail);
    fflush(stderr);
    p->drawn = true;
}

void fl_progress_clear(fl_progress *p) {
    if (p->drawn) fputs("\r\033[K", stderr);
    p->drawn = false;
}

void fl_progress_bytes(void *context, int64_t done_bytes, int64_t total_bytes) {
    char note[96];
    snprintf(note, sizeof note, "%s of %s", fl_format_bytes(done_bytes).s, fl_format_bytes(total_bytes).s);
    fl_progress_show(context, total_bytes > 0 ? (double)done_bytes / (double)total_bytes : 1, note);
}
