/* A shape as text, for messages. */
#ifndef RW_BASE_SHAPE_TEXT_H
#define RW_BASE_SHAPE_TEXT_H

#include <rewind/types.h>

#define RW_SHAPE_TEXT 208 /* bytes of the text of any shape */

/* Writes "[4, 8]"; of a rank above RW_MAX_RANK the first extents. Returns text. */
const char *rw_shape_text(char *text, size_t size, rw_shape shape);

#endif
