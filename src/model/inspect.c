/* Parameters are counted over the manifest, so that the count is of the model and not of what else the files hold. */
#include "model/inspect.h"

#include "model/manifest.h"

#include <string.h>

typedef struct count {
    const fl_config *config;
    fl_inspection *out;
    int64_t routed; /* parameters of all routed experts */
} count;

static fl_err count_tensor(void *context, const fl_manifest_tensor *tensor) {
    count *c = context;
    int64_t n = tensor->dims[0] * (tensor->ndim == 2 ? tensor->dims[1] : 1);
    if (tensor->optional) { /* tied: the embedding table is the head and is multiplied with */
        c->out->active_parameters += n;
        return FL_ERR_OK;
    }
    c->out->parameters += n;
    if (tensor->use == FL_MANIFEST_USE_ALWAYS) c->out->active_parameters += n;
    if (tensor->use == FL_MANIFEST_USE_ROUTED) c->routed += n;
    return FL_ERR_OK;
}

/* The place of `name` in the sorted list, made if it is new. */
static fl_inspection_dtype *find_dtype(fl_inspection *out, const char *name) {
    int32_t i = 0;
    while (i < out->n_dtypes && strcmp(out->dtypes[i].name, name) < 0) i++;
    if (i < out->n_dtypes && strcmp(out->dtypes[i].name, name) == 0) return &out->dtypes[i];
    if (out->n_dtypes == FL_INSPECTION_DTYPES_MAX) return NULL; /* the container has fewer formats */
    memmove(&out->dtypes[i + 1], &out->dtypes[i], (size_t)(out->n_dtypes - i) * sizeof out->dtypes[0]);
    out->n_dtypes++;
    out->dtypes[i] = (fl_inspection_dtype){.name = name};
    return &out->dtypes[i];
}

void fl_inspect_checkpoint(const fl_checkpoint *checkpoint, fl_inspection *out) {
    const fl_config *config = fl_checkpoint_config(checkpoint);
    *out = (fl_inspection){.config = *config,
                           .tensors = fl_checkpoint_count(checkpoint),
                           .n_shards = fl_checkpoint_shard_count(checkpoint)};
    count c = {.config = config, .out = out};
    fl_manifest_visit(config, count_tensor, &c); /* count_tensor never fails */
    if (config->n_routed_experts > 0)
        out->active_parameters += c.routed / config->n_routed_experts * config->experts_per_token;
    for (int64_t i = 0; i < out->tensors; i++) {
        fl_tensor tensor;
        fl_checkpoint_at(checkpoint, i, &tensor);
        out->bytes += tensor.bytes;
        fl_inspection_dtype *dtype = find_dtype(out, tensor.dtype_name);
        if (!dtype) continue;
        dtype->tensors++;
        dtype->elements += tensor.elements;
        dtype->bytes += tensor.bytes;
    }
}
