/*
 * * Mistakes planted on purpose: not a suite, but what scripts/test.sh shows to AddressSanitizer and Valgrind first.
 * Whether they see anything in a test is not a matter of course: Criterion runs each test in a process of its own,
 * ignores how that one ends and swallows what it prints.
 */
#include "base/alloc.h"

#include <criterion/criterion.h>
#include <omp.h>
#include <stdint.h>

/*
 * More than one each, because a dead pointer may lie about in a register or a stack. Inlined, so that the report shows
 * who leaks even where the compiler would turn the call into a jump.
 */
__attribute__((always_inline)) static inline void leak(void)
{
    for (int i = 0; i < 16; i++) {
        volatile char *const p = rw_malloc(1000);
        if (p) p[0] = 1;
    }
}

Test(planted, leak_of_the_calling_thread)
{
    leak();
}

Test(planted, leak_of_an_openmp_thread)
{
#pragma omp parallel num_threads(3)
    if (omp_get_thread_num()) leak();
}

/* Kernels, like this file, are compiled to trap (kernel_sanitize_args). */
Test(planted, overflow_in_a_kernel)
{
    volatile int32_t most = INT32_MAX, sum;
    sum = most + 1;
    (void)sum;
}

Test(planted, read_past_the_end)
{
    volatile char *const p = rw_malloc(8);
    cr_assert(p[8] || !p[8]);
    rw_free((void *)(uintptr_t)p);
}
