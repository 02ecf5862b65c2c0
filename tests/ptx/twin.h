/*
 * Runs the simulator's launches as compiled PTX, too. The mode is set by CUDASIM_PTX, or ptx_use().
 *
 *     off      by the simulator's own compilation only
 *     replace  by the PTX only: a suite then tests the results of the PTX
 *     twin     by the simulator's compilation, and from the same memory again by the PTX, with cp.async late and at
 *              once: all device memory must have the same bytes after each
 *
 * CUDASIM_PTX_ROUGH=1: ex2.approx errs by the ISA's maximum. CUDASIM_PTX_LOG=FILE: appends one line per kernel of each
 * process: "equal", "differs" or "missing", whether it contains approximations, file and name. CUDASIM_PTX_FAULT=N:
 * activates the mistake with that number, in programs that contain them (faults.txt).
 */
#ifndef RW_TESTS_PTX_TWIN_H
#define RW_TESTS_PTX_TWIN_H

#ifdef __cplusplus
extern "C" {
#endif

enum ptx_how { PTX_OFF, PTX_REPLACE, PTX_TWIN };

void ptx_use(enum ptx_how how);

struct ptx_counts {
    long run;     /* launches run by PTX */
    long missing; /* launches of kernels that have no PTX */
    long differ;  /* launches whose bytes differ by more than allowed */
    double used;  /* the largest used share of the allowed error */
};
/* A float32 or float64 that a kernel writes may be off by so much, and by one ulp. 0: exact. */
void ptx_allow(double error);
/* Counts after the last call. */
struct ptx_counts ptx_take_counts(void);
/* The first launch that differed after the last ptx_take_counts(): its kernel and the number of bytes. "": there is
   none. */
const char *ptx_first_difference(void);

#ifdef __cplusplus
}
#endif

#endif
