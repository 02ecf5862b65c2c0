/* What kernels of a run that have long returned could not say: written by them, read by the host when they have run. */
#ifndef RW_DEVICE_WORDS_H
#define RW_DEVICE_WORDS_H

#include <stdint.h>

struct rw_run_words {
    /* 1 + the serial of an action that met an index out of range, and of the first comparison that failed; 0: none */
    uint32_t bad_index, bad_comparison;
};

#endif
