/* The bundled text, compressed, as part of the program: it needs no file to be found at run time. The build names the
 * file in FL_HAYSTACK_FILE. */
#include "eval/haystack_bytes.h"

__asm__(".section .rodata\n"
        ".global fl_haystack_begin\n"
        ".global fl_haystack_end\n"
        ".hidden fl_haystack_begin\n"
        ".hidden fl_haystack_end\n"
        "fl_haystack_begin:\n"
        ".incbin \"" FL_HAYSTACK_FILE "\"\n"
        "fl_haystack_end:\n"
        ".byte 0\n"
        ".previous\n");

extern const unsigned char fl_haystack_begin[], fl_haystack_end[];

const unsigned char *fl_haystack_bytes(size_t *n_bytes) {
    *n_bytes = (size_t)(fl_haystack_end - fl_haystack_begin);
    return fl_haystack_begin;
}
