/* Sets and restores the floating-point mode of a thread. */
#include "base/float_mode.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

/* MXCSR with exceptions masked, rounding to nearest, no flush to zero, and no raised exceptions. */
#define NORMAL 0x1f80u
#define RAISED 0x3fu
/* Results flush to zero. */
#define FLUSH 0x8000u

static bool is_normal(void)
{
    return (_mm_getcsr() & ~RAISED) == NORMAL;
}

static void be_normal(void)
{
    _mm_setcsr(NORMAL);
}

/* The default mode of the x87 unit (FNINIT), which long double and the C library use. */
static bool is_x87_normal(void)
{
    unsigned short control;
    __asm__ volatile("fnstcw %0" : "=m"(control));
    return control == 0x37f;
}

unsigned rw_flush_enter(void)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH);
    return before;
}

void rw_flush_leave(unsigned before)
{
    _mm_setcsr(before);
}
#else
static bool is_x87_normal(void)
{
    return true;
}

#if defined(__aarch64__)
static bool is_normal(void)
{
    return rw_fpcr() == RW_FPCR_NORMAL;
}

static void be_normal(void)
{
    rw_float_registers_set((struct rw_float_registers){ RW_FPCR_NORMAL, 0 });
}
#else
static bool is_normal(void)
{
    return false; /* C has no query for flushing to zero */
}

static void be_normal(void)
{
    fesetenv(FE_DFL_ENV);
}
#endif

unsigned rw_flush_enter(void)
{
    return 0;
}

void rw_flush_leave(unsigned before)
{
}
#endif

void rw_float_mode_normal(void)
{
    if (!is_x87_normal()) fesetenv(FE_DFL_ENV);
    if (!is_normal()) be_normal();
}

void rw_float_mode_enter(struct rw_float_mode *m)
{
    m->changed = !is_normal();
    if (!m->changed) return;
#if defined(__aarch64__)
    m->callers = rw_float_registers_get();
#else
    fegetenv(&m->callers);
#endif
    be_normal();
}

void rw_float_mode_leave(const struct rw_float_mode *m)
{
    if (!m->changed) return;
#if defined(__aarch64__)
    rw_float_registers_set(m->callers);
#else
    fesetenv(&m->callers);
#endif
}
