/*
 * Planted mistakes: not a suite, but programs that scripts/test.sh runs first under AddressSanitizer and Valgrind. It
 * is not obvious that these detect anything in a test, because Criterion runs each test in a process of its own,
 * ignores how that one ends and hides its output.
 */
#include "base/alloc.h"
#include "base/thread_team.h"

#include <criterion/criterion.h>
#include <stdint.h>

/*
 * More than one leak each, because a stale pointer may remain in a register or on the stack. Inlined, so that the
 * report names the caller even if the compiler would turn the call into a jump.
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

/* A report names this function, because the test's is not on the stack of a worker. */
static void leak_of_another_thread(void *of, int thread, int threads)
{
    if (thread) leak();
}

Test(planted, leak_of_another_thread)
{
    cr_assert_eq(rw_team_ready(3), RW_OK);
    rw_team_run(3, leak_of_another_thread, NULL);
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
