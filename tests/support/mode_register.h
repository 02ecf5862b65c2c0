/*
 * The processor's register of the floating-point mode, for tests that set more of it than fenv.h can: MXCSR of x86-64,
 * FPCR of AArch64; elsewhere none.
 */
#ifndef RW_TESTS_MODE_REGISTER_H
#define RW_TESTS_MODE_REGISTER_H

#include <fenv.h>
#include <stdbool.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

/* Flushes subnormal numbers to zero: results, operands, or both. */
#define MODE_REGISTER_BITS { 0, 0x8000, 0x0040, 0x8040 }
#define MODE_REGISTER_FLUSH 0x8040u

static inline unsigned mode_register(void)
{
    return _mm_getcsr();
}

static inline void mode_register_add(unsigned bits)
{
    _mm_setcsr(_mm_getcsr() | bits);
}
#elif defined(__aarch64__)
#include "base/aarch64_float_registers.h"

/* Flushes subnormal numbers to zero; a default NaN for each NaN; the other format of half precision, in which subnormal
   numbers are flushed. fesetenv(FE_DFL_ENV) clears the first of these alone. */
#define MODE_REGISTER_BITS { 0, 1u << 24, 1u << 25, 1u << 26 | 1u << 19 }
#define MODE_REGISTER_FLUSH (1u << 24)

static inline unsigned mode_register(void)
{
    return (unsigned)rw_fpcr();
}

static inline void mode_register_add(unsigned bits)
{
    rw_float_registers_set((struct rw_float_registers){ rw_fpcr() | bits, rw_fpsr() });
}
#else
#define MODE_REGISTER_BITS { 0, 0, 0, 0 }
#define MODE_REGISTER_FLUSH 0u

static inline unsigned mode_register(void)
{
    return 0;
}

static inline void mode_register_add(unsigned bits)
{
    (void)bits;
}
#endif

/* Is it C's default mode? */
static inline bool mode_is_default(void)
{
#if defined(__x86_64__)
    return (_mm_getcsr() & ~0x3fu) == 0x1f80; /* without the raised exceptions */
#elif defined(__aarch64__)
    return rw_fpcr() == RW_FPCR_NORMAL;
#else
    return fegetround() == FE_TONEAREST;
#endif
}

/* Sets C's default mode. */
static inline void mode_reset(void)
{
    fesetenv(FE_DFL_ENV);
#if defined(__aarch64__)
    rw_float_registers_set((struct rw_float_registers){ RW_FPCR_NORMAL, 0 });
#endif
}

#endif
