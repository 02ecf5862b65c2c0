/*
 * Saves the caller's floating-point mode while a public function runs. The library computes in C's default mode:
 * rounding to nearest, with subnormal numbers, all exceptions masked. The caller may have another mode (fesetround(),
 * flush to zero by a library built with -ffast-math, feenableexcept()), and no result may depend on it.
 *
 *     struct rw_caller_mode mode;
 *     rw_caller_mode_enter(&mode, true);
 *     ...
 *     rw_caller_mode_leave(&mode);    restores rounding, flushing, masks and raised exceptions exactly
 *
 * Pairs nest; an inner one reads two registers. Each thread has a mode of its own: threads of the library start in the
 * default mode, because a public function has started them.
 */
#ifndef RW_BASE_CALLER_FLOAT_MODE_H
#define RW_BASE_CALLER_FLOAT_MODE_H

#include <fenv.h>
#include <stdbool.h>

#if defined(RW_CALLER_MODE_BY_FENV)
#elif defined(__x86_64__)
#define RW_CALLER_MODE_BY_MXCSR
#elif defined(__aarch64__)
#define RW_CALLER_MODE_BY_FPCR
#endif

#if defined(RW_CALLER_MODE_BY_MXCSR)
#include <stdint.h>
#include <xmmintrin.h>

struct rw_caller_mode {
    unsigned mxcsr; /* the caller's, with the exceptions that were raised */
    bool changed;   /* it was another mode: env has all of it */
    fenv_t env;
};

/* Default MXCSR: exceptions masked, rounding to nearest, no flush to zero. And the default x87 control word, which
   determines how the C library rounds numbers that it reads and prints. */
#define RW_MXCSR_NORMAL 0x1f80u
#define RW_MXCSR_RAISED 0x3fu
#define RW_X87_NORMAL 0x037fu

static inline bool rw_mxcsr_is_normal(unsigned mxcsr)
{
    return (mxcsr & ~RW_MXCSR_RAISED) == RW_MXCSR_NORMAL;
}

static inline bool rw_x87_is_normal(void)
{
    uint16_t x87;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    return x87 == RW_X87_NORMAL;
}

static inline bool rw_mode_is_librarys(void)
{
    return rw_mxcsr_is_normal(_mm_getcsr());
}
#elif defined(RW_CALLER_MODE_BY_FPCR)
#include "base/aarch64_float_registers.h"

struct rw_caller_mode {
    struct rw_float_registers callers;
};

static inline bool rw_mode_is_librarys(void)
{
    return rw_fpcr() == RW_FPCR_NORMAL;
}
#else
struct rw_caller_mode {
    bool changed;
    fenv_t env;
};

/* C has no query for flushing to zero: assume that it is on. */
static inline bool rw_mode_is_librarys(void)
{
    return false;
}
#endif

/* Saves the mode; restores it. */
void rw_caller_mode_put_aside(struct rw_caller_mode *mode);
void rw_caller_mode_give_back(const struct rw_caller_mode *mode);

/* Sets the library's mode in this thread and clears raised exceptions. */
void rw_library_mode_set(void);

#if defined(RW_CALLER_MODE_BY_MXCSR)
/* prints: the call may read or print numbers as text. */
static inline void rw_caller_mode_enter(struct rw_caller_mode *mode, bool prints)
{
    mode->mxcsr = _mm_getcsr();
    mode->changed = false;
    const bool normal = rw_mxcsr_is_normal(mode->mxcsr) && (!prints || rw_x87_is_normal());
    if (__builtin_expect(!normal, 0)) rw_caller_mode_put_aside(mode);
}

static inline void rw_caller_mode_leave(const struct rw_caller_mode *mode)
{
    if (__builtin_expect(mode->changed || _mm_getcsr() != mode->mxcsr, 0)) rw_caller_mode_give_back(mode);
}
#elif defined(RW_CALLER_MODE_BY_FPCR)
static inline void rw_caller_mode_enter(struct rw_caller_mode *mode, bool prints)
{
    (void)prints; /* the C library prints by the same mode */
    mode->callers = rw_float_registers_get();
    if (__builtin_expect(mode->callers.fpcr != RW_FPCR_NORMAL, 0)) rw_library_mode_set();
}

static inline void rw_caller_mode_leave(const struct rw_caller_mode *mode)
{
    const struct rw_float_registers now = rw_float_registers_get();
    if (__builtin_expect(now.fpcr != mode->callers.fpcr || now.fpsr != mode->callers.fpsr, 0))
        rw_caller_mode_give_back(mode);
}
#else
static inline void rw_caller_mode_enter(struct rw_caller_mode *mode, bool prints)
{
    (void)prints;
    rw_caller_mode_put_aside(mode);
}

static inline void rw_caller_mode_leave(const struct rw_caller_mode *mode)
{
    rw_caller_mode_give_back(mode);
}
#endif

/* Call after a custom function, which may have changed the mode, has run inside of the library. */
static inline void rw_library_mode_keep(void)
{
    if (__builtin_expect(!rw_mode_is_librarys(), 0)) rw_library_mode_set();
}

#endif
