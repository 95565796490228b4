/* From a checkpoint's configuration and the engine's settings to positions. */
#ifndef FL_ENGINE_ROPE_CONFIG_H
#define FL_ENGINE_ROPE_CONFIG_H

#include "attn/positions.h"
#include "model/config.h"

typedef enum fl_rope_method {
    FL_ROPE_MODEL,
    FL_ROPE_YARN,
    FL_ROPE_NTK,
    FL_ROPE_TWO_PATH,
    FL_N_ROPE_METHODS
} fl_rope_method;

/* How positions go beyond the trained length. All 0 = the checkpoint's own fields. */
typedef struct fl_rope_extension {
    fl_rope_method method;
    double factor; /* of the trained length, >= 1 */
} fl_rope_extension;

/* FL_ERR_INVALID: no such method, or a factor it cannot have. NULL = "model". */
fl_err fl_rope_extension_parse(const char *method, double factor, fl_rope_extension *out);

/* Positions the model can be run to under this extension. */
int64_t fl_rope_positions(const fl_config *config, const fl_rope_extension *extension);

/* The rotation of a checkpoint. An extension replaces the checkpoint's own one. */
void fl_rope_of_config(const fl_config *config, const fl_rope_extension *extension, fl_rope *out);

/* What q is multiplied by so that scores are exponents of 2: softmax scale (YaRN's factor included) * log2(e). */
float fl_softmax_scale_of_config(const fl_config *config, const fl_rope *rope);

#endif
