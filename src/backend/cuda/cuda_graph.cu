/* Recordings as CUDA graphs: the stream is captured between record and record_end, what was launched becomes the
 * nodes of a graph, and a replay is one launch for all of them: a decode step has hundreds of kernels, each of
 * which takes the GPU less time than the host needs to launch it. Kernel parameters are kept as they were; what
 * changes from step to step lies in memory. */
#include <stdlib.h>

#include "backend/cuda/cuda_backend.h"

struct fl_recording {
    cudaGraphExec_t run;
};

/* Only this thread's calls may not break a capture: others do not use the device meanwhile. */
fl_err fl_cuda_record(fl_backend *be) {
    return fl_cuda_check(cudaStreamBeginCapture(fl_cuda_of(be)->stream, cudaStreamCaptureModeThreadLocal),
                         "recording a graph");
}

static fl_err make(fl_cuda *cuda, cudaGraph_t graph, fl_recording **out) {
    fl_recording *r = (fl_recording *)calloc(1, sizeof *r);
    if (!r) return FL_FAIL(FL_ERR_NOMEM, "recording");
    fl_err err = fl_cuda_check(cudaGraphInstantiate(&r->run, graph, 0), "making a graph");
    if (err == FL_ERR_OK) err = fl_cuda_check(cudaGraphUpload(r->run, cuda->stream), "placing a graph");
    if (err != FL_ERR_OK) fl_cuda_recording_close(&cuda->base, r);
    else *out = r;
    return err;
}

fl_err fl_cuda_record_end(fl_backend *be, fl_recording **out) {
    fl_cuda *cuda = fl_cuda_of(be);
    cudaGraph_t graph = NULL;
    fl_err err = fl_cuda_check(cudaStreamEndCapture(cuda->stream, &graph), "ending a graph");
    if (err == FL_ERR_OK && out) err = make(cuda, graph, out);
    if (graph) cudaGraphDestroy(graph);
    return err;
}

fl_err fl_cuda_replay(fl_backend *be, const fl_recording *recording) {
    return fl_cuda_check(cudaGraphLaunch(recording->run, fl_cuda_of(be)->stream), "running a graph");
}

void fl_cuda_recording_close(fl_backend *be, fl_recording *r) {
    (void)be;
    if (!r) return;
    if (r->run) cudaGraphExecDestroy(r->run);
    free(r);
}
