#ifndef FL_BASE_HEX_H
#define FL_BASE_HEX_H

/* The value of a hexadecimal digit of either case, or -1. */
static inline int fl_hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

#endif
