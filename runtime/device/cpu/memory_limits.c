/* Combines the limits of machine, control groups and process, and names the smallest one for messages. */
#include "device/cpu/memory_limits.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static void lower(struct rw_device_memory *all, uint64_t bytes, const char *note)
{
    if (bytes < all->bytes) *all = (struct rw_device_memory){ bytes, "process may take", note };
}

static const char *note_of(const struct rw_cgroup_memory *groups, bool of_memory)
{
    if (!of_memory) return ", memory included (cgroup memory.swap.max)";
    return groups->memory.file && !strcmp(groups->memory.file, "memory.max")
               ? ", swap included (cgroup memory.max)"
               : ", swap included (cgroup memory.limit_in_bytes)";
}

struct rw_memory_limits rw_memory_limits_of(const struct rw_memory_facts *facts)
{
    const struct rw_cgroup_memory *const groups = &facts->groups;
    const uint64_t memory = least(facts->memory, groups->memory.bytes), swap = least(facts->swap, groups->swap.bytes);
    struct rw_memory_limits l = { .all = { sum(facts->memory, facts->swap), "machine has", ", swap included" } };
    lower(&l.all, sum(memory, swap), note_of(groups, memory < facts->memory));
    lower(&l.all, groups->both.bytes, " (cgroup memory.memsw.limit_in_bytes)");
    lower(&l.all, facts->address_space, " (RLIMIT_AS)");
    lower(&l.all, facts->data, " (RLIMIT_DATA)");
    l.resident = least(memory, l.all.bytes);
    return l;
}

static uint64_t limit_of(int resource)
{
    struct rlimit limit;
    return getrlimit(resource, &limit) || limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

static FILE *open_file(void *self, const char *path)
{
    return fopen(path, "re");
}

struct rw_memory_limits rw_memory_limits(void)
{
    struct rw_memory_facts facts = { .memory = UINT64_MAX, .swap = UINT64_MAX };
    struct sysinfo info;
    if (!sysinfo(&info)) {
        facts.memory = (uint64_t)info.totalram * info.mem_unit;
        facts.swap = (uint64_t)info.totalswap * info.mem_unit;
    }
    facts.groups = rw_cgroup_memory(open_file, NULL);
    facts.address_space = limit_of(RLIMIT_AS);
    facts.data = limit_of(RLIMIT_DATA);
    return rw_memory_limits_of(&facts);
}
