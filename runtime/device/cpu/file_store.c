/*
 * The store in a file (device/file.h), for the CPU: read and written by the thread of lanes.h, in pieces of 4 MiB, from
 * and to the arena itself where the disk takes its memory.
 */
#include "device/cpu/lanes.h"
#include "device/cpu/threads.h"
#include "device/file.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define PAGE RW_FILE_PAGE

_Static_assert(RW_COPY_CHUNK >= RW_FILE_CHUNK && RW_COPY_ALIGNMENT >= PAGE, "a piece finds room on its way");

static rw_status file_open(void *device, const char *path, uint64_t bytes, void **ret_store)
{
    struct rw_cpu *const cpu = device;
    struct rw_file *f;
    rw_status status = rw_cpu_lanes_start(cpu);
    if (!status) status = rw_file_open(path, bytes, &f, cpu->message, sizeof cpu->message);
    if (!status) *ret_store = f;
    return status;
}

static void file_close(void *device, void *store)
{
    rw_cpu_lanes_drain(device);
    rw_file_close(store);
}

static bool file_is_own(const void *store)
{
    return rw_file_is_own(store);
}

/* By way of the room, in whole pages: the slot has them. */
static rw_status by_room(struct rw_file *f, char *memory, size_t n, uint64_t at, bool out, char *room, char *why,
                         size_t size)
{
    const size_t whole = (n + PAGE - 1) / PAGE * PAGE;
    if (out) memcpy(room, memory, n);
    if (out) memset(room + n, 0, whole - n);
    const rw_status status = rw_file_transfer(f, room, whole, at, out, why, size);
    if (!status && !out) memcpy(memory, room, n);
    return status;
}

static rw_status run_copy(const struct rw_copy *c, void *room, char *why, size_t size)
{
    struct rw_file *const f = c->store;
    rw_status status = rw_file_check_length(f, why, size);
    for (uint64_t from = 0; !status && from < c->bytes;) {
        char *const memory = (char *)c->memory + from;
        size_t n = c->bytes - from < RW_FILE_CHUNK ? (size_t)(c->bytes - from) : RW_FILE_CHUNK;
        if (f->direct && n > PAGE) n -= n % PAGE; /* the rest by itself */
        status = rw_file_takes(f, memory, n)
                     ? rw_file_transfer(f, memory, n, c->at + from, c->out, why, size)
                     : by_room(f, memory, n, c->at + from, c->out, room, why, size);
        from += n;
    }
    return status;
}

static rw_status queue(void *device, const struct rw_file *f, struct rw_copy copy)
{
    struct rw_cpu *const cpu = device;
    copy.run = run_copy;
    if (!rw_file_is_own(f)) return rw_file_not_own(f, cpu->message, sizeof cpu->message);
    rw_cpu_lanes_queue(cpu, &copy);
    return RW_OK;
}

static rw_status file_put(void *device, int lane, void *store, uint64_t at, const void *from, uint64_t bytes)
{
    return queue(device, store, (struct rw_copy){ .store = store, .at = at, .bytes = bytes, .out = true,
                                                  .memory = (void *)(uintptr_t)from });
}

static rw_status file_get(void *device, int lane, void *to, const void *store, uint64_t at, uint64_t bytes)
{
    return queue(device, store, (struct rw_copy){ .store = (void *)(uintptr_t)store, .at = at, .bytes = bytes,
                                                  .memory = to });
}

/* ---- how fast it is ---- */

static rw_status run_timing(const struct rw_copy *c, void *room, char *why, size_t size)
{
    memset(room, 1, RW_FILE_CHUNK);
    return rw_file_time(c->store, room, c->memory, why, size);
}

/* Threads compute as long as something is copied: a thread that copies has to be let in by theirs. */
static void compute_beside(struct rw_cpu *cpu, int threads)
{
    atomic_bool over = false;
#pragma omp parallel num_threads(threads)
    {
        volatile double x = 1;
        while (!atomic_load_explicit(&over, memory_order_relaxed)) {
            for (int i = 0; i < 10000; i++) x = x * 1.0000001;
#pragma omp master
            if (rw_cpu_lanes_are_done(cpu)) atomic_store(&over, true);
        }
    }
}

/* That this process may use. */
static int count_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

static rw_status file_measure(void *device, const char *path, int threads, struct rw_store_rate *ret)
{
    struct rw_cpu *const cpu = device;
    struct rw_store_rate rate;
    void *store;
    rw_status status = rw_threads_ready(threads, &threads);
    if (!status) status = file_open(device, path, RW_FILE_TIMED, &store);
    if (status) return status;
    rw_cpu_lanes_queue(cpu, &(struct rw_copy){ .run = run_timing, .store = store, .memory = &rate });
    compute_beside(cpu, threads);
    status = rw_cpu_lanes_finish(cpu);
    file_close(device, store);
    if (!status) *ret = (struct rw_store_rate){ rate.out, rate.in, threads < count_cores() ? 0 : rate.loss };
    return status;
}

const struct rw_store_fns rw_store_file = {
    .name = "file", .in_file = true, .open = file_open, .close = file_close, .is_own = file_is_own, .put = file_put,
    .get = file_get, .measure = file_measure
};
