/*
 * The simulator's launches, run as compiled PTX too. How: CUDASIM_PTX, or ptx_use().
 *
 *     off      by the simulator's own text alone
 *     replace  by the PTX alone: a suite then judges what the PTX computes
 *     twin     by the text, and from the same memory again by the PTX, with cp.async late and at once: all device
 *              memory must be the same bytes after each
 *
 * CUDASIM_PTX_ROUGH=1: ex2.approx errs by as much as the ISA allows. CUDASIM_PTX_LOG=FILE: one line per kernel of each
 * process is added there: "equal", "differs" or "missing", whether it holds approximations, file and name.
 * CUDASIM_PTX_FAULT=N: the mistake of that number is made, in programs that hold them (faults.txt).
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
    long missing; /* launches of kernels that have none */
    long differ;  /* launches whose bytes differ by more than was allowed */
    double used;  /* the largest share of what was allowed */
};
/* A float32 or float64 that a kernel writes may be off by so much, and by one unit in its last place. 0: by nothing. */
void ptx_allow(double error);
/* Since the last call. */
struct ptx_counts ptx_take_counts(void);
/* The first launch that differed since the last ptx_take_counts(): its kernel and how many bytes. "": there is none. */
const char *ptx_first_difference(void);

#ifdef __cplusplus
}
#endif

#endif
