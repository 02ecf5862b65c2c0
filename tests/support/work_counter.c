/* See work_counter.h. */
#include "support/work_counter.h"

#include <stddef.h>

static uint64_t work;

uint64_t work_done(void)
{
    return work;
}

/* Called before each basic block of the counted code. */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    work++;
}

static void count_bytes(size_t bytes)
{
    work += bytes / 16;
}

/* Replace the calls of the program and the library to the functions without the prefix. */
void *__real_memset(void *to, int c, size_t bytes);
void *__real_memcpy(void *to, const void *from, size_t bytes);
void *__real_memmove(void *to, const void *from, size_t bytes);
int __real_memcmp(const void *a, const void *b, size_t bytes);
void *__real_rw_calloc(size_t n, size_t size);

void *__wrap_memset(void *to, int c, size_t bytes)
{
    count_bytes(bytes);
    return __real_memset(to, c, bytes);
}

void *__wrap_memcpy(void *to, const void *from, size_t bytes)
{
    count_bytes(bytes);
    return __real_memcpy(to, from, bytes);
}

void *__wrap_memmove(void *to, const void *from, size_t bytes)
{
    count_bytes(bytes);
    return __real_memmove(to, from, bytes);
}

int __wrap_memcmp(const void *a, const void *b, size_t bytes)
{
    count_bytes(bytes);
    return __real_memcmp(a, b, bytes);
}

void *__wrap_rw_calloc(size_t n, size_t size)
{
    count_bytes(n * size);
    return __real_rw_calloc(n, size);
}
