/* Any bytes as a safetensors file. What the parser accepts must hold what it promises. */
#include "model/safetensors.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    fl_safetensors st;
    if (fl_safetensors_parse("input", bytes, n_bytes, &st) != FL_ERR_OK) {
        if (fl_err_detail()[0] == '\0' || st.entries || st.names) abort();
        return 0;
    }
    int64_t covered = 0;
    for (int64_t i = 0; i < st.n_entries; i++) {
        const fl_safetensors_entry *entry = &st.entries[i];
        if (entry->begin_bytes < 0 || entry->end_bytes > st.data_bytes || entry->elements < 0) abort();
        if (fl_safetensors_find(&st, entry->name) != entry) abort();
        volatile unsigned char last = entry->end_bytes ? st.data[entry->end_bytes - 1] : 0;
        (void)last;
        covered += entry->end_bytes - entry->begin_bytes;
    }
    if (covered != st.data_bytes || st.data + st.data_bytes != bytes + n_bytes) abort();
    fl_safetensors_close(&st);
    return 0;
}
