/* What the suites share: a context with a tape, an op that counts its runs, a small model, comparison of bytes. */
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

/* Steps of a long run, or what else is repeated: `few` where each takes long, on the simulated device and under
   AddressSanitizer. A first step makes the plan, a second uses it: later ones run the same code on other numbers. */
static inline int test_steps(int all, int few)
{
#ifdef __SANITIZE_ADDRESS__
    (void)all;
    return few;
#else
    return test_device() == RW_DEVICE_CPU ? all : few;
#endif
}

/* Before a function by which a test reckons at length what the library should have: only the library is sanitized. */
#if defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define TEST_RECKONS __attribute__((optimize("O2"), no_sanitize("address,undefined")))
#else
#define TEST_RECKONS
#endif

/* First in a test that looks into the arena itself. Criterion must be included. */
#define NEEDS_HOST_MEMORY() \
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("the arena is not in host memory")

/* First in a test that holds the CPU's kernels, and oneDNN, to the code for processors without AVX-512. Each test is a
   process of its own, in which nobody has asked for code yet. */
#define BY_CODE_FOR_AVX2()                                              \
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("of the CPU");     \
    setenv("REWIND_ISA", "v3", 1);                                      \
    setenv("DNNL_MAX_CPU_ISA", "AVX2", 1)

/* Runs begin as on cores that are busy: nodes of little work in one thread, with the room that was planned for all. */
void begin_alone(rw_context *ctx);

/* Are results below the least normal number 0 where numbers fade away (rw_flush_enter())? */
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

/* On that device. Ends the program when it isn't there: a suite that was asked for it must not pass on another. */
struct fixture fixture_open(uint64_t seed, int threads);
void fixture_close(struct fixture *b);

/* Of an op of one's own that gives its first input, of four bytes an element in host memory, as it is. */
rw_status identity_check(rw_op_call *call);
rw_status identity_kernel(const rw_kernel *k);

/* y = x * x, one run counted per id; its gradient needs x. */
#define COUNTERS 64
extern int counted_runs[COUNTERS];
rw_tensor *counted_square(rw_tape *t, rw_tensor *x, int id);
void counted_clear(void);

/* A residual network with dropout; every layer a region, `nesting` regions deep. */
struct net {
    rw_context *ctx;
    int layers, width, nesting;
    rw_dtype dtype;
    float dropout;
    rw_tensor *table, *gain[16], *shift[16], *up[16], *down[16];
};

void net_init(struct net *n, rw_context *ctx, int layers, int width, rw_dtype dtype, int nesting);
rw_tensor *net_loss(const struct net *n, rw_tape *t, int tokens, int step);

/* All gradients of a context, one after the other. The caller frees. */
unsigned char *all_gradients(rw_context *ctx, size_t *ret_bytes);
unsigned char *all_parameters(rw_context *ctx, size_t *ret_bytes);

/* rw_graph_launch() of a graph of tape t; RW_ERR_MISMATCH where two random ops of the tape share a word then: law 3. */
rw_status audited_launch(rw_graph *g, const rw_tape *t);

/* -1 when equal, else the first byte that differs. */
long first_difference(const void *a, const void *b, size_t bytes);

#endif
