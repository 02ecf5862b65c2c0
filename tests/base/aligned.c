/*
 * Aligned blocks of the release build. The suites are linked with another build, whose blocks end at a protected page
 * (guarded.c), so the file is compiled here once more, without that build's additions and with names of its own.
 */
#undef RW_FAULTS
#define rw_alloc_refused plain_refused
#define rw_malloc plain_malloc
#define rw_calloc plain_calloc
#define rw_realloc plain_realloc
#define rw_malloc_aligned plain_malloc_aligned
#define rw_calloc_aligned plain_calloc_aligned
#define rw_free plain_free
#define rw_free_aligned plain_free_aligned
#define rw_strdup plain_strdup
#define rw_grow_array plain_grow_array
#include "base/alloc.c"

#include <criterion/criterion.h>

static const size_t sizes[] = { 0, 1, 255, 4096, (1 << 20) + 3, 40 << 20 };
#define SIZES (sizeof sizes / sizeof *sizes)

Test(aligned, blocks_are_aligned_and_apart)
{
    for (size_t alignment = 1; alignment <= 8192; alignment *= 2) {
        unsigned char *block[SIZES];
        for (size_t i = 0; i < SIZES; i++) {
            cr_assert_not_null(block[i] = plain_malloc_aligned(sizes[i], alignment));
            cr_expect_eq((uintptr_t)block[i] % alignment, 0, "%zu bytes at %zu", sizes[i], alignment);
            memset(block[i], (int)i + 1, sizes[i]);
        }
        for (size_t i = 0; i < SIZES; i++)
            for (size_t k = 0; k < sizes[i]; k++) cr_assert_eq(block[i][k], i + 1);
        for (size_t i = 0; i < SIZES; i++) plain_free_aligned(block[i]);
    }
    plain_free_aligned(NULL);
}

/* Also for memory that was used before. */
Test(aligned, zeros_are_zero)
{
    for (size_t i = 0; i < SIZES; i++)
        for (int again = 0; again < 3; again++) {
            unsigned char *const p = plain_calloc_aligned(sizes[i], 512);
            cr_assert_not_null(p);
            cr_expect_eq((uintptr_t)p % 512, 0);
            for (size_t k = 0; k < sizes[i]; k++) cr_assert_eq(p[k], 0, "byte %zu of %zu", k, sizes[i]);
            memset(p, 0xa5, sizes[i]);
            plain_free_aligned(p);
        }
}

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* which end the process on so large an allocation */
Test(aligned, what_no_machine_has_is_refused)
{
    volatile size_t most = SIZE_MAX; /* volatile: compilers know that malloc() has no such block */
    cr_expect_null(plain_malloc_aligned(most, 512));
    cr_expect_null(plain_calloc_aligned(most - 100, 512));
    cr_expect_null(plain_malloc_aligned(most / 2, 512));
}
#endif
