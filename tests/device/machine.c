/*
 * Where the machine ends: address space, threads, processes that fork. Each in a child process of its own, which has
 * to come back with a status and a message, never by a signal or an exit of some library's.
 */
#include "support/support.h"

#include "device/cpu/cpu.h"
#include "device/cpu/onednn.h"
#include "plan/cache.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* What a child may say by its exit status. */
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

/* Runs it in a child; what it returns, or 128 + the signal that ended it. */
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

/* RW_OK, or an error that has been put into words. */
static enum verdict judge(rw_status status, const rw_context *ctx)
{
    if (status == RW_OK) return DID;
    return status == RW_ERR_MEMORY && *rw_error_message(ctx) ? REFUSED : WRONG;
}

/* Products of several shapes, forward and backward: each takes primitives of its own. */
static rw_status products(rw_context *ctx, rw_tape *t, int64_t least)
{
    rw_tensor *sum = NULL;
    for (int64_t n = least; n < least + 4; n++) {
        const rw_dtype dtype = n % 2 ? RW_F32 : RW_BF16;
        rw_tensor *const x = rw_require_grad(t, rw_input(t, dtype, RW_SHAPE(96 + n % 64, 64), NULL));
        rw_tensor *const w = rw_require_grad(t, rw_input(t, dtype, RW_SHAPE(64, 160 + n / 64), NULL));
        rw_tensor *const y = rw_cast(t, rw_sum(t, rw_matmul(t, x, w), RW_ALL_AXES, false), RW_F32);
        sum = sum ? rw_add(t, sum, y) : y;
    }
    const rw_status status = rw_backward(t, sum);
    return status ? status : rw_error_status(ctx);
}

static enum verdict step_within(size_t limit)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    limit_address_space(limit);
    rw_status status = rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .threads = 2 });
    if (status) return status == RW_ERR_MEMORY && !ctx ? REFUSED : WRONG;
    if ((status = rw_tape_create(&t, ctx))) return judge(status, ctx);
    const enum verdict first = judge(products(ctx, t, 1), ctx);
    rw_error_clear(ctx);
    rw_tape_reset(t);
    limit_address_space(address_space() + 512 * MIB); /* not above the hard limit: it may fail again */
    const enum verdict second = judge(products(ctx, t, 1), ctx);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return first == WRONG || second == WRONG ? WRONG : first == DID && second != DID ? WRONG : first;
}

Test(machine, address_space_that_ends_while_products_are_prepared, .timeout = 120)
{
    const size_t base = address_space();
    int did = 0, refused = 0;
    for (size_t more = 0; more < 200 * MIB; more += more < 36 * MIB ? 2 * MIB : 16 * MIB) {
        const int end = in_a_child(step_within, base + more);
        cr_expect(end == DID || end == REFUSED, "with %zu MiB left: %s %d", more / MIB, end > 128 ? "signal" : "exit",
                  end > 128 ? end - 128 : end);
        did += end == DID;
        refused += end == REFUSED;
    }
    cr_expect_gt(did, 3);
    cr_expect_gt(refused, 5); /* how many depends on what the process had mapped: ten under AddressSanitizer */
}

static size_t resident(void)
{
    size_t all = 0, pages = 0;
    FILE *const f = fopen("/proc/self/statm", "r");
    cr_assert_not_null(f);
    cr_assert_eq(fscanf(f, "%zu %zu", &all, &pages), 2);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static size_t known_primitives(const struct fixture *b)
{
    return rw_onednn_count(((struct rw_cpu *)b->ctx->device_state)->onednn);
}

static void steps_of_shapes(struct fixture *b, int from, int to)
{
    for (int i = from; i < to; i++) {
        cr_assert_eq(products(b->ctx, b->t, 1 + 4 * i), RW_OK, "%s", rw_error_message(b->ctx));
        rw_tape_reset(b->t);
    }
}

/* Twelve products a step, of up to four primitives each. oneDNN's own cache, of 1024, is full after 90 steps; so are
 * the table and the plans. */
Test(machine, shapes_without_end_take_memory_with_an_end, .timeout = 120)
{
    struct fixture b = fixture_open(1, 1);
    rw_memory m;
    steps_of_shapes(&b, 0, 150);
    const size_t most = RW_ONEDNN_IDLE + RW_PLAN_CACHE_SIZE * 12 * 4, filled = resident(), known = known_primitives(&b);
    cr_assert_leq(known, most);
    cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
    cr_assert_geq(m.library, known * 65536);
    cr_assert_leq(m.library, known * 72000);
    steps_of_shapes(&b, 150, 400);
    cr_assert_leq(known_primitives(&b), most);
#ifdef __SANITIZE_ADDRESS__
    (void)filled; /* what was freed stays in the sanitizer's quarantine */
#else
    cr_assert_leq(resident(), filled + 8 * MIB, "%zu KiB, then %zu KiB", filled / 1024, resident() / 1024);
#endif
    fixture_close(&b);
}

/* The table forgets what no plan holds, in the order of its last use, and nothing else. */
Test(machine, a_plan_that_waits_keeps_its_primitives)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *waits = NULL;
    cr_assert_eq(rw_tape_create(&waits, b.ctx), RW_OK);
    rw_tensor *const x = rw_require_grad(waits, rw_input(waits, RW_F32, RW_SHAPE(1001, 64), NULL));
    rw_tensor *const loss = rw_sum(waits, rw_matmul(waits, x, rw_transpose(waits, x, 0, 1)), RW_ALL_AXES, false);
    cr_assert_eq(rw_item(waits, loss), 0.0);
    steps_of_shapes(&b, 0, 100);
    cr_assert_eq(rw_backward(waits, loss), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tape_destroy(&waits);
    fixture_close(&b);
}

/* ---- threads ---- */

Test(machine, more_threads_than_can_be_asked_for)
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

/* Each thread takes a stack of its own from the address space. */
static enum verdict too_many_threads(size_t argument)
{
    struct fixture b = fixture_open(1, 1);
    if (products(b.ctx, b.t, 1)) return WRONG;
    rw_tape_reset(b.t);
    limit_address_space(address_space() + 100 * MIB);
    if (rw_context_set_threads(b.ctx, 200) != RW_ERR_MEMORY || rw_context_threads(b.ctx) != 1) return WRONG;
    if (!strstr(rw_error_message(b.ctx), "200 threads")) return WRONG;
    rw_error_clear(b.ctx);
    if (products(b.ctx, b.t, 1)) return WRONG;
    fixture_close(&b);
    return REFUSED;
}

/* Nobody has tried them when the context was made: the step says it, before anything of it runs. */
static enum verdict too_many_threads_in_a_step(size_t argument)
{
    limit_address_space(address_space() + 200 * MIB);
    struct fixture b = fixture_open(1, 200);
    if (products(b.ctx, b.t, 1) != RW_ERR_MEMORY) return WRONG;
    if (!strstr(rw_error_message(b.ctx), "200 threads")) return WRONG;
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    if (rw_context_set_threads(b.ctx, 2) || products(b.ctx, b.t, 1)) return WRONG;
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

/* One is enough to plan with. */
static enum verdict too_many_threads_to_plan(size_t argument)
{
    struct fixture b = fixture_open(1, 200);
    rw_prediction said;
    rw_tensor *x = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(1000));
    for (int i = 0; i < 60; i++) x = rw_tanh(b.t, rw_mul(b.t, x, x));
    x = rw_mean(b.t, x, RW_ALL_AXES, false);
    limit_address_space(address_space() + 100 * MIB);
    if (rw_tape_plan(b.t, x, "budget:70%", &said)) return WRONG;
    fixture_close(&b);
    return DID;
}

Test(machine, threads_that_cannot_be_started)
{
    cr_expect_eq(in_a_child(too_many_threads_to_plan, 0), DID);
    cr_expect_eq(in_a_child(too_many_threads, 0), REFUSED);
    cr_expect_eq(in_a_child(too_many_threads_in_a_step, 0), REFUSED);
    cr_expect_eq(in_a_child(too_many_threads_to_fill, 0), REFUSED);
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

/* After threads have run: the child has none of them. In its own thread, and in one that it starts. */
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
        alarm(30); /* a hang ends by a signal */
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

Test(machine, a_child_of_fork_computes_the_same_bytes, .timeout = 120)
{
    cr_expect_eq(in_a_child(step_after_fork, 0), DID);
}

/* Whether the kernel was asked for huge pages where p lies: "hg" among the flags of its mapping. */
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

/* Whole ones inside a block, where the system has them: neither what is before it nor what is behind it. */
Test(machine, large_blocks_are_on_huge_pages)
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

/* So that a step of a model which the machine cannot hold is planned there. */
Test(machine, parameters_take_memory_when_they_are_written)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    cr_skip_test("sanitizers touch what they watch");
#else
    struct fixture b = fixture_open(1, 1);
    const size_t before = resident();
    rw_prediction p;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE((int64_t)(128 * MIB / sizeof(float))));
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, w, w), RW_ALL_AXES, false);
    cr_assert_eq(rw_tape_plan(b.t, loss, "full", &p), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_lt(resident(), before + 16 * MIB);
    cr_assert_eq(rw_init_constant(w, 1), RW_OK);
    cr_expect_geq(resident(), before + 128 * MIB);
    fixture_close(&b);
#endif
}
