/* See float_mode.h. */
#include "base/float_mode.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

/* Of MXCSR: exceptions masked, to nearest, no flush to zero, and of what was raised nothing. */
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
static bool is_normal(void)
{
    return false; /* what flushes to zero has no name in C */
}

static void be_normal(void)
{
    fesetenv(FE_DFL_ENV);
}

unsigned rw_flush_enter(void)
{
    return 0;
}

void rw_flush_leave(unsigned before)
{
}
#endif

static _Thread_local fenv_t kept;

/* The same threads of OpenMP as leave() finds: a thread's team stays. */
static void enter_team(int threads)
{
#pragma omp parallel num_threads(threads)
    {
        fegetenv(&kept);
        be_normal();
    }
}

static void leave_team(int threads)
{
#pragma omp parallel num_threads(threads)
    fesetenv(&kept);
}

void rw_float_mode_enter(struct rw_float_mode *m, int threads)
{
    m->changed = !is_normal();
    m->threads = threads;
    if (!m->changed) return;
    fegetenv(&m->callers);
    be_normal();
    if (threads > 1) enter_team(threads);
}

void rw_float_mode_leave(const struct rw_float_mode *m)
{
    if (!m->changed) return;
    if (m->threads > 1) leave_team(m->threads);
    fesetenv(&m->callers);
}
