/* Entries of a file of weights that the model lacks: a smaller model would load the rest and save a cut one. */
#ifndef REWIND_EXAMPLES_UNKNOWN_ENTRIES_H
#define REWIND_EXAMPLES_UNKNOWN_ENTRIES_H

#include <rewind/rewind.h>

/* Counts entries of a safetensors file that are no parameter or buffer of the context. Optimizer states and scales do
   not count. ret_first receives the name of the first one, cut to its size. 0 also for a file that cannot be read: the
   call that loads it reports that. */
size_t unknown_entries(const rw_context *ctx, const char *path, char *ret_first, size_t size);

#endif
