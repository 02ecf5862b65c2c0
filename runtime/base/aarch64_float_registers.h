/*
 * The floating-point registers of AArch64. FPCR has the mode: rounding, flushing, default NaNs, the alternative format
 * of half precision, traps. FPSR has the raised exceptions. fesetenv() of the C library leaves some of these bits as
 * they are, so the library reads and writes both registers itself.
 */
#ifndef RW_BASE_AARCH64_FLOAT_REGISTERS_H
#define RW_BASE_AARCH64_FLOAT_REGISTERS_H

#include <stdint.h>

struct rw_float_registers {
    uint64_t fpcr, fpsr;
};

/* C's default mode: rounding to nearest, with subnormal numbers, exceptions masked. */
#define RW_FPCR_NORMAL 0u

static inline uint64_t rw_fpcr(void)
{
    uint64_t x;
    __asm__ volatile("mrs %0, fpcr" : "=r"(x) : : "memory");
    return x;
}

static inline uint64_t rw_fpsr(void)
{
    uint64_t x;
    __asm__ volatile("mrs %0, fpsr" : "=r"(x) : : "memory");
    return x;
}

static inline struct rw_float_registers rw_float_registers_get(void)
{
    return (struct rw_float_registers){ rw_fpcr(), rw_fpsr() };
}

/* Writing FPCR waits for the instructions before it, so that is left out if it has the value. */
static inline void rw_float_registers_set(struct rw_float_registers to)
{
    if (rw_fpcr() != to.fpcr) __asm__ volatile("msr fpcr, %0" : : "r"(to.fpcr) : "memory");
    __asm__ volatile("msr fpsr, %0" : : "r"(to.fpsr) : "memory");
}

#endif
