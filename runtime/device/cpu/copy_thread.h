/*
 * Copy lanes of the CPU device: one thread per device executes the copies that are queued, in order. A kernel has
 * finished when it returns, so a copy waits only for the copies before it.
 *
 * The thread starts with the first store that needs it, and ends with the device. It does not exist in a child of
 * fork(); there a copy is executed when it is queued. If copies fail, the first failure is reported by the wait for
 * that copy or for a later one, and later copies are not executed. rw_cpu_lanes_finish() reports a failure that no wait
 * has reported, and clears it.
 *
 * The thread sleeps most of the time, while the disk works. Between two pieces it must run at once, although compute
 * threads may use all cores. So it requests a short time slice, and Linux 6.12 and later then schedule it early.
 */
#ifndef RW_DEVICE_CPU_COPY_THREAD_H
#define RW_DEVICE_CPU_COPY_THREAD_H

#include "device/cpu/cpu.h"

#include <stddef.h>
#include <stdint.h>

#define RW_COPY_CHUNK ((size_t)4 << 20) /* bytes of the buffer that a copy may use */
#define RW_COPY_ALIGNMENT 4096

/* One copy. The thread calls run(), so nothing that it uses may be freed before the copy was waited for. */
struct rw_copy {
    rw_status (*run)(const struct rw_copy *copy, void *room, char *why, size_t size);
    void *store;
    uint64_t at, bytes; /* in the store */
    void *memory;
    bool out;
};

/* Starts the thread if necessary. RW_ERR_MEMORY: it cannot be started; the device's message says so. */
rw_status rw_cpu_lanes_start(struct rw_cpu *cpu);
/* Waits for the queue and ends the thread. */
void rw_cpu_lanes_stop(struct rw_cpu *cpu);

/* Queues a copy. Waits if too many are queued. */
void rw_cpu_lanes_queue(struct rw_cpu *cpu, const struct rw_copy *copy);
/* Waits for all copies. */
rw_status rw_cpu_lanes_finish(struct rw_cpu *cpu);
/* The same, without reporting or clearing a failure. */
void rw_cpu_lanes_drain(struct rw_cpu *cpu);
/* Are all copies finished? */
bool rw_cpu_lanes_are_done(struct rw_cpu *cpu);

/* The functions of the device's table: device.h. */
struct rw_events *rw_cpu_make_events(void *state, size_t n);
void rw_cpu_free_events(void *state, struct rw_events *events);
rw_status rw_cpu_signal(void *state, int lane, struct rw_events *events, size_t event);
rw_status rw_cpu_wait(void *state, int lane, struct rw_events *events, size_t event);

#endif
