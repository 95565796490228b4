#include "server/page.h"

#include <string.h>

const fl_route fl_routes[] = {
    {"POST", "/v1/chat/completions", FL_ROUTE_SLOW | FL_ROUTE_ANSWER, FL_API_CHAT, fl_handle_answer, NULL},
    {"POST", "/v1/completions", FL_ROUTE_SLOW | FL_ROUTE_ANSWER, FL_API_COMPLETION, fl_handle_answer, NULL},
    {"GET", "/v1/models", FL_ROUTE_PREFIX, 0, fl_handle_models, NULL},
    {"POST", "/tokenize", FL_ROUTE_SLOW, FL_API_TOKENIZE, fl_handle_tokenize, NULL},
    {"POST", "/detokenize", FL_ROUTE_SLOW, FL_API_DETOKENIZE, fl_handle_detokenize, NULL},
    {"GET", "/health", FL_ROUTE_OPEN, 0, fl_handle_health, NULL},
    {"GET", "/ready", 0, 0, fl_handle_ready, NULL},
    {"GET", "/metrics", 0, 0, fl_handle_metrics, NULL},
    {"GET", "/version", 0, 0, fl_handle_version, NULL},
    {"GET", "/", FL_ROUTE_OPEN, 0, NULL, &fl_asset_page_html},
    {"GET", "/page.css", FL_ROUTE_OPEN, 0, NULL, &fl_asset_page_css},
    {"GET", "/page.js", FL_ROUTE_OPEN, 0, NULL, &fl_asset_page_js},
    {"GET", "/uplot.js", FL_ROUTE_OPEN, 0, NULL, &fl_asset_uplot_js},
    {"GET", "/uplot.css", FL_ROUTE_OPEN, 0, NULL, &fl_asset_uplot_css},
};
const int fl_routes_n = sizeof fl_routes / sizeof fl_routes[0];

static bool leads_to(const fl_route *route, const char *path) {
    size_t n = strlen(route->path);
    if (strncmp(route->path, path, n) != 0) return false;
    return path[n] == '\0' || ((route->flags & FL_ROUTE_PREFIX) && path[n] == '/');
}

const fl_route *fl_route_find(const char *method, const char *path, const char **allowed) {
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    *allowed = "";
    for (int i = 0; i < fl_routes_n; i++) {
        if (!leads_to(&fl_routes[i], path)) continue;
        if (strcmp(fl_routes[i].method, wanted) == 0) return &fl_routes[i];
        *allowed = strcmp(fl_routes[i].method, "GET") == 0 ? "GET, HEAD" : "POST";
    }
    return NULL;
}
