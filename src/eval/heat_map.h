/* Scores by depth and length as a picture: an SVG with one panel a side, rows from the document's beginning to its end,
 * a column a length. Every field says its score in figures; the colour only helps to find it. The scale runs from dark
 * blue to light yellow: its lightness rises steadily, so it reads the same in grey and to colour-blind eyes. */
#ifndef FL_EVAL_HEAT_MAP_H
#define FL_EVAL_HEAT_MAP_H

#include "eval/eval_report.h"

/* Writes the whole file. Over the tasks that count. FL_ERR_IO: the stream failed. */
fl_err fl_heat_map_write(FILE *file, const fl_eval_report *report, const fl_eval_about *about);

#endif
