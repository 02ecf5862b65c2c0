/*
 * Limits of the machine: address space, threads, processes that fork. Each test runs in a child process, which has to
 * return a status and a message, and never end by a signal or a library's exit().
 */
#include "support/support.h"

#include "device/device.h"

#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* Exit statuses of a child. */
enum verdict { DID = 40, REFUSED, WRONG };

static size_t address_space(void)
{
    size_t pages = 0;
    FILE *const f = fopen("/proc/self/statm", "r");
    cr_assert_not_null(f);
    cr_assert_eq(fscanf(f, "%zu", &pages), 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Runs it in a child; returns its result, or 128 + the signal that ended it. */
static int in_a_child(enum verdict (*what)(size_t), size_t argument)
{
    fflush(NULL);
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (!child) _exit((int)what(argument));
    int how;
    cr_assert_eq(waitpid(child, &how, 0), child);
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

static void limit_address_space(size_t bytes)
{
    setrlimit(RLIMIT_AS, &(struct rlimit){ bytes, bytes });
}

/* RW_OK, or an error with a message. */
static enum verdict judge(rw_status status, const rw_context *ctx)
{
    if (status == RW_OK) return DID;
    return status == RW_ERR_MEMORY && *rw_error_message(ctx) ? REFUSED : WRONG;
}

/* Convolutions of several shapes, forward and backward, some with rows for which the library generates much code. */
static rw_status convolutions(rw_context *ctx, rw_tape *t, int64_t least)
{
    rw_tensor *sum = NULL;
    for (int64_t n = least; n < least + 4; n++) {
        const rw_dtype dtype = n % 2 ? RW_F32 : RW_BF16;
        const int64_t width = n % 4 < 2 ? 40 : 1100;
        rw_tensor *const x = rw_require_grad(t, rw_input(t, dtype, RW_SHAPE(n / 4 + 2, 16, 12, width), NULL, 0));
        rw_tensor *const w = rw_require_grad(t, rw_input(t, dtype, RW_SHAPE(16, 16, 3, 3), NULL, 0));
        rw_tensor *const y = rw_conv2d(t, x, w, RW_NONE, &(rw_conv2d_params){ .stride = { 1, 1 + (int)n % 2 } });
        rw_tensor *const s = rw_cast(t, rw_mean(t, y, RW_ALL_AXES, false), RW_F32);
        sum = sum ? rw_add(t, sum, s) : s;
    }
    const rw_status status = rw_backward(t, sum);
    return status ? status : rw_error_status(ctx);
}

typedef rw_status step_fn(rw_context *ctx, rw_tape *t, int64_t least);

/* Runs a step with the address space limited, and returns a verdict on its status. */
static enum verdict run_within(size_t limit, step_fn *step)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    limit_address_space(limit);
    rw_status status = rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .threads = 2 });
    if (status) return status == RW_ERR_MEMORY && !ctx ? REFUSED : WRONG;
    if ((status = rw_tape_create(&t, ctx))) return judge(status, ctx);
    const enum verdict first = judge(step(ctx, t, 1), ctx);
    rw_error_clear(ctx);
    rw_tape_reset(t);
    limit_address_space(address_space() + 512 * MIB); /* not above the hard limit: it may fail again */
    const enum verdict second = judge(step(ctx, t, 1), ctx);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return first == WRONG || second == WRONG ? WRONG : first == DID && second != DID ? WRONG : first;
}

static enum verdict products_within(size_t limit)
{
    return run_within(limit, run_products);
}

static enum verdict convolutions_within(size_t limit)
{
    return run_within(limit, convolutions);
}

/* Limits are near each other where a step without oneDNN ends, then far apart. */
static size_t next_limit(size_t more)
{
    return more + (more < 2 * MIB ? MIB / 8 : more < 48 * MIB ? MIB : 16 * MIB);
}

static void end_at_many_limits(enum verdict (*within)(size_t), size_t most)
{
    const size_t base = address_space();
    int did = 0, refused = 0;
    for (size_t more = 0; more < most; more = next_limit(more)) {
        const int end = in_a_child(within, base + more);
        cr_expect(end == DID || end == REFUSED, "with %zu KiB left: %s %d", more / KIB, end > 128 ? "signal" : "exit",
                  end > 128 ? end - 128 : end);
        did += end == DID;
        refused += end == REFUSED;
    }
    cr_expect_gt(did, 3);
    /* The number depends on the process's mappings: ten under AddressSanitizer. */
    cr_expect_gt(refused, 5, "%d of %d", refused, refused + did);
}

/* AddressSanitizer ends the process if it finds no address space for a new thread's own tables. */
#ifdef __SANITIZE_ADDRESS__
#define NEEDS_THREADS_WITHOUT_ADDRESS_SPACE() cr_skip_test("the sanitizer itself needs address space")
#else
#define NEEDS_THREADS_WITHOUT_ADDRESS_SPACE() (void)0
#endif

Test(resource_limits, address_space_that_ends_while_products_are_prepared, .timeout = 120)
{
    NEEDS_THREADS_WITHOUT_ADDRESS_SPACE();
    end_at_many_limits(products_within, 200 * MIB);
}

Test(resource_limits, address_space_that_ends_while_convolutions_are_prepared, .timeout = 240)
{
    NEEDS_THREADS_WITHOUT_ADDRESS_SPACE();
    end_at_many_limits(convolutions_within, 400 * MIB);
}

/* ---- threads ---- */

Test(resource_limits, more_threads_than_can_be_requested)
{
    struct fixture b = fixture_open(1, 2);
    rw_context *none = NULL;
    const int bad[] = { 0, -1, RW_MAX_THREADS + 1, 1000000000 };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(rw_context_set_threads(b.ctx, bad[i]), RW_ERR_ARGUMENT, "%d", bad[i]);
        cr_assert(strstr(rw_error_message(b.ctx), "1024"), "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_context_threads(b.ctx), 2);
        rw_error_clear(b.ctx);
        if (!bad[i]) continue;
        cr_assert_eq(rw_context_create(&none, &(rw_context_params){ .threads = bad[i] }), RW_ERR_ARGUMENT);
        cr_assert_null(none);
    }
    fixture_close(&b);
}

/* Each thread takes address space for its stack. */
static enum verdict too_many_threads(size_t argument)
{
    struct fixture b = fixture_open(1, 1);
    if (run_products(b.ctx, b.t, 1)) return WRONG;
    rw_tape_reset(b.t);
    limit_address_space(address_space() + 100 * MIB);
    if (rw_context_set_threads(b.ctx, 200) != RW_ERR_MEMORY || rw_context_threads(b.ctx) != 1) return WRONG;
    if (!strstr(rw_error_message(b.ctx), "200 threads")) return WRONG;
    rw_error_clear(b.ctx);
    if (run_products(b.ctx, b.t, 1)) return WRONG;
    fixture_close(&b);
    return REFUSED;
}

/* They were not started when the context was created: the step reports the failure, before any of it is executed. */
static enum verdict too_many_threads_in_a_step(size_t argument)
{
    limit_address_space(address_space() + 200 * MIB);
    struct fixture b = fixture_open(1, 200);
    if (run_products(b.ctx, b.t, 1) != RW_ERR_MEMORY) return WRONG;
    if (!strstr(rw_error_message(b.ctx), "200 threads")) return WRONG;
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    if (rw_context_set_threads(b.ctx, 2) || run_products(b.ctx, b.t, 1)) return WRONG;
    fixture_close(&b);
    return REFUSED;
}

static enum verdict too_many_threads_to_fill(size_t argument)
{
    limit_address_space(address_space() + 100 * MIB);
    struct fixture b = fixture_open(1, 200);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1000, 1000));
    const uint64_t before = rw_generator_get(b.ctx).offset;
    if (rw_init_normal(w, 0, 1) != RW_ERR_MEMORY || rw_generator_get(b.ctx).offset != before) return WRONG;
    return strstr(rw_error_message(b.ctx), "200 threads") ? REFUSED : WRONG;
}

/* There is space for the stacks of the planning threads, but not for the arenas that the C library's allocator reserves
   for each: it works without them. */
static enum verdict many_threads_to_plan(size_t argument)
{
    struct fixture b = fixture_open(1, 200);
    rw_prediction said;
    rw_tensor *x = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(1000));
    for (int i = 0; i < 60; i++) x = rw_tanh(b.t, rw_mul(b.t, x, x));
    x = rw_mean(b.t, x, RW_ALL_AXES, false);
    limit_address_space(address_space() + 60 * MIB);
    if (rw_tape_plan(b.t, x, "budget:70%", &said)) return WRONG;
    fixture_close(&b);
    return DID;
}

Test(resource_limits, threads_that_cannot_be_started)
{
    NEEDS_THREADS_WITHOUT_ADDRESS_SPACE();
    cr_expect_eq(in_a_child(many_threads_to_plan, 0), DID);
    cr_expect_eq(in_a_child(too_many_threads, 0), REFUSED);
    cr_expect_eq(in_a_child(too_many_threads_in_a_step, 0), REFUSED);
    cr_expect_eq(in_a_child(too_many_threads_to_fill, 0), REFUSED);
}

/* ---- memory that earlier steps hold ---- */

enum holder { NOTHING, A_READ, BACKWARD, THEN_INPUT, THEN_PARAM, RESULTS, RESULTS_THEN_INPUT, HOLDERS };

/* A loss whose step takes 30 times the 4 MiB of w. */
static rw_tensor *loss_of_many(rw_tape *t, rw_tensor *w)
{
    rw_tensor *x = w;
    for (int i = 0; i < 30; i++) x = rw_gelu(t, x);
    return rw_sum(t, x, RW_ALL_AXES, false);
}

static rw_tensor *sixteen_times(rw_tape *t, rw_tensor *w)
{
    rw_tensor *parts[16];
    for (int i = 0; i < 16; i++) parts[i] = w;
    return rw_concat(t, parts, 16, 0);
}

/* 64 MiB are read or allocated where 170 MiB are free except for what earlier calls hold; then, with RESULTS, a step
   runs or 120 MiB are allocated where 150 MiB are. */
static enum verdict allocate_after(size_t holder)
{
    struct fixture b = fixture_open(1, 1);
    const rw_shape large = RW_SHAPE(16 * 1024, 1024);
    char *const out = malloc(64 * MIB);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1024, 1024));
    if (!out || rw_init_constant(w, 1)) return WRONG;
    rw_tensor *const loss = loss_of_many(b.t, w), *const z = sixteen_times(b.t, w);
    limit_address_space(address_space() + (holder >= RESULTS ? 150 : 170) * MIB);
    if (holder == A_READ && isnan(rw_item(b.t, loss))) return WRONG;
    if (holder >= BACKWARD && rw_backward(b.t, loss)) return WRONG;
    if (holder <= BACKWARD) return judge(rw_read(b.t, z, out, 64 * MIB), b.ctx);
    if (holder >= RESULTS && rw_read(b.t, z, out, 64 * MIB)) return WRONG;
    rw_zero_grad(b.ctx);
    rw_tape_reset(b.t);
    if (holder == THEN_INPUT) rw_input(b.t, RW_F32, large, NULL, 0);
    if (holder == THEN_PARAM) rw_buffer(b.ctx, "q", RW_F32, large);
    rw_tensor *const same = loss_of_many(b.t, w);
    if (holder == RESULTS && sixteen_times(b.t, w)) rw_backward(b.t, same); /* the plan, with its block of results */
    if (holder == RESULTS_THEN_INPUT) rw_input(b.t, RW_F32, RW_SHAPE(30 * 1024, 1024), NULL, 0);
    return judge(rw_error_status(b.ctx), b.ctx);
}

/* Free arenas and results, and a step that a read began, give their memory to what needs it. */
Test(resource_limits, memory_that_earlier_steps_hold_is_free)
{
    NEEDS_THREADS_WITHOUT_ADDRESS_SPACE();
    for (int holder = NOTHING; holder < HOLDERS; holder++)
        cr_expect_eq(in_a_child(allocate_after, (size_t)holder), DID, "%d", holder);
}

/* Enough memory for either of two losses, but not for both, of which each step requests one before its end. */
static enum verdict one_of_two_losses(size_t reads)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4096, 1024));
    if (rw_init_constant(w, 0.5)) return WRONG;
    for (int step = 0; step < 3; step++) {
        rw_tensor *x = w, *y = w;
        for (int i = 0; i < 8; i++) x = rw_gelu(b.t, x);
        for (int i = 0; i < 8; i++) y = rw_sin(b.t, y);
        rw_tensor *const loss = rw_mean(b.t, x, RW_ALL_AXES, false);
        rw_tensor *const other = rw_mean(b.t, rw_matmul(b.t, y, rw_transpose(b.t, y, 0, 1)), RW_ALL_AXES, false);
        const enum verdict verdict = judge(rw_backward(b.t, loss), b.ctx);
        if (verdict != DID) return verdict;
        if (reads && isnan(rw_item(b.t, other))) return WRONG;
        rw_zero_grad(b.ctx);
        rw_tape_reset(b.t);
        if (!step) limit_address_space(address_space() + 10 * MIB);
    }
    fixture_close(&b);
    return DID;
}

Test(resource_limits, a_value_that_was_not_requested_takes_no_memory_from_the_step)
{
    NEEDS_THREADS_WITHOUT_ADDRESS_SPACE();
    cr_expect_eq(in_a_child(one_of_two_losses, 0), DID);
    cr_expect_eq(in_a_child(one_of_two_losses, 1), DID);
}

/* ---- fork ---- */

struct forked {
    struct fixture b;
    struct net n;
    size_t bytes;
    unsigned char *expected;
};

static unsigned char *gradients_of_a_step(struct forked *f)
{
    rw_zero_grad(f->b.ctx);
    rw_tape_reset(f->b.t);
    rw_generator_set(f->b.ctx, (rw_generator_state){ 3, 0 });
    if (rw_backward(f->b.t, net_loss(&f->n, f->b.t, 250, 0))) return NULL;
    return all_gradients(f->b.ctx, &f->bytes);
}

static enum verdict the_same_bytes(struct forked *f)
{
    unsigned char *const got = gradients_of_a_step(f);
    return got && first_difference(got, f->expected, f->bytes) < 0 ? DID : WRONG;
}

static void *in_a_thread(void *argument)
{
    struct forked *const f = argument;
    if (rw_context_set_threads(f->b.ctx, 2)) return f;
    return the_same_bytes(f) == DID ? NULL : f;
}

/* After threads have run: the child has none of them. Tested in its own thread, and in one that it starts. */
static enum verdict step_after_fork(size_t argument)
{
    struct forked f = { .b = fixture_open(3, 3) };
    net_init(&f.n, f.b.ctx, 2, 128, RW_F32, 1);
    ckpt_set_policy(f.b.t, "full");
    f.expected = gradients_of_a_step(&f);
    if (!f.expected) return WRONG;
    const pid_t child = fork();
    if (!child) {
        pthread_t thread;
        void *failed = &thread;
        alarm(120); /* a hang ends by a signal */
        if (the_same_bytes(&f) != DID) _exit(WRONG);
        ckpt_set_policy(f.b.t, "budget:80%"); /* planned in the child */
        if (rw_context_set_threads(f.b.ctx, 4) || the_same_bytes(&f) != DID) _exit(WRONG);
        if (pthread_create(&thread, NULL, in_a_thread, &f) || pthread_join(thread, &failed)) _exit(WRONG);
        if (rw_init_normal(rw_param(f.b.ctx, "filled", RW_F32, RW_SHAPE(500, 500)), 0, 1)) _exit(WRONG);
        _exit(failed ? WRONG : DID);
    }
    int how;
    if (waitpid(child, &how, 0) != child || !WIFEXITED(how)) return WRONG;
    return WEXITSTATUS(how) == DID ? the_same_bytes(&f) : WRONG;
}

Test(resource_limits, a_child_of_fork_computes_the_same_bytes, .timeout = 120)
{
    cr_expect_eq(in_a_child(step_after_fork, 0), DID);
}

/* Whether huge pages were requested from the kernel for p: "hg" among the flags of its mapping. */
static bool on_huge_pages(const void *p)
{
    char line[512];
    unsigned long from = 0, to = 0, a, b;
    bool found = false;
    FILE *const f = fopen("/proc/self/smaps", "r");
    cr_assert_not_null(f);
    while (!found && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &a, &b) == 2) from = a, to = b;
        if (strncmp(line, "VmFlags:", 8) || (unsigned long)p < from || (unsigned long)p >= to) continue;
        fclose(f);
        return strstr(line, " hg ");
    }
    fclose(f);
    cr_assert_fail("no mapping holds %p", p);
    return false;
}

/* Whole huge pages inside a block, if the system has them, but not those that contain its ends. */
Test(resource_limits, large_blocks_are_on_huge_pages)
{
    if (access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK)) cr_skip_test("no huge pages on request here");
    const struct rw_device_fns *const cpu = &rw_device_cpu;
    void *state = NULL;
    char why[256];
    cr_assert_eq(cpu->open(&state, &(rw_context_params){ .threads = 1 }, why, sizeof why), RW_OK);
    char *const large = cpu->alloc(state, 16 * MIB), *const small = cpu->alloc(state, MIB);
    cr_assert(large && small);
    cr_expect(on_huge_pages(large + 8 * MIB));
    cr_expect_not(on_huge_pages(small));
    cr_expect_not(on_huge_pages(large + 16 * MIB - 1) && (uintptr_t)(large + 16 * MIB) % (2 * MIB));
    cpu->free(state, large);
    cpu->free(state, small);
    cpu->close(state);
}

/* So that a step of a model too large for the machine can be planned there. */
Test(resource_limits, parameters_take_memory_when_they_are_written)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    cr_skip_test("sanitizers touch what they watch");
#else
    struct fixture b = fixture_open(1, 1);
    const size_t before = resident_bytes();
    rw_prediction p;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE((int64_t)(128 * MIB / sizeof(float))));
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, w, w), RW_ALL_AXES, false);
    cr_assert_eq(rw_tape_plan(b.t, loss, "full", &p), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_lt(resident_bytes(), before + 16 * MIB);
    cr_assert_eq(rw_init_constant(w, 1), RW_OK);
    cr_expect_geq(resident_bytes(), before + 128 * MIB);
    fixture_close(&b);
#endif
}
