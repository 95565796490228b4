#include <stdio.h>
#include <string.h>

#include "cli/cmd_opcheck.h"

enum { EXIT_USAGE = 2 };

int main(int argc, char **argv) {
    if (argc >= 2 && strcmp(argv[1], "opcheck") == 0) return fl_cmd_opcheck(argc - 1, argv + 1);
    fputs("usage: firstlight opcheck [options]\n", stderr);
    return EXIT_USAGE;
}
