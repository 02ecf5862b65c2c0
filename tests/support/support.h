/* Helpers that the suites share: a context with a tape, an op that counts its executions, a small model, comparison of
   bytes. */
#ifndef RW_TESTS_SUPPORT_H
#define RW_TESTS_SUPPORT_H

#include <rewind/rewind.h>

struct fixture {
    rw_context *ctx;
    rw_tape *t;
};

/* The device that every suite runs on: REWIND_TEST_DEVICE, "cpu" (also when unset) or "cuda". Ends the program on
 * another value. */
rw_device test_device(void);

/* Entries of a list of recorders that a test may leave out: NULL, or a norm of 0. */
static inline rw_recorder recorded_scaler(rw_scaler *s)
{
    return s ? rw_record_scaler(s) : rw_record_nothing();
}
static inline rw_recorder recorded_clip(double max_norm)
{
    return max_norm > 0 ? rw_record_clip(max_norm) : rw_record_nothing();
}
static inline rw_recorder recorded_update(rw_optimizer *opt, bool inside)
{
    return inside ? rw_record_update_inside(opt) : rw_record_update(opt);
}
static inline rw_recorder recorded_delayed(rw_delayed_scaling *d)
{
    return d ? rw_record_delayed_scaling(d) : rw_record_nothing();
}

/* Number of steps of a long run, or of other repetitions: `few` on the simulated device and under AddressSanitizer,
   where each takes long. A first step makes the plan and a second uses it: later ones run the same code on other
   numbers. */
static inline int test_steps(int all, int few)
{
#ifdef __SANITIZE_ADDRESS__
    (void)all;
    return few;
#else
    return test_device() == RW_DEVICE_CPU ? all : few;
#endif
}

/* Put before a test's own long reference computation. It is not sanitized, because only the library needs to be. */
#if defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define TEST_RECKONS __attribute__((optimize("O2"), no_sanitize("address,undefined")))
#else
#define TEST_RECKONS
#endif

/* Call it first in a test that reads the arena itself. Criterion must be included. */
#define NEEDS_HOST_MEMORY() \
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("the arena is not in host memory")

/* Call it first in a test that restricts the CPU's kernels, and oneDNN, to the code for processors without AVX-512.
   Each test is a process of its own, in which no code has been selected yet. */
#if defined(__x86_64__)
#define BY_CODE_FOR_AVX2()                                              \
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("of the CPU");     \
    setenv("REWIND_ISA", "v3", 1);                                      \
    setenv("DNNL_MAX_CPU_ISA", "AVX2", 1)
#else
#define BY_CODE_FOR_AVX2() cr_skip_test("of x86-64")
#endif

/* Runs products of four shapes, which depend on `least`, forward and backward: each needs primitives of its own. */
rw_status run_products(rw_context *ctx, rw_tape *t, int64_t least);

/* Bytes of the process that are in the machine's memory, as the system counts them. */
size_t resident_bytes(void);

/* Makes runs start as if cores were busy: small nodes run in one thread, with the workspace that was planned for
   all. */
void begin_alone(rw_context *ctx);

/* Whether results below the least normal number are flushed to 0 (rw_flush_enter()). */
static inline bool test_flushes(void)
{
#if defined(__x86_64__)
    return test_device() == RW_DEVICE_CPU;
#else
    return false;
#endif
}

/*
 * A test's own op has one kernel, written for host memory. On another device it works on copies. Outside any function,
 * then in the definition: HOST_KERNEL_OF(square) static const rw_op_def square_op = { ..., .kernel =
 * HOST_KERNEL(square), ... };
 */
rw_status run_on_copies(const rw_kernel *k, rw_kernel_fn kernel);
#define HOST_KERNEL_OF(name)                         \
    static rw_status name##_away(const rw_kernel *k) \
    {                                                \
        return run_on_copies(k, name);               \
    }
#define HOST_KERNEL(name) { [RW_DEVICE_CPU] = name, [RW_DEVICE_CUDA] = name##_away }

/* Opens the fixture on test_device(). Ends the program if that device does not exist: a suite that was started for one
   device must not pass on another. */
struct fixture fixture_open(uint64_t seed, int threads);
void fixture_close(struct fixture *b);

/* A test's own op that returns its first input unchanged: four bytes per element, in host memory. */
rw_status identity_check(rw_op_call *call);
rw_status identity_kernel(const rw_kernel *k);

/* y = x * x with one execution count per id. Its gradient needs x. */
#define COUNTERS 64
extern int counted_runs[COUNTERS];
rw_tensor *counted_square(rw_tape *t, rw_tensor *x, int id);
void counted_clear(void);

/* A residual network with dropout. Every layer is a region, nested `nesting` deep. */
struct net {
    rw_context *ctx;
    int layers, width, nesting;
    rw_dtype dtype;
    float dropout;
    rw_tensor *table, *gain[16], *shift[16], *up[16], *down[16];
};

void net_init(struct net *n, rw_context *ctx, int layers, int width, rw_dtype dtype, int nesting);
rw_tensor *net_loss(const struct net *n, rw_tape *t, int tokens, int step);

/* Copies of all gradients of a context, concatenated. The caller frees. */
unsigned char *all_gradients(rw_context *ctx, size_t *ret_bytes);
unsigned char *all_parameters(rw_context *ctx, size_t *ret_bytes);

/* rw_graph_launch() of a graph of tape t. RW_ERR_MISMATCH if two random ops of the tape then share a word: law 3. */
rw_status audited_launch(rw_graph *g, const rw_tape *t);

/* -1 if equal, else the index of the first byte that differs. */
long first_difference(const void *a, const void *b, size_t bytes);

/* Whether the message has the text, with or without " at FILE:LINE" after the function. */
bool message_has(const char *message, const char *text);

#endif
