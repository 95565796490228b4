/* Models that were never trained: what decides the speed of one and random weights leave open. */
#ifndef FL_MODEL_SYNTHETIC_H
#define FL_MODEL_SYNTHETIC_H

#include "model/config.h"

typedef struct fl_synthetic {
    uint64_t seed;  /* of all weights */
    float hot_bias; /* of the router for hot experts */
    double
        skew; /* what it comes to: load of a hot expert over the mean load, in a simulation of the router */
} fl_synthetic;

/* Deviation of a linear weight of k inputs: outputs of half their inputs' size. */
float fl_synthetic_deviation(int32_t k);

/* Random routers load all experts alike. One expert of eight is made hot by a bias, so that it is expected to have
 * `skew` times the mean load: 1 = no bias. FL_ERR_INVALID: this router cannot be made so uneven. FL_ERR_UNSUPPORTED: it
 * has no bias. */
fl_err fl_synthetic_make(const fl_config *config, uint64_t seed, double skew, fl_synthetic *out);

/* The router's bias for expert `expert` of layer `layer`: hot experts are others in each layer. */
float fl_synthetic_router_bias(const fl_synthetic *made, int32_t layer, int32_t expert);

#endif
