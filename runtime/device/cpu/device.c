/* The CPU device: host memory and oneDNN. Kernels run in the calling thread and its team (base/thread_team.h). */
#include "device/cpu/cpu.h"
#include "device/cpu/isa.h"
#include "device/cpu/copy_thread.h"
#include "device/cpu/memory_limits.h"
#include "device/cpu/cache_miss_cost.h"
#include "device/cpu/onednn.h"
#include "device/device.h"
#include "base/alloc.h"
#include "base/thread_team.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* The alignment that disks need without the page cache. A value with less alignment would be copied once more. */
#define CPU_ALIGNMENT 512
#define HUGE_PAGE ((size_t)2 << 20)

static rw_status cpu_open(void **ret_state, const rw_context_params *params, char *why, size_t size)
{
    struct rw_cpu *const cpu = rw_calloc(1, sizeof *cpu);
    if (!cpu) return RW_ERR_MEMORY;
    const rw_status status = rw_onednn_create(params && params->plan_only, &cpu->onednn);
    if (status) {
        rw_free(cpu);
        return status;
    }
    *ret_state = cpu;
    return RW_OK;
}

static void cpu_close(void *state)
{
    struct rw_cpu *const cpu = state;
    if (!cpu) return;
    rw_cpu_lanes_stop(cpu);
    rw_onednn_destroy(&cpu->onednn);
    rw_free(cpu);
}

/* Is it the line with that key of /proc/cpuinfo? If so, copies its value. */
static bool says(const char *line, const char *key, char *text, size_t size)
{
    const char *const colon = strchr(line, ':');
    const size_t n = strlen(key);
    if (!colon || strncmp(line, key, n) || line + n + strspn(line + n, " \t") != colon) return false;
    snprintf(text, size, "%s", colon + 1 + strspn(colon + 1, " "));
    text[strcspn(text, "\n")] = '\0';
    return true;
}

#if defined(__aarch64__)
#define BASE "NEON"
#define FAMILY "CPU implementer" /* Linux has numbers instead of names */
#define MODEL "CPU part"
#else
#define BASE "base"
#define FAMILY "cpu family"
#define MODEL "model"
#endif

/* Describes the first processor and the kernels that run on it. Virtual machines may use one name for all processors of
   a maker, so family and model are included. */
static void cpu_describe(void *state, char *text, size_t size)
{
    static const char *const isa[] = { [RW_ISA_BASE] = BASE, [RW_ISA_V3] = "v3", [RW_ISA_V4] = "v4" };
    char line[256], name[160] = "unnamed", family[16] = "", model[16] = "", which[64] = "";
    FILE *const info = fopen("/proc/cpuinfo", "re");
    while (info && fgets(line, sizeof line, info) && *line != '\n') {
        if (says(line, "model name", name, sizeof name) || says(line, FAMILY, family, sizeof family)) continue;
        says(line, MODEL, model, sizeof model);
    }
    if (info) fclose(info);
    if (*family && *model) snprintf(which, sizeof which, " (family %s, model %s)", family, model);
    snprintf(text, size, "%s%s, %s%s", name, which, isa[rw_cpu_isa()], rw_cpu_has_amx() ? ", AMX" : "");
}

/* A step passes through its whole arena, and with pages of 4 KiB a noticeable part of the time is spent on page table
   walks. Some systems give huge pages only on request. The request is for whole pages inside of the block, so that no
   memory after it is affected; without huge pages the system uses small ones. */
static void request_huge_pages(void *p, size_t bytes)
{
    const size_t before = -(uintptr_t)p % HUGE_PAGE;
    if (before < bytes) madvise((char *)p + before, (bytes - before) / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
}

static struct rw_device_memory cpu_memory(void *state)
{
    return rw_memory_limits().all;
}

/* Could the process hold that many bytes? Otherwise the reason becomes the message. */
static bool could_hold(struct rw_cpu *cpu, size_t bytes)
{
    if (bytes <= RW_ALWAYS_HELD) return true;
    const struct rw_device_memory all = cpu_memory(cpu);
    if (bytes <= all.bytes) return true;
    snprintf(cpu->message, sizeof cpu->message, "the %s %llu bytes%s", all.has, (unsigned long long)all.bytes,
             all.note);
    return false;
}

/*
 * Refuses sizes that the machine cannot hold: a system with overcommit would return a block, and end the process when
 * it is touched.
 */
static void *cpu_alloc(void *state, size_t bytes)
{
    void *const p = could_hold(state, bytes) ? rw_malloc_aligned(bytes, CPU_ALIGNMENT) : NULL;
    if (p) request_huge_pages(p, bytes);
    return p;
}

static void *cpu_alloc_zero(void *state, size_t bytes)
{
    void *const p = rw_calloc_aligned(bytes, CPU_ALIGNMENT);
    if (p) request_huge_pages(p, bytes);
    return p;
}

static void cpu_free(void *state, void *p)
{
    rw_free_aligned(p);
}

static rw_status cpu_copy(void *state, void *to, const void *from, size_t bytes)
{
    if (bytes) memcpy(to, from, bytes);
    return RW_OK;
}

static rw_status cpu_clear(void *state, void *to, size_t bytes)
{
    if (bytes) memset(to, 0, bytes);
    return RW_OK;
}

static rw_status cpu_digest(void *state, const void *data, size_t bytes, int threads, struct rw_digest *ret)
{
    *ret = rw_digest_bytes(data, bytes, threads);
    return RW_OK;
}

static rw_status cpu_compare(void *state, const struct rw_digest *a, const struct rw_digest *b, uint32_t serial,
                             struct rw_error_flags *words)
{
    return rw_digest_equal(*a, *b) ? RW_OK : RW_ERR_MISMATCH;
}

static bool cpu_time_memory(void *state, int threads, struct rw_memory_times *ret)
{
    if (rw_team_ready(threads)) return false;
    void *const block = cpu_alloc(state, RW_MEMORY_TIMED);
    const bool known = block && rw_cpu_memory_time(block, threads, ret);
    cpu_free(state, block);
    return known;
}

static struct rw_library_ref *cpu_hold_begin(void *state)
{
    return rw_onednn_hold_begin(((struct rw_cpu *)state)->onednn);
}

static void cpu_hold_end(void *state)
{
    rw_onednn_hold_end(((struct rw_cpu *)state)->onednn);
}

static size_t cpu_library_bytes(void *state)
{
    return rw_onednn_bytes(((struct rw_cpu *)state)->onednn);
}

static rw_status cpu_finish(void *state)
{
    return rw_cpu_lanes_finish(state);
}

static void cpu_take_message(void *state, char *text, size_t size)
{
    struct rw_cpu *const cpu = state;
    snprintf(text, size, "%s", cpu->message);
    cpu->message[0] = '\0';
}

const struct rw_device_fns rw_device_cpu = {
    .name = "cpu",
    .alignment = CPU_ALIGNMENT,
    .on_host = true,
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .alloc_zero = cpu_alloc_zero,
    .free = cpu_free,
    .memory = cpu_memory,
    .upload = cpu_copy,
    .download = cpu_copy,
    .clear = cpu_clear,
    .make_events = rw_cpu_make_events,
    .free_events = rw_cpu_free_events,
    .signal = rw_cpu_signal,
    .wait = rw_cpu_wait,
    .store = &rw_store_memory,
    .file_store = &rw_store_file,
    .digest = cpu_digest,
    .compare = cpu_compare,
    .hold_begin = cpu_hold_begin,
    .hold_end = cpu_hold_end,
    .library_bytes = cpu_library_bytes,
    .time_memory = cpu_time_memory,
    .describe = cpu_describe,
    .finish = cpu_finish,
    .take_message = cpu_take_message,
};
