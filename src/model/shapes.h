/* Shapes of public models, for benchmarks with synthetic weights: what config.json says, without a checkpoint. */
#ifndef FL_MODEL_SHAPES_H
#define FL_MODEL_SHAPES_H

#include "model/config.h"

/* NAME or NAME:LAYERS, the first LAYERS layers. max_position_embeddings is that of the longest benchmark and not of the
 * model: positions of random weights mean nothing, so none is out of reach. FL_ERR_INVALID: detail lists the names. */
fl_err fl_shape_find(const char *text, fl_config *out);

#endif
