/* Small models with unusual lifetimes: long skips, concatenations, many steps. Written with the public API only. */
#ifndef REWIND_BENCH_IRREGULAR_MODELS_H
#define REWIND_BENCH_IRREGULAR_MODELS_H

#include <rewind/rewind.h>

#define ZOO_LAYERS 64

struct zoo_entry {
    const char *name;
    /* One step's loss; parameters are created by the first call. Each layer is a region "layer". */
    rw_tensor *(*loss)(const struct zoo_entry *z, rw_context *ctx, rw_tape *t);
    int layers, width, more; /* more: width of a skip, of the input, or rows */
};

extern const struct zoo_entry zoo[];
extern const int zoo_entries;
extern const char *const zoo_policies[];
extern const int zoo_n_policies;

#endif
