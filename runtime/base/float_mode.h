/*
 * The floating-point mode of kernels: rounding to nearest, with subnormal numbers, exceptions masked. Each thread has a
 * mode of its own. The caller may have changed its own (fesetround(), flush to zero, a library built with -ffast-math),
 * and workers of a team (thread_team.h) inherit the mode of the thread that started them. Without a common mode a
 * replay could give other bytes than the first execution, and two threads others than one.
 */
#ifndef RW_BASE_FLOAT_MODE_H
#define RW_BASE_FLOAT_MODE_H

#include <fenv.h>
#include <stdbool.h>

#if defined(__aarch64__)
#include "base/aarch64_float_registers.h"
#endif

struct rw_float_mode {
#if defined(__aarch64__)
    struct rw_float_registers callers;
#else
    fenv_t callers;
#endif
    bool changed;
};

/* Sets that mode in the calling thread permanently: a worker does so before each job. */
void rw_float_mode_normal(void);

/* Sets it temporarily; leave() restores the calling thread's mode. Pairs nest: inner ones do nothing, unless a
   kernel has changed the mode. */
void rw_float_mode_enter(struct rw_float_mode *m);
void rw_float_mode_leave(const struct rw_float_mode *m);

/*
 * Between the two, in the calling thread, subnormal results are flushed to 0; operands are not. For kernels whose
 * numbers underflow, on processors where an operation with a subnormal number takes a hundred times as long. Pass the
 * result of enter to leave. Only on x86-64; elsewhere subnormal numbers are fast, and stay. AArch64 could only flush
 * operands together with results.
 */
unsigned rw_flush_enter(void);
void rw_flush_leave(unsigned before);

#endif
