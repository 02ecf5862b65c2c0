/*
 * Conversions between floating-point types, of ties, of the largest number and of NaN, compared with bit patterns
 * derived by hand; and the conversion that row kernels use for their results.
 */
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>

struct conversion {
    uint32_t from; /* bits of a float32 */
    uint16_t to;
};

/* Each of them at every position of a vector, and in the remainder after the last one. */
static void check_conversions(rw_dtype dtype, const struct conversion *list, int n)
{
    enum { ELEMENTS = 16 * 16 + 13 };
    struct fixture b = fixture_open(1, 1);
    for (int first = 0; first < n; first++) {
        uint32_t from[ELEMENTS];
        uint16_t to[ELEMENTS];
        for (int i = 0; i < ELEMENTS; i++) from[i] = list[(first + i) % n].from;
        rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(ELEMENTS), from, sizeof from);
        cr_assert_eq(rw_read(b.t, rw_cast(b.t, x, dtype), to, sizeof to), RW_OK);
        for (int i = 0; i < ELEMENTS; i++) {
            const struct conversion *const c = &list[(first + i) % n];
            cr_assert_eq(to[i], c->to, "%s of %08x, element %d: %04x, not %04x", rw_dtype_name(dtype), c->from, i,
                         to[i], c->to);
        }
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

Test(conversions, bfloat16_is_rounded_to_nearest_even)
{
    static const struct conversion list[] = {
        { 0x3f800000, 0x3f80 }, { 0x3f807fff, 0x3f80 }, { 0x3f808000, 0x3f80 }, { 0x3f808001, 0x3f81 },
        { 0x3f818000, 0x3f82 }, { 0x3f817fff, 0x3f81 }, { 0xbf818000, 0xbf82 }, { 0xbf808000, 0xbf80 },
        { 0x00000000, 0x0000 }, { 0x80000000, 0x8000 }, { 0x00008000, 0x0000 }, { 0x00018000, 0x0002 },
        { 0x7f7f7fff, 0x7f7f }, { 0x7f7f8000, 0x7f80 }, { 0x7f7fffff, 0x7f80 }, { 0xff7fffff, 0xff80 },
        { 0x7f800000, 0x7f80 }, { 0xff800000, 0xff80 },
    };
    check_conversions(RW_BF16, list, sizeof list / sizeof *list);
}

Test(conversions, float16_is_rounded_to_nearest_even)
{
    static const struct conversion list[] = {
        { 0x3f800000, 0x3c00 }, { 0x3f800fff, 0x3c00 }, { 0x3f801000, 0x3c00 }, { 0x3f801001, 0x3c01 },
        { 0x3f803000, 0x3c02 }, { 0xbf803000, 0xbc02 }, { 0x477fe000, 0x7bff }, { 0x477fefff, 0x7bff },
        { 0x477ff000, 0x7c00 }, { 0xc77ff000, 0xfc00 }, { 0x49742400, 0x7c00 }, { 0x7f7fffff, 0x7c00 },
        { 0x33800000, 0x0001 }, { 0x33000000, 0x0000 }, { 0x33000001, 0x0001 }, { 0xb3000000, 0x8000 },
        { 0x387fc000, 0x03ff }, { 0x387fe000, 0x0400 }, { 0x7f800000, 0x7c00 }, { 0xff800000, 0xfc00 },
    };
    check_conversions(RW_F16, list, sizeof list / sizeof *list);
}

/* A NaN whose payload is in the removed bits must not become infinity, and one of all ones must not wrap to zero. */
Test(conversions, a_nan_stays_one)
{
    enum { ELEMENTS = 61 };
    static const uint32_t nans[] = { 0x7f800001, 0x7fffffff, 0xffffffff, 0xff800001, 0x7fc00000, 0x7f808000 };
    struct fixture b = fixture_open(1, 1);
    uint32_t from[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) from[i] = nans[i % 6];
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(ELEMENTS), from, sizeof from);
    for (int d = 0; d < 2; d++) {
        const rw_dtype dtype = d ? RW_F16 : RW_BF16;
        uint16_t y[ELEMENTS];
        cr_assert_eq(rw_read(b.t, rw_cast(b.t, x, dtype), y, sizeof y), RW_OK);
        for (int i = 0; i < ELEMENTS; i++)
            cr_assert(isnan(number_get(y, dtype, i)), "%s of %08x", rw_dtype_name(dtype), from[i]);
    }
    fixture_close(&b);
}

/*
 * Kernels of rows store through another conversion than a cast. Squares with a mean of 16 make the root exact; x / 4
 * times a weight of 8 bits has 11 bits, and some of these are ties.
 */
Test(conversions, ties_of_a_row_go_to_even)
{
    static const int squares[] = { 7, 7, 7, 9, 5, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0 };
    enum { C = 16 * 4, UP = 1 << 7 };
    struct fixture b = fixture_open(1, 1);
    for (int k = 0; k < UP; k++) {
        char x[2 * C], w[2 * C], y[2 * C];
        for (int i = 0; i < C; i++) {
            cr_assert(number_put(x, RW_BF16, i, squares[i % 16] * (i % 3 ? 1 : -1)));
            cr_assert(number_put(w, RW_BF16, i, 1 + (double)((k + i) % UP) / UP));
        }
        rw_tensor *const row = rw_input(b.t, RW_BF16, RW_SHAPE(1, C), x, sizeof x);
        rw_tensor *const weight = rw_input(b.t, RW_BF16, RW_SHAPE(C), w, sizeof w);
        cr_assert_eq(rw_read(b.t, rw_rmsnorm(b.t, row, weight, 1e-30f), y, sizeof y), RW_OK);
        for (int i = 0; i < C; i++) {
            const double exact = number_get(x, RW_BF16, i) / 4 * number_get(w, RW_BF16, i);
            int exponent;
            const double fraction = frexp(exact, &exponent); /* 8 significant bits; nearbyint() rounds ties to even */
            const double want = ldexp(nearbyint(fraction * 256), exponent - 8);
            cr_assert_eq(number_get(y, RW_BF16, i), want, "%g: %g, not %g", exact, number_get(y, RW_BF16, i), want);
        }
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}
