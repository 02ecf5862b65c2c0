/*
 * Declarations that the simulator's own files share. Everything here is used under one lock (class entry in runtime.h),
 * which a running kernel holds as well.
 */
#ifndef CUDASIM_INTERNAL_H
#define CUDASIM_INTERNAL_H

#include "cudasim.h"

#include <functional>
#include <vector>

namespace cudasim {

struct kernel_launch {
    const char *name;
    const void *function; /* or null */
    dim3 grid, block;
    size_t shared;
    std::function<void()> thread;
    std::vector<char> parameters; /* laid out as on a device: each at an offset of its alignment */
};

/* Runs all blocks. cudaSuccess, or the error that ends the context. */
cudaError_t run_kernel(const kernel_launch &k);

/* Runs a launch when its stream reaches it: run_kernel(), unless a test has replaced it. */
extern cudaError_t (*kernel_runner)(const kernel_launch &k);

/* True on the thread of the running kernel. */
bool in_kernel();

/* Ends a kernel: assertion, trap, or a program error that was already reported. Does not return. */
[[noreturn]] void kernel_fail(cudaError_t code);

/* Prints, and ends the process unless cudasim_set_fatal(false). */
void report(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

uint64_t random_bits();
uint64_t random_below(uint64_t n);
void random_seed(uint64_t seed);

/* Iterates over 0..n-1 in a scattered order, once each. */
class scatter {
public:
    void start(uint64_t n_);
    uint64_t next()
    {
        const uint64_t i = at;
        at += step;
        if (at >= n) at -= n;
        return i;
    }

private:
    uint64_t n = 0, at = 0, step = 1;
};

/* shared.cc */
void shared_begin_kernel(size_t dynamic_bytes);
void shared_begin_block();
const char *shared_check(); /* null, or a description of what was overwritten */

} // namespace cudasim

#endif
