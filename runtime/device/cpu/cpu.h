/* The CPU device's private state: what rw_kernel.device points to in a CPU kernel. */
#ifndef RW_DEVICE_CPU_CPU_H
#define RW_DEVICE_CPU_CPU_H

#include <rewind/status.h>

struct rw_onednn; /* engine and pinned primitives, device/cpu/onednn.h */

struct rw_cpu {
    struct rw_onednn *onednn;
};

#endif
