/* Saves, sets and restores MXCSR and the x87 control word, elsewhere the fenv.h environment. */
#include "base/caller_float_mode.h"

void rw_library_mode_set(void)
{
    fesetenv(FE_DFL_ENV);
#if defined(__x86_64__) && !defined(RW_CALLER_MODE_BY_FENV)
    _mm_setcsr(RW_MXCSR_NORMAL); /* not every C library resets flushing to zero */
#endif
}

void rw_caller_mode_put_aside(struct rw_caller_mode *mode)
{
    mode->changed = true;
    fegetenv(&mode->env);
    rw_library_mode_set();
}

#if defined(__x86_64__) && !defined(RW_CALLER_MODE_BY_FENV)
/* The caller's mode was the library's, but exceptions have been raised, or a custom function has set a mode:
   restores both registers. */
static void give_back_normal(const struct rw_caller_mode *mode)
{
    const uint16_t x87 = RW_X87_NORMAL;
    if (!rw_mxcsr_is_normal(_mm_getcsr())) __asm__ volatile("fldcw %0" : : "m"(x87));
    _mm_setcsr(mode->mxcsr);
}

void rw_caller_mode_give_back(const struct rw_caller_mode *mode)
{
    if (mode->changed) fesetenv(&mode->env);
    else give_back_normal(mode);
}
#else
void rw_caller_mode_give_back(const struct rw_caller_mode *mode)
{
    fesetenv(&mode->env);
}
#endif
