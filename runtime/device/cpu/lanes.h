/*
 * Copies beside compute: one thread of a device that carries out what is queued on the copy lanes, in the order in
 * which it was queued. Compute itself has run when a kernel returns, so a copy waits for nothing but those before it.
 *
 * The thread starts with the first store that needs it and ends with the device. In a child of fork() there is none: a
 * copy is carried out where it is queued. Of several copies that fail the first is told, by the wait for it or for one
 * behind it; those behind it are not carried out. rw_cpu_lanes_finish() tells what nobody has been told, and forgets.
 *
 * The thread sleeps nearly all the time, while the disk works. Between two pieces it has to be let in at once, though
 * threads that compute may have all cores: so it asks for a short turn, which Linux 6.12 and later give early.
 */
#ifndef RW_DEVICE_CPU_LANES_H
#define RW_DEVICE_CPU_LANES_H

#include "device/cpu/cpu.h"

#include <stddef.h>
#include <stdint.h>

#define RW_COPY_CHUNK ((size_t)4 << 20) /* bytes of the room that a copy may use on its way */
#define RW_COPY_ALIGNMENT 4096

/* One copy. run() is called by the thread: nothing that it uses may be freed before it has been waited for. */
struct rw_copy {
    rw_status (*run)(const struct rw_copy *copy, void *room, char *why, size_t size);
    void *store;
    uint64_t at, bytes; /* in the store */
    void *memory;
    bool out;
};

/* Makes sure of the thread. RW_ERR_MEMORY: it cannot be started; the device's message says so. */
rw_status rw_cpu_lanes_start(struct rw_cpu *cpu);
/* Waits for what is queued, ends the thread. */
void rw_cpu_lanes_stop(struct rw_cpu *cpu);

/* Waits when too many are queued already. */
void rw_cpu_lanes_queue(struct rw_cpu *cpu, const struct rw_copy *copy);
/* Waits for all. */
rw_status rw_cpu_lanes_finish(struct rw_cpu *cpu);
/* The same, and nothing is told or forgotten. */
void rw_cpu_lanes_drain(struct rw_cpu *cpu);
/* Is there nothing to wait for? */
bool rw_cpu_lanes_are_done(struct rw_cpu *cpu);

/* See device.h. */
struct rw_events *rw_cpu_make_events(void *state, size_t n);
void rw_cpu_free_events(void *state, struct rw_events *events);
rw_status rw_cpu_signal(void *state, int lane, struct rw_events *events, size_t event);
rw_status rw_cpu_wait(void *state, int lane, struct rw_events *events, size_t event);

#endif
