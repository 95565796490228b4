/* kv_read, AVX-512: as the portable version, with latents dequantised by vectors. */
#include "op/kv_read/kv_read_pages.h"

static void read_latents(const fl_kv_layer *layer, const uint8_t *piece, fl_kv_slots slots, fl_dtype act,
                         void *out) {
    (void)act; /* this backend's is bf16 */
    fl_kv_latents_read_avx512(layer, piece, slots, out);
}

fl_err fl_kv_read_avx512(fl_backend *be, const fl_kv_read_args *a) {
    return fl_kv_read_pages(be, a, read_latents);
}
