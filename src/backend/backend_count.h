/* The counting backend's constructor; everything else about it is in backend.h. */
#ifndef FL_BACKEND_BACKEND_COUNT_H
#define FL_BACKEND_BACKEND_COUNT_H

#include "backend/backend.h"

/* Counts for a backend with the formats (act_dtype, layout, kv_f32) of `like`; its other fields are not used.
 */
fl_err fl_backend_open_count(const fl_backend *like, fl_backend **out);

#endif
