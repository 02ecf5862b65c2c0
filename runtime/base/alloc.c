/* The heap: counts allocations, and can fail on purpose. */
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* AddressSanitizer guards allocations itself. */
#if defined RW_FAULTS && !defined __SANITIZE_ADDRESS__
#define GUARDED
#endif

#ifdef RW_FAULTS
#include <stdatomic.h>
static _Atomic uint64_t allocations;
static _Atomic uint64_t fail_at, fail_from;
static _Atomic int64_t live;

static bool refuse(void)
{
    const uint64_t n = atomic_fetch_add(&allocations, 1) + 1;
    const uint64_t from = atomic_load(&fail_from);
    return n == atomic_load(&fail_at) || (from && n >= from);
}

void rw_alloc_fail_at(uint64_t n)
{
    atomic_store(&fail_at, n ? atomic_load(&allocations) + n : 0);
    if (!n) atomic_store(&fail_from, 0);
}

void rw_alloc_fail_from(uint64_t n)
{
    atomic_store(&fail_from, n ? atomic_load(&allocations) + n : 0);
    if (!n) atomic_store(&fail_at, 0);
}

uint64_t rw_alloc_count(void)
{
    return atomic_load(&allocations);
}

int64_t rw_alloc_live(void)
{
    return atomic_load(&live);
}

static void *taken(void *p)
{
    if (p) atomic_fetch_add(&live, 1);
    return p;
}

static void given_back(const void *p)
{
    if (p) atomic_fetch_sub(&live, 1);
}
#else
static inline bool refuse(void)
{
    return false;
}

static inline void *taken(void *p)
{
    return p;
}

static inline void given_back(const void *p)
{
}
#endif

bool rw_alloc_refused(void)
{
    return refuse();
}

void *rw_malloc(size_t bytes)
{
    return refuse() ? NULL : taken(malloc(bytes ? bytes : 1));
}

void *rw_calloc(size_t n, size_t size)
{
    return refuse() ? NULL : taken(calloc(n ? n : 1, size ? size : 1));
}

void *rw_realloc(void *p, size_t bytes)
{
    void *const moved = refuse() ? NULL : realloc(p, bytes ? bytes : 1);
    return p ? moved : taken(moved);
}

#ifdef GUARDED
#include <sys/mman.h>
#include <unistd.h>

/*
 * In the tests' private build a device allocation ends at a protected page, so an access after an arena, a result or a
 * gradient ends the process:
 *
 *     mapping   page | (what is left of a page) [bytes, rounded up to the alignment] | protected page
 *                                       ^ struct mapping
 */
struct mapping {
    void *at;
    size_t bytes;
};

static void *take_aligned(size_t bytes, size_t alignment, bool zero)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), most = SIZE_MAX - 4 * page - 2 * alignment;
    if (bytes > most) return NULL;
    const size_t used = ((bytes ? bytes : 1) + alignment - 1) / alignment * alignment;
    const size_t all = (used + page - 1) / page * page + 2 * page;
    char *const at = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
    char *const p = at + all - page - used;
    if (mprotect(at + all - page, page, PROT_NONE)) {
        munmap(at, all);
        return NULL;
    }
    memcpy(p - sizeof(struct mapping), &(struct mapping){ at, all }, sizeof(struct mapping));
    return p;
}

static void give_aligned(void *p)
{
    struct mapping m;
    if (!p) return;
    memcpy(&m, (char *)p - sizeof m, sizeof m);
    munmap(m.at, m.bytes);
}
#elif defined __SANITIZE_ADDRESS__
/* Aligned so that the block ends where its guard begins. */
static void *take_aligned(size_t bytes, size_t alignment, bool zero)
{
    void *p = NULL;
    if (posix_memalign(&p, alignment, bytes ? bytes : alignment)) return NULL;
    return zero ? memset(p, 0, bytes) : p;
}

static void give_aligned(void *p)
{
    free(p);
}
#else
/* Uses calloc(), which leaves the pages of large blocks to the system until they are touched. The address for free()
   is stored before the block. */
static void *take_aligned(size_t bytes, size_t alignment, bool zero)
{
    void *whole;
    if (bytes > SIZE_MAX - alignment - sizeof whole) return NULL;
    const size_t all = bytes + alignment + sizeof whole;
    whole = zero ? calloc(1, all) : malloc(all);
    if (!whole) return NULL;
    char *p = (char *)whole + sizeof whole;
    p += -(uintptr_t)p & (alignment - 1);
    memcpy(p - sizeof whole, &whole, sizeof whole);
    return p;
}

static void give_aligned(void *p)
{
    void *whole;
    if (!p) return;
    memcpy(&whole, (char *)p - sizeof whole, sizeof whole);
    free(whole);
}
#endif

void *rw_malloc_aligned(size_t bytes, size_t alignment)
{
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    return refuse() ? NULL : taken(take_aligned(bytes, alignment, false));
}

void *rw_calloc_aligned(size_t bytes, size_t alignment)
{
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    return refuse() ? NULL : taken(take_aligned(bytes, alignment, true));
}

void rw_free(void *p)
{
    given_back(p);
    free(p);
}

void rw_free_aligned(void *p)
{
    given_back(p);
    give_aligned(p);
}

char *rw_strdup(const char *s)
{
    const size_t bytes = strlen(s) + 1;
    char *const copy = rw_malloc(bytes);
    return copy ? memcpy(copy, s, bytes) : NULL;
}

bool rw_grow_array(void *array, size_t *capacity, size_t n, size_t more, size_t size)
{
    size_t wanted = *capacity ? *capacity * 2 : 16;
    while (wanted < n + more) wanted *= 2;
    void *old;
    memcpy(&old, array, sizeof old); /* array is a T ** of any T: copied as bytes, never read through void ** */
    void *const grown = rw_realloc(old, wanted * size);
    if (!grown) return false;
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}
