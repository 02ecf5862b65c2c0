/* The heap, countable and able to fail on purpose. See alloc.h. */
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#ifdef RW_FAULTS
#include <stdatomic.h>
static _Atomic uint64_t allocations;
static _Atomic uint64_t fail_at;
static _Atomic int64_t live;

static bool refuse(void)
{
    const uint64_t n = atomic_fetch_add(&allocations, 1) + 1;
    return n == atomic_load(&fail_at);
}

void rw_alloc_fail_at(uint64_t n)
{
    atomic_store(&fail_at, n ? atomic_load(&allocations) + n : 0);
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

void *rw_malloc_aligned(size_t bytes, size_t alignment)
{
    void *p = NULL;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    if (refuse() || posix_memalign(&p, alignment, bytes ? bytes : alignment)) return NULL;
    return taken(p);
}

void rw_free(void *p)
{
    given_back(p);
    free(p);
}

void rw_free_aligned(void *p)
{
    given_back(p);
    free(p);
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
