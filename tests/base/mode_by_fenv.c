/* The caller's floating-point mode saved by C's own functions, as on processors for which base/caller_float_mode.h has
   no code. The code for this one is tested by api/every_public_function and api/caller_modes. */
#define RW_CALLER_MODE_BY_FENV
#define rw_caller_mode_put_aside by_fenv_put_aside
#define rw_caller_mode_give_back by_fenv_give_back
#define rw_library_mode_set by_fenv_set
#include "base/caller_float_mode.c"

#include <criterion/criterion.h>
#include <math.h>

static void expect_default(void)
{
    volatile float one = 1, third = 3, least = 0x1p-126f;
    cr_expect_eq(fegetround(), FE_TONEAREST);
    cr_expect_eq(fegetexcept(), 0);
    cr_expect_eq(one / third, 0x1.555556p-2f);
    cr_expect_gt(least / 2, 0); /* not flushed */
}

Test(mode_by_fenv, is_put_aside)
{
    static const int rounding[] = { FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO };
    for (int i = 0; i < 16; i++) {
        const int requested = i / 4 % 2 ? FE_DIVBYZERO | FE_INVALID : 0;
        struct rw_caller_mode outer, inner;
        fesetenv(FE_DFL_ENV);
        fesetround(rounding[i % 4]);
        feraiseexcept(i / 8 ? FE_OVERFLOW : 0);
        const int raised = fetestexcept(FE_ALL_EXCEPT); /* on some processors FE_INEXACT, too */
        feenableexcept(requested);
        const int traps = fegetexcept(); /* none on an ARM64 processor that does not trap */
        rw_caller_mode_enter(&outer, true);
        expect_default();
        fesetround(FE_UPWARD); /* as a kernel of the caller's may do */
        rw_caller_mode_enter(&inner, false);
        expect_default();
        rw_caller_mode_leave(&inner);
        rw_library_mode_keep();
        expect_default();
        rw_caller_mode_leave(&outer);
        const int round = fegetround(), trapped = fegetexcept(), seen = fetestexcept(FE_ALL_EXCEPT);
        fesetenv(FE_DFL_ENV);
        cr_expect_eq(round, rounding[i % 4]);
        cr_expect_eq(trapped, traps);
        for (int k = 0; k < 3; k++) {
            const int exception = (const int[]){ FE_OVERFLOW, FE_UNDERFLOW, FE_INEXACT }[k];
            cr_expect_eq(seen & exception, raised & exception);
        }
    }
}
