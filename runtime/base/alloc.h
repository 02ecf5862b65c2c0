/*
 * The only access to the heap. Every allocation of the library uses it, so that a fault build can make the n-th one
 * fail and prove that a failed call changes nothing, and so that host bytes can be counted.
 */
#ifndef RW_BASE_ALLOC_H
#define RW_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All return NULL without memory. Contents are undefined unless said otherwise. rw_free(NULL) is fine. */
void *rw_malloc(size_t bytes);
void *rw_calloc(size_t n, size_t size); /* zero-filled; refuses an overflowing product */
void *rw_realloc(void *p, size_t bytes); /* on failure p is untouched */
void *rw_malloc_aligned(size_t bytes, size_t alignment); /* alignment a power of two; freed by rw_free_aligned */
void *rw_calloc_aligned(size_t bytes, size_t alignment); /* the same, zero-filled; large blocks get pages only when
                                                            touched */
void rw_free(void *p);
void rw_free_aligned(void *p);
char *rw_strdup(const char *s);

/*
 * Grows an array: *array has *capacity elements of the given size, n are in use, and `more` are needed. Doubles the
 * capacity. False without memory; then nothing has changed.
 */
bool rw_grow_array(void *array, size_t *capacity, size_t n, size_t more, size_t size);

static inline bool rw_grow(void *array, size_t *capacity, size_t n, size_t more, size_t size)
{
    return n + more <= *capacity || rw_grow_array(array, capacity, n, more, size);
}

/* Call before allocating elsewhere, such as in a device's driver: it counts as an allocation, and must fail if this
   returns true. */
bool rw_alloc_refused(void);

/* Fault builds: the n-th allocation from now fails (1 is the next one), or that one and all later ones; 0 switches
   both off. Counts per process. */
void rw_alloc_fail_at(uint64_t n);
void rw_alloc_fail_from(uint64_t n);
uint64_t rw_alloc_count(void); /* allocations so far */
int64_t rw_alloc_live(void);   /* allocations not freed yet */

#endif
