/* Memory of a translated kernel: checks the alignment and the address space of each access. */
#include "run.h"
#include "runtime.h"

#include <stdarg.h>

namespace ptx {

static const kernel *running;
static size_t shared_bytes, static_bytes;
static std::vector<number> numbers;

/* The allocation of the last access: most accesses are to the same one as the access before. */
static uintptr_t found, found_end;

static module_variable *variables;

module_variable::module_variable(const void *at_, size_t size_)
    : at(reinterpret_cast<uintptr_t>(at_)), size(size_), next(variables)
{
    variables = this;
}

void fail(const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const uint3 b = cudasim::block_index, t = cudasim::thread_index;
    cudasim::report("PTX of %s, block (%u, %u, %u), thread (%u, %u, %u): %s", running->name, b.x, b.y, b.z, t.x, t.y,
                    t.z, text);
    cudasim::kernel_fail(cudaErrorLaunchFailure);
}

void begin_kernel(const kernel *k, size_t dynamic)
{
    running = k;
    static_bytes = (k->shared + 15) / 16 * 16;
    shared_bytes = static_bytes + dynamic;
    found = found_end = 0;
    numbers.clear();
}

void note_numbers(const char *at, size_t size, size_t n)
{
    for (size_t i = 0; i < n; i++) numbers.push_back({ at + i * size, size });
}

const std::vector<number> &noted_numbers()
{
    return numbers;
}

static void check_alignment(uint64_t address, size_t n, const char *space)
{
    if (address % n) fail("%s address %#llx is not aligned to %zu bytes", space, (unsigned long long)address, n);
}

static bool is_in_module(uint64_t address, size_t n)
{
    for (const module_variable *v = variables; v; v = v->next)
        if (address >= v->at && address + n <= v->at + v->size) return true;
    return false;
}

/* Whether the bytes are global memory: an allocation, pinned memory of the host, or a variable of a module. */
static bool is_global(uint64_t address, size_t n)
{
    if (address >= found && address + n <= found_end) return true;
    char *const at = reinterpret_cast<char *>(address);
    size_t size = 0;
    char *const first = static_cast<char *>(cudasim::allocation_of(at, n, &size));
    if (!first) return cudasim::is_pinned(at, n) || is_in_module(address, n);
    found = reinterpret_cast<uintptr_t>(first);
    found_end = found + size;
    return true;
}

/* For an instruction with .global: on a GPU any other address faults, including the window of shared memory. */
char *global_at(uint64_t address, size_t n)
{
    check_alignment(address, n, "global");
    if (!is_global(address, n))
        fail("%zu bytes at %#llx are in no allocation%s", n, (unsigned long long)address,
             shared_of_generic(address) < shared_bytes ? ", but in shared memory" : "");
    return reinterpret_cast<char *>(address);
}

static char *shared_base()
{
    return static_cast<char *>(cudasim::dynamic_shared());
}

char *shared_at(uint64_t address, size_t n)
{
    check_alignment(address, n, "shared");
    if (address + n > shared_bytes)
        fail("%zu bytes at %#llx of shared memory, which has %#zx", n, (unsigned long long)address, shared_bytes);
    return shared_base() + address;
}

char *generic_at(uint64_t address, size_t n)
{
    const uint64_t at = shared_of_generic(address);
    if (at < 228 << 10) return shared_at(at, n);
    char *const to = reinterpret_cast<char *>(address);
    if (cudasim::is_in_device_region(to)) return global_at(address, n);
    check_alignment(address, n, "generic");
    return to; /* local memory and parameters have the host's addresses */
}

char *local_at(uint64_t address, size_t n, const char *depot, size_t size)
{
    check_alignment(address, n, "local");
    const uint64_t at = address - reinterpret_cast<uintptr_t>(depot);
    if (at > size || n > size - at) fail("%zu bytes at %lld of local memory, which has %zu", n, (long long)at, size);
    return reinterpret_cast<char *>(address);
}

uint64_t generic_of_shared(uint64_t address)
{
    return reinterpret_cast<uintptr_t>(shared_base()) + address;
}

uint64_t shared_of_generic(uint64_t address)
{
    return address - reinterpret_cast<uintptr_t>(shared_base());
}

uint32_t dynamic_offset()
{
    return static_cast<uint32_t>(static_bytes);
}

/* ---- asynchronous copies: ISA 9.7.9.25 ---- */

struct copy {
    char *to;
    const char *from;
    uint32_t size, read;
};

struct copies {
    uint64_t serial = 0;
    std::vector<copy> open;
    std::vector<std::vector<copy>> groups;
};

static bool eager;

bool is_eager()
{
    return eager;
}

void set_eager(bool eager_)
{
    eager = eager_;
}

static uint32_t thread_number()
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

static copies &copies_of_thread()
{
    static copies all[1024];
    copies &c = all[thread_number()];
    if (c.serial != cudasim::block_serial) {
        c.open.clear();
        c.groups.clear();
        c.serial = cudasim::block_serial;
    }
    return c;
}

static void perform(const copy &c)
{
    memset(c.to, 0, c.size);
    memcpy(c.to, c.from, c.read);
}

void copy_async(char *to, const char *from, uint32_t size, uint32_t read)
{
    if (read > size) fail("cp.async reads %u of %u bytes", read, size);
    const copy c = { to, from, size, read };
    if (eager) perform(c);
    else copies_of_thread().open.push_back(c);
}

void copy_commit()
{
    copies &c = copies_of_thread();
    c.groups.push_back(std::move(c.open));
    c.open.clear();
}

void copy_wait(uint32_t left)
{
    copies &c = copies_of_thread();
    while (c.groups.size() > left) {
        for (const copy &one : c.groups.front()) perform(one);
        c.groups.erase(c.groups.begin());
    }
}

void end_thread()
{
    const copies &c = copies_of_thread();
    size_t n = c.open.size();
    for (const auto &group : c.groups) n += group.size();
    if (n) fail("%zu copies are on their way when the thread ends", n);
}

} // namespace ptx
