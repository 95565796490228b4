/* The page at "/": files of src/server/page that travel in the program, made into arrays when it is built. */
#ifndef FL_SERVER_PAGE_H
#define FL_SERVER_PAGE_H

#include "server/route.h"

/* Nothing but our own files and our own API; nobody may frame it. */
#define FL_PAGE_POLICY                                                                                       \
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "           \
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

extern const fl_asset fl_asset_page_html, fl_asset_page_css, fl_asset_page_js, fl_asset_uplot_js,
    fl_asset_uplot_css;

#endif
