/*
 * Errors that kernels record after their calls have returned. Kernels write them; the host reads them at the next
 * synchronization.
 */
#ifndef RW_DEVICE_ERROR_FLAGS_H
#define RW_DEVICE_ERROR_FLAGS_H

#include <stdint.h>

struct rw_error_flags {
    /* 1 + the serial of an action that found an index out of range, and of the first comparison that failed; 0: none */
    uint32_t bad_index, bad_comparison;
};

#endif
