/* What the passes and the walker know of a device: one table of functions. Adding a device is filling in another. */
#ifndef RW_DEVICE_DEVICE_H
#define RW_DEVICE_DEVICE_H

#include <rewind/context.h>

struct rw_device_fns {
    const char *name;
    size_t alignment; /* of every buffer in the arena */
    /* The private state that kernels find in rw_kernel.device. */
    rw_status (*open)(void **ret_state);
    void (*close)(void *state);
    void *(*alloc)(void *state, size_t bytes); /* NULL without memory */
    void (*free)(void *state, void *p);
    rw_status (*upload)(void *state, void *to, const void *from, size_t bytes);
    rw_status (*download)(void *state, void *to, const void *from, size_t bytes);
    rw_status (*clear)(void *state, void *to, size_t bytes);
    rw_status (*finish)(void *state); /* waits until all kernels have run */
};

extern const struct rw_device_fns rw_device_cpu;

#endif
