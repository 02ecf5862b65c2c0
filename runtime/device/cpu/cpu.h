/* The CPU device's private state: rw_kernel.device points to it in a CPU kernel. */
#ifndef RW_DEVICE_CPU_CPU_H
#define RW_DEVICE_CPU_CPU_H

#include <rewind/status.h>

#define RW_CPU_MESSAGE 512

struct rw_onednn; /* engine and pinned primitives, device/cpu/onednn.h */
struct rw_copier; /* the thread that serves the copy lanes, device/cpu/copy_thread.h */

struct rw_cpu {
    struct rw_onednn *onednn;
    struct rw_copier *copier;     /* NULL before the first store that needs it */
    char message[RW_CPU_MESSAGE]; /* the first failure, until a caller takes it; "" if there is none */
};

#endif
