/* What `firstlight calibrate` measured of a checkpoint, kept as calibration.json beside it: budgets of the policy
 * "blocks", temperatures of extended positions, outlier dimensions of the int4 KV format. Fields of the file, all
 * optional but the first four:
 *   format 1, layers, heads, latent_dim     must match the checkpoint
 *   length                                  tokens of the documents measured
 *   block                                   64 or 128
 *   density                                 share of visible blocks attended at that length, for predictions
 *   density_by_head                         [layers][heads] the same one by one, for benchmarks of other shapes
 *   alpha                                   share of the best block's score from which on a block is attended
 *   alpha_by_head, bias                     [layers][heads]; in place of alpha; log2, added to a block's mean
 *   dense_heads                             [[layer, head], ...] that attend everything
 *   temperature                             [layers], factors of the softmax scale
 *   outliers                                [layers][n], n <= 8 latent dimensions, ascending
 *   measured                                whatever the run found: for people, not read */
#ifndef FL_ATTN_CALIBRATION_H
#define FL_ATTN_CALIBRATION_H

#include <jansson.h>

#include "op/op_types.h"

#define FL_CALIBRATION_NAME "calibration.json"

typedef struct fl_calibration {
    int32_t layers, heads, latent_dim;
    int64_t length;
    int32_t block;          /* 0 = not said */
    double density, alpha;  /* 0 = not said */
    float *alpha_by_head;   /* [layers][heads] or NULL */
    float *density_by_head; /* [layers][heads] or NULL */
    float *bias;            /* [layers][heads] or NULL */
    bool *dense;            /* [layers][heads] or NULL */
    float *temperature;     /* [layers] or NULL */
    uint16_t *outliers;     /* [layers][n_outliers] or NULL */
    int32_t n_outliers;
} fl_calibration;

/* Reads dir/name for a model of these dimensions (set in *out by the caller, all else 0). FL_ERR_DATA, FL_ERR_IO: it
 * cannot be read. FL_ERR_CONFIG: not a calibration of this model (detail names the field). The caller closes *out in
 * any case. */
fl_err fl_calibration_read(const char *dir, const char *name, fl_calibration *out);

/* The same from a text, for tests and fuzzing. `name` is what errors call it. */
fl_err fl_calibration_parse(const char *name, const char *text, size_t text_bytes, fl_calibration *out);

/* Of dir/name, of a model of any dimensions, layers, heads and density_by_head alone: also a report of `bench prefill
 * --json` has them. Errors as above; FL_ERR_CONFIG also where one of them is missing. The caller closes *out in any
 * case. */
fl_err fl_calibration_read_density(const char *dir, const char *name, fl_calibration *out);
fl_err fl_calibration_parse_density(const char *name, const char *text, size_t text_bytes,
                                    fl_calibration *out);

/* A row of numbers a layer: [rows][columns]. NULL: out of memory, or a number that JSON has not. */
json_t *fl_calibration_table_json(const float *values, int32_t rows, int32_t columns);

/* The file's fields; dense_heads always, of the others those that are said. NULL: out of memory, or a number that
 * JSON has not. */
json_t *fl_calibration_json(const fl_calibration *c);

/* Writes dir/name so that fl_calibration_read gives *c back, and `measured` (borrowed; NULL = none) beside it. */
fl_err fl_calibration_write(const char *dir, const char *name, const fl_calibration *c, json_t *measured);

void fl_calibration_close(fl_calibration *c);

#endif
