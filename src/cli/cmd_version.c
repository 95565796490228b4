#include "backend/backend.h"
#include "cli/cli.h"

#include <string.h>

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* Backends that compute and that this CPU can run. */
static bool is_usable(const char *name) {
    return strcmp(name, "count") != 0 && fl_backend_available(name);
}

static int print_json(void) {
    json_t *backends = json_array();
    for (const char *const *name = fl_backend_names(); *name; name++)
        if (is_usable(*name)) json_array_append_new(backends, json_string(*name));
    fl_err err = fl_cli_print_json(
        json_pack("{s:s, s:s, s:o}", "version", fl_version(), "build", COMPILER, "backends", backends));
    return err == FL_ERR_OK ? 0 : fl_cli_fail("version", err);
}

int fl_cmd_version(const fl_options *options) {
    if (options->json) return print_json();
    printf("firstlight %s\nbuild      %s\nbackends  ", fl_version(), COMPILER);
    for (const char *const *name = fl_backend_names(); *name; name++)
        if (is_usable(*name)) printf(" %s", *name);
    printf("\n");
    return 0;
}
