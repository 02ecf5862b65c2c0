/*
 * How processors round while kernels run: to nearest, with subnormal numbers, and nothing stops at an exception. Each
 * thread has a mode of its own, which the caller may have changed in between (fesetround(), flush to zero, a library
 * built with -ffast-math that was loaded), and threads of OpenMP keep that of the time when they began: a replay would
 * give other bytes than the run before it, two threads others than one.
 */
#ifndef RW_BASE_FLOAT_MODE_H
#define RW_BASE_FLOAT_MODE_H

#include <fenv.h>
#include <stdbool.h>

struct rw_float_mode {
    fenv_t callers;
    bool changed;
    int threads;
};

/* For the calling thread, and where its mode was another one, for so many of its OpenMP threads. leave: everybody has
   the mode again that it had. Pairs nest: but for a kernel that changes the mode itself the inner ones do nothing. */
void rw_float_mode_enter(struct rw_float_mode *m, int threads);
void rw_float_mode_leave(const struct rw_float_mode *m);

/*
 * Between the two, in the calling thread, a result below the least normal number is 0; what is read stays what it is.
 * For kernels whose numbers fade away, on processors that take a hundred times as long for an operation with a
 * subnormal number. leave() takes what enter() returned. Elsewhere than on x86-64, where they cost nothing, they stay.
 */
unsigned rw_flush_enter(void);
void rw_flush_leave(unsigned before);

#endif
