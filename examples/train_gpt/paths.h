/* Paths of outputs and inputs, checked before hours of training and not after. */
#ifndef REWIND_EXAMPLES_PATHS_H
#define REWIND_EXAMPLES_PATHS_H

#include <stdbool.h>
#include <stddef.h>

enum { PATH_SIZE = 4096 };

/* Follows symbolic links, also one whose target does not exist yet. False with errno. */
bool path_resolve(const char *path, char ret[PATH_SIZE]);

/* The reason that a program could not replace or create the file at `path`; NULL: it can. The path must be a regular
   file or not exist, links are followed, and the folder must be writable, because files are written to temporary names
   and renamed. */
const char *path_output_fault(const char *path);

/* The reason that `path` cannot be read as a file; NULL: it can. A FIFO is refused, because opening it would wait for a
   writer. */
const char *path_input_fault(const char *path);

/* Number of checkpoint files (NUMBER-stepSTEP.safetensors) in the folder; 0 if there is no folder. */
size_t path_count_checkpoints(const char *folder);

/* Whether both are the same existing folder. */
bool path_is_same(const char *a, const char *b);

#endif
