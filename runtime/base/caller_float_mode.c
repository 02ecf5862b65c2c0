/* Saves, sets and restores MXCSR and the x87 control word, or FPCR and FPSR, elsewhere the fenv.h environment. */
#include "base/caller_float_mode.h"

#if defined(RW_CALLER_MODE_BY_FPCR)
void rw_library_mode_set(void)
{
    rw_float_registers_set((struct rw_float_registers){ RW_FPCR_NORMAL, 0 });
}

void rw_caller_mode_put_aside(struct rw_caller_mode *mode)
{
    mode->callers = rw_float_registers_get();
    rw_library_mode_set();
}

void rw_caller_mode_give_back(const struct rw_caller_mode *mode)
{
    rw_float_registers_set(mode->callers);
}
#else
void rw_library_mode_set(void)
{
    fesetenv(FE_DFL_ENV);
#if defined(RW_CALLER_MODE_BY_MXCSR)
    _mm_setcsr(RW_MXCSR_NORMAL); /* not every C library resets flushing to zero */
#endif
}

void rw_caller_mode_put_aside(struct rw_caller_mode *mode)
{
    mode->changed = true;
    fegetenv(&mode->env);
    rw_library_mode_set();
}

#if defined(RW_CALLER_MODE_BY_MXCSR)
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
#endif
