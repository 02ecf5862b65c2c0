/* The CPU device's private state: what rw_kernel.device points to in a CPU kernel. */
#ifndef RW_DEVICE_CPU_CPU_H
#define RW_DEVICE_CPU_CPU_H

#include <rewind/status.h>

#define RW_CPU_MESSAGE 512

struct rw_onednn; /* engine and pinned primitives, device/cpu/onednn.h */
struct rw_copier; /* the thread that serves the copy lanes, device/cpu/lanes.h */

struct rw_cpu {
    struct rw_onednn *onednn;
    struct rw_copier *copier;     /* NULL before the first store that needs it */
    char message[RW_CPU_MESSAGE]; /* what failed, until somebody takes it; "" when nothing did */
};

#endif
