/*
 * The n-th allocation of a training step fails, for each n: once, or from then on. The call reports RW_ERR_MEMORY (or
 * returns NULL with that sticky error), leaves its destinations unchanged, and frees what it allocated. The same step
 * then succeeds and gives the bytes of an undisturbed step. A step makes all the calls of a trainer: optimizer, record,
 * verify, backward, clip, update, save, load, and a graph of the next step. Allocations by the device's driver count as
 * well.
 *
 * Each allocation fails, in either mode and type. The succeeding step is checked after every FAILURES of them: in
 * between, the next failure comes one allocation later in the same step, so the state left by the last failure has to
 * carry the step past the point where it stopped. For a first step each failure needs a context of its own; of four of
 * them, one in each of the modes and types, one is followed by the step that succeeds.
 *
 * Explaining tries budgets, which allocates more often than everything else together: there some hundreds of
 * allocations fail, spread evenly.
 *
 * Under sanitizers each allocation fails in one of the modes and types, the next one in another.
 *
 * On the simulated device a step takes long: there four of them fail, spread evenly, or with REWIND_ALLOC_STRIDE=N
 * every N-th, from the first one on or from REWIND_ALLOC_FIRST=I. So N runs cover all of them.
 */
#include "support/support.h"

#include "base/alloc.h"
#include "models/model.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 1, SEQ = 6, FAILURES = 8 };

extern size_t cudasim_live_allocations(void) __attribute__((weak)); /* only in builds with the simulated device */

static char dir[40], path[64];
static FILE *explained;

static void open_files(void)
{
    strcpy(dir, "/dev/shm/rewind-alloc-XXXXXX"); /* not on a disk, which each save would wait for */
    if (!mkdtemp(dir)) strcpy(dir, "/tmp/rewind-alloc-XXXXXX");
    cr_assert(strcmp(dir + strlen(dir) - 6, "XXXXXX") || mkdtemp(dir));
    snprintf(path, sizeof path, "%s/weights", dir);
    cr_assert_not_null(explained = tmpfile());
}

static void close_files(void)
{
    fclose(explained);
    remove(path);
    cr_assert_eq(rmdir(dir), 0, "something was left beside the file");
}

TestSuite(alloc_failure, .init = open_files, .fini = close_files, .timeout = 900);

/* How the n-th allocation fails. */
static const struct mode {
    const char *name;
    void (*fail)(uint64_t n);
} modes[] = { { "once", rw_alloc_fail_at }, { "from then on", rw_alloc_fail_from } };
#define N_MODES (sizeof modes / sizeof *modes)

static const rw_dtype types[] = { RW_F32, RW_BF16 };
#define N_TYPES (sizeof types / sizeof *types)

#ifdef __SANITIZE_ADDRESS__
enum { EVERY = N_MODES * N_TYPES };
#else
enum { EVERY = 1 };
#endif

static uint64_t stride(uint64_t n)
{
    const char *const wanted = getenv("REWIND_ALLOC_STRIDE");
    return wanted && atoi(wanted) > 0 ? (uint64_t)atoi(wanted) : test_device() == RW_DEVICE_CPU ? EVERY : n / 4 + 1;
}

/* turn: that of a mode and type */
static uint64_t first(uint64_t turn)
{
    const char *const wanted = getenv("REWIND_ALLOC_FIRST");
    return wanted && atoi(wanted) > 0 ? (uint64_t)atoi(wanted) : 1 + turn % EVERY;
}

struct step {
    rw_context *ctx;
    rw_tape *t;
    struct model model;
    unsigned char *initial; /* parameters */
    size_t bytes;
    rw_prediction prediction;
};

static rw_status create_context(struct step *s, rw_dtype dtype)
{
    const struct model_config config = { .kind = MODEL_GPT, .layers = 1, .width = 16, .heads = 2, .kv_heads = 2,
                                         .vocab = 11, .max_seq = SEQ, .dropout = 0.1f, .dtype = dtype };
    rw_status status = rw_context_create(&s->ctx,
                                         &(rw_context_params){ .device = test_device(), .seed = 9, .threads = 1 });
    if (status) return status;
    if ((status = model_create(&s->model, s->ctx, &config))) return status;
    if ((status = rw_tape_create(&s->t, s->ctx))) return status;
    return ckpt_set_policy(s->t, "selective:block,core_attn");
}

static struct step open_step(rw_dtype dtype)
{
    struct step s = { 0 };
    cr_assert_eq(create_context(&s, dtype), RW_OK);
    s.initial = all_parameters(s.ctx, &s.bytes);
    return s;
}

static void close_step(struct step *s)
{
    free(s->initial);
    rw_tape_destroy(&s->t);
    rw_context_destroy(&s->ctx);
}

/* A failed step may have updated the parameters: the next one starts from their initial values. */
static void set_back(struct step *s)
{
    rw_zero_grad(s->ctx);
    rw_generator_set(s->ctx, (rw_generator_state){ 9, 5000 });
    size_t at = 0;
    for (size_t i = 0; rw_param_get(s->ctx, i); i++) {
        rw_tensor *const p = rw_param_get(s->ctx, i);
        cr_assert_eq(rw_write(p, s->initial + at, rw_tensor_bytes(p)), RW_OK, "%s", rw_error_message(s->ctx));
        at += rw_tensor_bytes(p);
    }
}

static rw_status explain(struct step *s)
{
    rewind(explained);
    const rw_status status = ckpt_explain(s->t, explained);
    if (status) cr_assert_eq(ftell(explained), 0, "a failed ckpt_explain() has printed");
    return status;
}

static rw_status verify(struct step *s, rw_tensor *loss)
{
    ckpt_report r, before;
    memset(&r, 0x5a, sizeof r);
    before = r;
    const rw_status status = ckpt_verify(s->t, loss, &r);
    if (status) cr_assert_eq(memcmp(&r, &before, sizeof r), 0, "a failed ckpt_verify() has written its report");
    return status;
}

static rw_status clip(struct step *s)
{
    double norm = -7;
    const rw_status status = rw_clip_grad_norm(s->ctx, 0.5, &norm);
    cr_assert(status ? norm == -7 : norm > 0, "%s, norm %g", rw_status_name(status), norm);
    return status;
}

static rw_tensor *record(struct step *s)
{
    static const int32_t tokens[BATCH * SEQ] = { 3, 1, 4, 1, 5, 9 }, targets[BATCH * SEQ] = { 1, 4, 1, 5, 9, 2 };
    return model_loss(&s->model, s->t, BATCH, SEQ, tokens, targets);
}

/* The next step, as a graph. */
static rw_status launch(struct step *s, rw_optimizer *opt)
{
    rw_graph *g = NULL;
    rw_tape_reset(s->t);
    rw_tensor *const loss = record(s);
    if (!loss) return rw_error_status(s->ctx);
    rw_status status = rw_graph_create(&g, s->t, loss,
                                       &(rw_graph_params){ { rw_record_clip(0.5), rw_record_update(opt) } });
    cr_assert_eq(status == RW_OK, g != NULL);
    for (int i = 0; i < 2 && !status; i++) status = rw_graph_launch(g);
    if (!status) rw_item(s->t, loss);
    rw_graph_destroy(&g);
    return status ? status : rw_error_status(s->ctx);
}

/* All calls of one training step, up to the first error. */
static rw_status train(struct step *s, rw_optimizer **opt)
{
    rw_status status = rw_adamw_create(opt, s->ctx, &(rw_adamw_params){ .lr = 0.01 });
    if (status) return status;
    rw_tensor *const loss = record(s);
    if (!loss) return rw_error_status(s->ctx);
    if ((status = verify(s, loss))) return status;
    if ((status = rw_tape_plan(s->t, loss, "full", &s->prediction))) return status;
    if ((status = rw_backward(s->t, loss))) return status;
    rw_item(s->t, loss);
    if ((status = rw_error_status(s->ctx))) return status;
    if ((status = clip(s))) return status;
    if ((status = rw_optimizer_step(*opt))) return status;
    if ((status = launch(s, *opt))) return status;
    if ((status = rw_save(s->ctx, path))) return status;
    return rw_load(s->ctx, path);
}

static rw_status run_step(struct step *s)
{
    rw_optimizer *opt = NULL;
    const rw_status status = train(s, &opt);
    rw_optimizer_destroy(&opt);
    return status;
}

/* The results of a step: gradients, then parameters. */
static unsigned char *result_of(struct step *s)
{
    size_t bytes;
    unsigned char *const g = all_gradients(s->ctx, &bytes), *const p = all_parameters(s->ctx, &bytes);
    unsigned char *const both = malloc(2 * bytes);
    memcpy(both, g, bytes);
    memcpy(both + bytes, p, bytes);
    free(g);
    free(p);
    return both;
}

static void expect_no_part_of_a_file(void)
{
    DIR *const d = opendir(dir);
    for (const struct dirent *e = readdir(d); e; e = readdir(d))
        cr_assert(!strstr(e->d_name, ".part"), "%s", e->d_name);
    closedir(d);
}

/* One failing allocation, for messages. */
struct failure {
    const struct mode *mode;
    rw_dtype dtype;
    uint64_t i, n;
};

static const char *text_of(const struct failure *f)
{
    static char text[96];
    snprintf(text, sizeof text, "%s, allocation %llu of %llu fails %s", rw_dtype_name(f->dtype),
             (unsigned long long)f->i, (unsigned long long)f->n, f->mode->name);
    return text;
}

static void expect_bytes(struct step *s, const struct failure *f, const unsigned char *expected)
{
    unsigned char *const got = result_of(s);
    cr_assert_eq(first_difference(expected, got, 2 * s->bytes), -1, "%s: other bytes", text_of(f));
    free(got);
}

static int survived; /* failures that a step handled without an error */

/* The step fails. live: number of allocations after a reset, or -1 to leave the tape. */
static void fail(struct step *s, const struct failure *f, const unsigned char *expected, int64_t live)
{
    set_back(s);
    f->mode->fail(f->i);
    const rw_status status = run_step(s);
    rw_alloc_fail_at(0);
    if (status == RW_OK && f->mode->fail == rw_alloc_fail_at) {
        expect_bytes(s, f, expected); /* it succeeded: with a smaller allocation, or by freeing something */
        survived++;
    } else {
        cr_assert_eq(status, RW_ERR_MEMORY, "%s: %s, \"%s\"", text_of(f), rw_status_name(status),
                     rw_error_message(s->ctx));
        cr_assert_eq(rw_error_status(s->ctx), RW_ERR_MEMORY, "%s: no error sticks", text_of(f));
        cr_assert_gt(strlen(rw_error_message(s->ctx)), 10, "%s: \"%s\"", text_of(f), rw_error_message(s->ctx));
    }
    expect_no_part_of_a_file();
    rw_error_clear(s->ctx);
    rw_tape_reset(s->t);
    if (live >= 0) /* fewer: blocks of results that no step uses are freed (run/result_memory.h) */
        cr_assert_leq(rw_alloc_live(), live, "%s: %lld allocations are left", text_of(f),
                      (long long)(rw_alloc_live() - live));
}

static void succeed(struct step *s, const struct failure *f, const unsigned char *expected)
{
    set_back(s);
    cr_assert_eq(run_step(s), RW_OK, "%s, and then: %s", text_of(f), rw_error_message(s->ctx));
    expect_bytes(s, f, expected);
    rw_tape_reset(s->t);
}

static void expect_nothing_of_the_driver(void)
{
    if (cudasim_live_allocations) cr_assert_eq(cudasim_live_allocations(), 0);
}

/* Creation may fail at any allocation and leaves nothing allocated. */
Test(alloc_failure, of_creation)
{
    struct step whole = { 0 };
    const uint64_t before = rw_alloc_count();
    const int64_t live = rw_alloc_live();
    cr_assert_eq(create_context(&whole, RW_F32), RW_OK);
    const uint64_t n = rw_alloc_count() - before;
    close_step(&whole);
    cr_assert_eq(rw_alloc_live(), live);
    cr_assert_gt(n, 20);
    for (size_t m = 0; m < N_MODES; m++)
        for (uint64_t i = 1; i <= n; i++) {
            const struct failure f = { &modes[m], RW_F32, i, n };
            struct step s = { 0 };
            modes[m].fail(i);
            cr_assert_eq(create_context(&s, RW_F32), RW_ERR_MEMORY, "%s", text_of(&f));
            rw_alloc_fail_at(0);
            close_step(&s);
            cr_assert_eq(rw_alloc_live(), live, "%s", text_of(&f));
            expect_nothing_of_the_driver();
        }
}

/* turn: index of this mode and type. It determines which of four failures is followed by the step that succeeds. */
static void fail_first_steps(rw_dtype dtype, const struct mode *mode, uint64_t turn)
{
    struct step whole = open_step(dtype);
    set_back(&whole);
    const uint64_t before = rw_alloc_count();
    cr_assert_eq(run_step(&whole), RW_OK, "%s", rw_error_message(whole.ctx));
    const uint64_t n = rw_alloc_count() - before;
    unsigned char *const expected = result_of(&whole);
    close_step(&whole);
    const int64_t live = rw_alloc_live();
    cr_assert_gt(n, 200);
    survived = 0;
    for (uint64_t i = first(turn); i <= n; i += stride(n)) {
        const struct failure f = { mode, dtype, i, n };
        struct step s = open_step(dtype);
        fail(&s, &f, expected, -1);
        if (i / stride(n) % 4 == turn) succeed(&s, &f, expected);
        close_step(&s);
        cr_assert_eq(rw_alloc_live(), live, "%s", text_of(&f));
        expect_nothing_of_the_driver();
    }
    /* of values that rw_item() only assumes to be needed, and of memory that earlier runs no longer need */
    cr_assert_leq(survived, 24, "%d", survived);
    free(expected);
}

/* The first step of a context, with everything that is created once: plans, tables, kernels' primitives. */
Test(alloc_failure, of_a_first_step)
{
    for (size_t d = 0; d < N_TYPES; d++) fail_first_steps(types[d], &modes[0], d);
}

Test(alloc_failure, of_a_first_step_from_then_on)
{
    for (size_t d = 0; d < N_TYPES; d++) fail_first_steps(types[d], &modes[1], N_TYPES + d);
}

/* In a context that has run the step before, a failure leaves no additional allocation. */
static void fail_later_steps(const char *verify, rw_dtype dtype)
{
    setenv("REWIND_VERIFY", verify, 1);
    struct step s = open_step(dtype);
    unsetenv("REWIND_VERIFY");
    set_back(&s);
    cr_assert_eq(run_step(&s), RW_OK, "%s", rw_error_message(s.ctx));
    unsigned char *const expected = result_of(&s);
    rw_tape_reset(s.t);
    for (int i = 0; i < 8; i++) { /* until the results of the first step are freed */
        set_back(&s);
        cr_assert_eq(run_step(&s), RW_OK);
        rw_tape_reset(s.t);
    }
    const int64_t live = rw_alloc_live();
    set_back(&s);
    const uint64_t before = rw_alloc_count();
    cr_assert_eq(run_step(&s), RW_OK);
    const uint64_t n = rw_alloc_count() - before;
    rw_tape_reset(s.t);
    cr_assert_eq(rw_alloc_live(), live, "a step that succeeds leaves nothing either");
    cr_assert_gt(n, 50);
    for (size_t m = 0; m < N_MODES; m++)
        for (uint64_t i = first(m + (dtype == types[0] ? 0 : N_MODES)); i <= n; i += stride(n)) {
            const struct failure f = { &modes[m], dtype, i, n };
            fail(&s, &f, expected, live);
            if (i / stride(n) % FAILURES == FAILURES - 1 || i + stride(n) > n) succeed(&s, &f, expected);
        }
    free(expected);
    close_step(&s);
    expect_nothing_of_the_driver();
}

Test(alloc_failure, of_a_later_step)
{
    for (size_t d = 0; d < N_TYPES; d++) fail_later_steps("0", types[d]);
}

Test(alloc_failure, of_a_later_step_that_verifies_itself)
{
    fail_later_steps("1", RW_F32);
    fail_later_steps("digest", RW_BF16);
}

/* It leaves no allocation, prints nothing, and gives the same text afterwards. */
Test(alloc_failure, of_explaining)
{
    struct step s = open_step(RW_F32);
    cr_assert_not_null(record(&s));
    cr_assert_eq(explain(&s), RW_OK, "%s", rw_error_message(s.ctx));
    const long length = ftell(explained);
    const uint64_t before = rw_alloc_count();
    const int64_t live = rw_alloc_live();
    cr_assert_eq(explain(&s), RW_OK);
    const uint64_t n = rw_alloc_count() - before, spread = n / (test_device() == RW_DEVICE_CPU ? 400 : 8) + 1;
    for (size_t m = 0; m < N_MODES; m++)
        for (uint64_t i = 1 + m; i <= n; i += spread) {
            const struct failure f = { &modes[m], RW_F32, i, n };
            modes[m].fail(i);
            const rw_status status = explain(&s);
            rw_alloc_fail_at(0);
            cr_assert_eq(status, RW_ERR_MEMORY, "%s: %s", text_of(&f), rw_status_name(status));
            rw_error_clear(s.ctx);
            cr_assert_eq(rw_alloc_live(), live, "%s", text_of(&f));
        }
    cr_assert_eq(explain(&s), RW_OK, "%s", rw_error_message(s.ctx));
    cr_assert_eq(ftell(explained), length);
    close_step(&s);
}
