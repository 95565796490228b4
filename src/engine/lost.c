/* A device that is lost. Some faults (an access outside of memory, a kernel that hangs) leave the process no use of its
 * GPU: every later call fails alike. Then what runs ends at once with the fault's name, and callers are told to start
 * a new process; nothing waits for a step that cannot come. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"

/* With the words of the last error. */
static void lose(fl_engine *e) {
    pthread_mutex_lock(&e->lock);
    if (!e->lost[0])
        snprintf(e->lost, sizeof e->lost, "%s; the device takes no more work of this process: restart it",
                 fl_err_detail());
    pthread_mutex_unlock(&e->lock);
}

void fl_engine_enter_device(fl_engine *e) {
    if (e->be->enter && e->be->enter(e->be) != FL_ERR_OK) lose(e);
}

void fl_engine_check_device(fl_engine *e) {
    /* Once more: a call that was only refused leaves a device that works. */
    if (e->be->wait && e->be->wait(e->be) == FL_ERR_DEVICE) lose(e);
}

bool fl_engine_end_lost(fl_engine *e, fl_request **run, int32_t n) {
    char words[sizeof e->lost];
    pthread_mutex_lock(&e->lock);
    memcpy(words, e->lost, sizeof words);
    pthread_mutex_unlock(&e->lock);
    for (int32_t i = 0; words[0] && i < n; i++)
        fl_request_finish(run[i], FL_FINISH_ERROR, FL_FAIL(FL_ERR_DEVICE, "%s", words));
    return words[0] != 0;
}
