/* The table of config.json fields: which are used and where they go, which change nothing here, which must
 * have one value, and which mark a model firstlight would run wrongly. Adding a field to firstlight starts
 * with a line here. */
#ifndef FL_MODEL_CONFIG_FIELD_H
#define FL_MODEL_CONFIG_FIELD_H

#include "model/config.h"

#include <jansson.h>

typedef enum fl_config_field_kind {
    FL_CONFIG_FIELD_INT,     /* int32_t at `offset`, min..max; null counts as absent */
    FL_CONFIG_FIELD_REAL,    /* double at `offset`, min..max; null counts as absent */
    FL_CONFIG_FIELD_BOOL,    /* bool at `offset`; null counts as absent */
    FL_CONFIG_FIELD_CODE,    /* read by code of its own in config.c */
    FL_CONFIG_FIELD_IGNORED, /* cannot change what is computed */
    FL_CONFIG_FIELD_FIXED,   /* null or exactly the JSON text in `text` */
    FL_CONFIG_FIELD_REFUSED, /* null or false only; `text` says why */
} fl_config_field_kind;

typedef struct fl_config_field {
    const char *name;
    fl_config_field_kind kind;
    size_t offset; /* into the struct the table fills */
    double min, max;
    bool required;
    const char *text;
} fl_config_field;

/* Fields of config.json itself, filling an fl_config; ends with a NULL name. */
extern const fl_config_field fl_config_fields[];

/* Fields of "rope_scaling" and "rope_parameters", filling an fl_rope_scaling. */
extern const fl_config_field fl_config_rope_fields[];

/* Fields of "quantization_config"; all are read by code. */
extern const fl_config_field fl_config_quantisation_fields[];

/* Checks every member of `object` against `fields` and stores what they say in `target`. `where` is put
 * before field names in messages ("" or "rope_scaling."). FL_ERR_DATA names the first bad field. */
fl_err fl_config_field_read(const fl_config_field *fields, const char *where, const json_t *object,
                            void *target);

/* The same checks for a number read by code. */
fl_err fl_config_field_int(const char *name, const json_t *value, int64_t min, int64_t max, int32_t *out);

#endif
