/* Density of block lists by layer and head: what one model showed, imposed on another one that was never trained. */
#ifndef FL_ATTN_DENSITY_H
#define FL_ATTN_DENSITY_H

#include <stdio.h>

#include "attn/calibration.h"

/* Shares by layer and head; share[layers][heads] is of the caller's memory. */
typedef struct fl_density_table {
    int32_t layers, heads;
    float *share;
} fl_density_table;

/* Fills out->share from from->share, whose sizes may be others. A layer takes the layer at its relative depth. In it
 * head h of H stands where source head floor((h + 1/2) * from->heads / H) stands, so that what is uneven stays in its
 * place; of the heads, in the order of those places' shares, the i-th takes the quantile (i + 1/2) / H of the source
 * layer's shares, linear between them. Equal sizes give an equal table. FL_ERR_NOMEM. */
fl_err fl_density_map(const fl_density_table *from, const fl_density_table *out);

/* One factor for all shares, none above 1 afterwards, so that their mean is `mean` (0 < mean <= 1). Shares must lie in
 * (0, 1]. */
void fl_density_scale(const fl_density_table *table, double mean);

typedef struct fl_density_range {
    double least, mean, most;
} fl_density_range;

fl_density_range fl_density_range_of(const fl_density_table *table);

/* A picture for people: a line a layer, a sign a head, with the layer's range. */
void fl_density_print(FILE *file, const fl_density_table *table);

#endif
