/*
 * The store in a file (device/offload_file.h) for the CPU. The thread of copy_thread.h reads and writes it in pieces of
 * 4 MiB, directly from and to the arena if the memory has the alignment that the disk needs.
 */
#include "base/cores.h"
#include "base/thread_team.h"
#include "device/cpu/copy_thread.h"
#include "device/offload_file.h"

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

static bool file_is_closed(const void *store)
{
    return rw_file_is_closed(store);
}

/* Copies through the thread's buffer, in whole pages: the slot has them. */
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

/* Moves at most a chunk. Without the page cache, whole pages go first and the rest by itself. */
static rw_status move_piece(struct rw_file *f, char *memory, size_t bytes, uint64_t at, bool out, char *room, char *why,
                            size_t size)
{
    rw_status status = RW_OK;
    if (out) rw_file_note(f, memory, bytes, at);
    for (size_t from = 0, n; !status && from < bytes; from += n) {
        n = bytes - from;
        if (f->direct && n > PAGE) n -= n % PAGE;
        status = rw_file_takes(f, memory + from, n)
                     ? rw_file_transfer(f, memory + from, n, at + from, out, why, size)
                     : by_room(f, memory + from, n, at + from, out, room, why, size);
    }
    return status || out ? status : rw_file_check(f, memory, bytes, at, why, size);
}

static rw_status run_copy(const struct rw_copy *c, void *room, char *why, size_t size)
{
    struct rw_file *const f = c->store;
    rw_status status = rw_file_check_length(f, why, size);
    for (uint64_t from = 0; !status && from < c->bytes; from += RW_FILE_CHUNK) {
        const size_t n = c->bytes - from < RW_FILE_CHUNK ? (size_t)(c->bytes - from) : RW_FILE_CHUNK;
        status = move_piece(f, (char *)c->memory + from, n, c->at + from, c->out, room, why, size);
    }
    return status;
}

static rw_status queue(void *device, const struct rw_file *f, struct rw_copy copy)
{
    struct rw_cpu *const cpu = device;
    copy.run = run_copy;
    if (rw_file_is_closed(f)) return rw_file_closed(f, cpu->message, sizeof cpu->message);
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

/* ---- measurement ---- */

static rw_status run_timing(const struct rw_copy *c, void *room, char *why, size_t size)
{
    memset(room, 1, RW_FILE_CHUNK);
    return rw_file_time(c->store, room, c->memory, why, size);
}

struct computing {
    struct rw_cpu *cpu;
    atomic_bool over;
};

static void compute(void *of, int thread, int threads)
{
    struct computing *const c = of;
    volatile double x = 1;
    while (!atomic_load_explicit(&c->over, memory_order_relaxed)) {
        for (int i = 0; i < 10000; i++) x = x * 1.0000001;
        if (!thread && rw_cpu_lanes_are_done(c->cpu)) atomic_store(&c->over, true);
    }
}

/* Threads compute while copies run, because the thread that copies has to be scheduled next to them. */
static void compute_beside(struct rw_cpu *cpu, int threads)
{
    struct computing c = { .cpu = cpu };
    rw_team_run(threads, compute, &c);
}

/* Times a file while all compute threads are busy. */
static rw_status file_measure(void *device, const char *path, int threads, struct rw_store_rate *ret)
{
    struct rw_cpu *const cpu = device;
    struct rw_store_rate rate;
    void *store;
    rw_status status = rw_team_ready(threads);
    if (!status) status = file_open(device, path, RW_FILE_TIMED, &store);
    if (status) return status;
    rw_cpu_lanes_queue(cpu, &(struct rw_copy){ .run = run_timing, .store = store, .memory = &rate });
    compute_beside(cpu, threads);
    status = rw_cpu_lanes_finish(cpu);
    file_close(device, store);
    if (!status) *ret = (struct rw_store_rate){ rate.out, rate.in, threads < rw_cores() ? 0 : rate.loss };
    return status;
}

const struct rw_store_fns rw_store_file = {
    .name = "file", .in_file = true, .open = file_open, .close = file_close, .is_closed = file_is_closed,
    .put = file_put, .get = file_get, .measure = file_measure
};
