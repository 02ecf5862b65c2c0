/*
 * The cost of memory that misses the caches, with invented times: what block times imply, when a device is measured,
 * how much is deducted from which node's cost, and that a prediction adds the same amount. Only one of these tests
 * reads a clock, and no result depends on it.
 */
#include "support/support.h"

#include "autodiff/costs.h"
#include "device/cpu/cache_miss_cost.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define NS 0x1p-30 /* about a nanosecond: sums and halves are exact */

/* ---- evaluation of block times ---- */

/* Blocks of 8 to 256 MiB: nanoseconds per byte written in each, and the additional time to read a cache miss. */
struct blocks {
    double written[RW_MEMORY_SIZES], read;
    uint64_t near;
    double price;
};

static void expect_price(const struct blocks *b)
{
    double written[RW_MEMORY_SIZES], price = -1;
    uint64_t near = 77;
    for (int i = 0; i < RW_MEMORY_SIZES; i++) written[i] = b->written[i] * NS;
    const bool known = rw_cpu_memory_price(written, b->read * NS, &near, &price);
    cr_expect_eq(known, b->near > 0, "%g to %g", b->written[0], b->written[RW_MEMORY_SIZES - 1]);
    cr_expect_eq(near, b->near ? b->near : 77, "%g to %g: %llu", b->written[0], b->written[RW_MEMORY_SIZES - 1],
                 (unsigned long long)near);
    cr_expect_float_eq(price, b->near ? b->price * NS : -1, 1e-9 * NS, "%g", price);
}

Test(cache_miss_cost, is_where_blocks_begin_to_take_longer_and_by_how_much)
{
    static const struct blocks cases[] = {
        { { 1, 1, 1, 1, 1, 1 }, 5, 0, 0 },    /* all are hits, whatever reading takes */
        { { 1, 1, 1, 1, 1, 1.29 }, 0, 0, 0 }, /* not clearly slower */
        { { 2, 1, 1, 1, 1, 1 }, 0, 0, 0 },    /* shorter */
        { { 1, 1, 1, 1, 1, 1.31 }, 0, 128 * MIB, 0.31 },
        { { 1, 5, 5, 5, 5, 5 }, 0, 8 * MIB, 4 },
        { { 1, 1, 1, 5, 5, 5 }, 0, 32 * MIB, 4 },
        { { 1, 1.5, 1.9, 2.1, 3, 5 }, 0, 32 * MIB, 4 }, /* a quarter of the range is at 2 */
        { { 1, 1, 2, 4, 5, 5 }, 0, 16 * MIB, 4 },       /* at a quarter it is a miss */
        { { 1, 1, 4, 1, 1, 5 }, 0, 16 * MIB, 4 },     /* the first miss counts */
        { { 1, 1, 1, 5, 5, 5 }, 2, 32 * MIB, 6 },     /* written once and read once */
        { { 1, 1, 1, 5, 5, 5 }, -2, 32 * MIB, 4 },    /* reading takes at least no time */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_price(&cases[i]);
}

/* A block that ends at a protected page. The result depends on the machine, but must be plausible. */
Test(cache_miss_cost, measured_is_a_size_and_a_time)
{
    void *const block = rw_device_cpu.alloc(NULL, RW_MEMORY_TIMED);
    cr_assert_not_null(block);
    for (int threads = 1; threads <= 3; threads++) {
        struct rw_memory_times m = { 0, -1, -1 };
        if (rw_cpu_memory_time(block, threads, &m)) {
            const uint64_t near = m.near_bytes;
            cr_expect(near >= 8 * MIB && near <= 128 * MIB && !(near & (near - 1)), "%llu", (unsigned long long)near);
            cr_expect(m.far > 0 && m.far < 1e-6, "%g seconds a byte", m.far);
            cr_expect(threads == 1 ? m.shared == 0 : m.shared >= 0 && m.shared < 1e-6, "%g seconds a byte", m.shared);
        } else {
            cr_expect(!m.near_bytes && m.far == -1, "nothing is said");
        }
    }
    rw_device_cpu.free(NULL, block);
}

/* ---- a device with a controlled clock ---- */

static struct clock {
    struct rw_device_fns fns;
    size_t last, i;  /* the mark queried last, and the number of marks of this step before it */
    double us, more; /* duration of a step's first action, and the increment for each later one */
    int asked;       /* number of queries of the cost of memory */
    int threads;     /* host threads at the last query */
    bool knows;      /* its reply then: */
    struct rw_memory_times says;
} fake;

static rw_status made_up(void *state, size_t from, size_t to, double *ret_us)
{
    fake.i = from == fake.last + 1 ? fake.i + 1 : 0;
    fake.last = from;
    *ret_us = fake.us + fake.more * (double)fake.i;
    return to == from + 1 ? RW_OK : RW_ERR_DEVICE;
}

static bool made_up_memory(void *state, int threads, struct rw_memory_times *ret)
{
    fake.asked++;
    fake.threads = threads;
    if (!fake.knows) return false;
    *ret = fake.says;
    return true;
}

static struct fixture open_fake(uint64_t near, double seconds)
{
    struct fixture b = fixture_open(3, 1);
    fake = (struct clock){ .fns = *b.ctx->device, .us = 1000, .knows = true, .says = { near, seconds, 0 } };
    fake.fns.elapsed = made_up;
    fake.fns.time_memory = made_up_memory;
    b.ctx->device = &fake.fns;
    return b;
}

static void close_fake(struct fixture *b)
{
    b->ctx->device = &rw_device_cpu;
    fixture_close(b);
}

/* ---- ops in a row, none of which overwrites its input ---- */

static rw_status row_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status row_kernel(const rw_kernel *k)
{
    *(float *)k->out[0].data = *(const float *)k->in[0].data; /* the other elements are not read */
    return RW_OK;
}

#define ROW_OP(text)                                                                                                   \
    {                                                                                                                  \
        .name = text, .n_inputs = 1, .n_outputs = 1, .check = row_check, .kernel = { [RW_DEVICE_CPU] = row_kernel }    \
    }
static const rw_op_def row_ops[] = { ROW_OP("first"), ROW_OP("second"), ROW_OP("third"), ROW_OP("fourth"),
                                     ROW_OP("result") };
enum { ROW = sizeof row_ops / sizeof *row_ops };
static const rw_op_def *row_op[ROW] = { &row_ops[0], &row_ops[1], &row_ops[2], &row_ops[3], &row_ops[4] };

/* Two of them are live at a time, so the third reuses the memory of the first, and the fourth that of the second. */
static void run_row(struct fixture *b, uint64_t mib)
{
    const int64_t n = (int64_t)(mib * MIB / sizeof(float));
    float *const zeros = calloc((size_t)n, sizeof *zeros);
    cr_assert_not_null(zeros);
    rw_tensor *x = rw_input(b->t, RW_F32, RW_SHAPE(n), zeros, (size_t)n * sizeof *zeros);
    for (int i = 0; i < ROW; i++) x = rw_apply(b->t, row_op[i], &x, 1, NULL, 0, NULL);
    cr_assert_eq(rw_eval(b->t, &x, 1), RW_OK, "%s", rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    free(zeros);
}

static void measure_row(struct fixture *b, uint64_t mib)
{
    cr_assert_eq(rw_profile_begin(b->ctx), RW_OK);
    for (int i = 0; i < 3; i++) run_row(b, mib);
    cr_assert_eq(rw_profile_end(b->ctx), RW_OK, "%s", rw_error_message(b->ctx));
}

/* The cost of an op of the row, in microseconds. */
static double us_of(const struct fixture *b, const char *op)
{
    const struct rw_costs *const costs = rw_costs_of(b->ctx);
    for (size_t i = 0; i < costs->n; i++)
        if (!strcmp(costs->entry[i].op, op)) return (double)costs->entry[i].picoseconds * 1e-6;
    cr_assert_fail("no %s", op);
    return 0;
}

/* Megabytes of misses with a cache of 14. The input and the first result start with what the step before left: 14 of
   16. The second result finds nothing free; later ones reuse memory of a dead buffer, of which 6 are left in the cache.
   The result has memory of its own. */
static const struct {
    const char *op;
    int far;
} far_of_row[] = { { "first", 2 }, { "second", 8 }, { "third", 2 }, { "fourth", 2 }, { "result", 8 } };

Test(cache_miss_cost, is_subtracted_from_ops_with_cache_misses)
{
    struct fixture b = open_fake(14 * MIB, 2e-6 / (double)MIB);
    fake.more = 100;
    measure_row(&b, 8);
    cr_expect_eq(fake.asked, 1);
    cr_expect_eq(rw_costs_of(b.ctx)->memory.near_bytes, 14 * MIB);
    cr_expect_eq(rw_costs_of(b.ctx)->memory.picoseconds, 2000000);
    for (int i = 0; i < ROW; i++) {
        const double us = us_of(&b, far_of_row[i].op), want = 1000 + 100 * i - far_of_row[i].far; /* 1 us each */
        cr_expect_float_eq(us, want, 1e-5, "%s: %.7g, not %.7g", far_of_row[i].op, us, want);
    }
    close_fake(&b);
}

Test(cache_miss_cost, takes_at_most_half_of_a_node)
{
    static const double seconds[] = { 99e-6, 124e-6, 126e-6, 1e-3, 1, 1e6 }; /* per MiB, each way */
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
        struct fixture b = open_fake(14 * MIB, seconds[i] / (double)MIB);
        measure_row(&b, 8);
        for (int k = 0; k < ROW; k++) {
            const double us = us_of(&b, far_of_row[k].op), far = 5e5 * seconds[i] * far_of_row[k].far;
            const double want = fmax(1000 - far, 500);
            cr_expect_float_eq(us, want, 1e-4, "%g, %s: %.7g, not %.7g", seconds[i], far_of_row[k].op, us, want);
        }
        close_fake(&b);
    }
}

/* The same elements as a row instead of a column: the model assumes that a kernel's threads divide them differently. */
static rw_status turn_check(rw_op_call *call)
{
    return rw_op_output(call, 0, call->in[0].dtype, RW_SHAPE(1, call->in[0].layout->numel));
}

/* The second op reads in another layout what the first one has written, and the third writes over that memory. */
Test(cache_miss_cost, is_subtracted_from_ops_that_write_what_others_have_read)
{
    static const rw_op_def turn = { .name = "second", .n_inputs = 1, .n_outputs = 1, .check = turn_check,
                                    .kernel = { [RW_DEVICE_CPU] = row_kernel } };
    struct fixture b = open_fake(64 * MIB, 1e-6 / (double)MIB);
    fake.says.shared = 3e-6 / (double)MIB;
    row_op[1] = &turn;
    measure_row(&b, 8);
    row_op[1] = &row_ops[1];
    cr_expect_eq(rw_costs_of(b.ctx)->memory.shared_picoseconds, 3000000);
    for (int i = 0; i < ROW; i++)
        cr_expect_float_eq(us_of(&b, row_ops[i].name), i == 2 ? 1000 - 24 : 1000, 1e-5, "%s: %.7g", row_ops[i].name,
                           us_of(&b, row_ops[i].name));
    close_fake(&b);
}

/* The device is not queried for steps that fit into one core's caches; otherwise once, as long as the number of threads
   is the same. */
Test(cache_miss_cost, is_measured_once_and_for_large_steps_alone)
{
    struct fixture b = open_fake(6 * MIB, 1e-9);
    measure_row(&b, 7);
    cr_expect_eq(fake.asked, 0, "14 MiB");
    cr_expect_eq(rw_costs_of(b.ctx)->memory.picoseconds, 0);
    fake.knows = false;
    measure_row(&b, 8);
    cr_expect_eq(fake.asked, 1);
    cr_expect_eq(rw_costs_of(b.ctx)->memory.picoseconds, 0, "all is near");
    cr_expect_float_eq(us_of(&b, "first"), 1000, 1e-5);
    fake.knows = true;
    measure_row(&b, 8);
    cr_expect_eq(fake.asked, 2);
    const struct rw_memory_cost known = rw_costs_of(b.ctx)->memory;
    cr_expect(known.near_bytes == 6 * MIB && known.picoseconds > 0);
    fake.says.near_bytes = 7 * MIB;
    measure_row(&b, 9);
    measure_row(&b, 1);
    cr_expect_eq(fake.asked, 2, "it is known");
    const struct rw_memory_cost still = rw_costs_of(b.ctx)->memory;
    cr_expect(!memcmp(&still, &known, sizeof known), "and stays, also where small steps are measured");
    cr_assert_eq(rw_context_set_threads(b.ctx, 2), RW_OK);
    measure_row(&b, 8);
    cr_expect(fake.asked == 3 && fake.threads == 2, "%d, with %d", fake.asked, fake.threads);
    cr_expect_eq(rw_costs_of(b.ctx)->memory.near_bytes, 7 * MIB);
    fake.fns.time_memory = NULL;
    rw_costs_clear(b.ctx);
    measure_row(&b, 8);
    cr_expect_eq(rw_costs_of(b.ctx)->memory.picoseconds, 0, "a device without measurements");
    close_fake(&b);
}

/* ---- predictions ---- */

#define CHAIN_BYTES (2 << 20)

/* A chain of squares of 2 MiB in regions: 24 MiB and more if all are kept. */
static rw_tensor *chain(struct fixture *b)
{
    enum { N = CHAIN_BYTES / sizeof(float) };
    static float ones[N];
    rw_tensor *x = rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(N), ones, sizeof ones));
    for (int i = 0; i < 12; i++) {
        if (i % 3 == 0) ckpt_begin(b->t, "r");
        x = counted_square(b->t, x, 0); /* all equal: their cost is shared */
        if (i % 3 == 2) ckpt_end(b->t);
    }
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

static rw_prediction predict_of(struct fixture *b, rw_tensor *loss, const char *policy)
{
    rw_prediction p;
    cr_assert_eq(rw_tape_plan(b->t, loss, policy, &p), RW_OK, "%s: %s", policy, rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    return p;
}

static rw_prediction predict(struct fixture *b, const char *policy)
{
    return predict_of(b, chain(b), policy);
}

/* Measures costs in some steps, in which each node takes longer than the one before. Returns microseconds per step. */
static double measure_steps(struct fixture *b, rw_tensor *(*loss_of)(struct fixture *b))
{
    fake.more = 3;
    cr_assert_eq(rw_profile_begin(b->ctx), RW_OK);
    for (int step = 0; step < 4; step++) {
        cr_assert_eq(rw_backward(b->t, loss_of(b)), RW_OK, "%s", rw_error_message(b->ctx));
        rw_tape_reset(b->t);
        rw_zero_grad(b->ctx);
    }
    cr_assert_eq(rw_profile_end(b->ctx), RW_OK);
    const double n = (double)fake.i + 1;
    return n * fake.us + n * (n - 1) / 2 * fake.more;
}

/* The sum deducted from nodes is what the step pays for memory: the prediction of a measured step equals that step. */
Test(cache_miss_cost, of_a_measured_step_the_prediction_is_the_step)
{
    static const double seconds[] = { 0, 1e-6, 1e-5, 3e-5 }; /* for each MiB beyond 5 */
    double full[2] = { 0 };
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
        struct fixture b = open_fake(5 * MIB, seconds[i] / (double)MIB);
        const double step_us = measure_steps(&b, chain);
        cr_assert_eq(fake.asked, 1);
        const rw_prediction none = predict(&b, "none");
        cr_assert_gt(none.largest_live, 20 * MIB);
        cr_expect_float_eq(none.ms * 1e3, step_us, 1e-3, "%g: %.9g us for %.9g", seconds[i], none.ms * 1e3, step_us);
        if (i == 0 || i == 3) full[i / 3] = predict(&b, "full").ms;
        close_fake(&b);
    }
    cr_expect_lt(full[1], full[0] - 0.1, "%g %g: one that uses little memory pays little", full[1], full[0]);
}

/* Layers with weights. Their gradients read both operands in another layout. */
static rw_tensor *layers(struct fixture *b)
{
    enum { ROWS = 4096, WIDTH = 256, LAYERS = 8 };
    static float ones[ROWS * WIDTH];
    rw_tensor *x = rw_input(b->t, RW_F32, RW_SHAPE(ROWS, WIDTH), ones, sizeof ones);
    for (int i = 0; i < LAYERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        rw_tensor *w = rw_param_find(b->ctx, name);
        if (!w) w = rw_param(b->ctx, name, RW_F32, RW_SHAPE(WIDTH, WIDTH));
        ckpt_begin(b->t, "layer");
        x = rw_gelu(b->t, rw_linear(b->t, x, w, RW_NONE));
        ckpt_end(b->t);
    }
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

static double layers_ms(struct fixture *b, const char *policy)
{
    return predict_of(b, layers(b), policy).ms;
}

/* The same if threads read what other threads wrote. Recomputed values are written where backward has just read. */
Test(cache_miss_cost, of_a_measured_step_with_shared_memory_the_prediction_is_the_step)
{
    static const char *const policies[] = { "none", "full" };
    for (int measured = 0; measured < 2; measured++) {
        struct fixture b = open_fake(32 * MIB, 1e-6 / (double)MIB);
        fake.says.shared = 2e-5 / (double)MIB;
        cr_assert_eq(ckpt_set_policy(b.t, policies[measured]), RW_OK);
        const double step_us = measure_steps(&b, layers);
        const double ms = layers_ms(&b, policies[measured]), none = layers_ms(&b, "none"), full = layers_ms(&b, "full");
        cr_expect_float_eq(ms * 1e3, step_us, 1e-3, "%s: %.9g us for %.9g", policies[measured], ms * 1e3, step_us);
        rw_costs_of(b.ctx)->memory.shared_picoseconds *= 2;
        cr_assert(rw_costs_seal(rw_costs_of(b.ctx)));
        const double none_more = layers_ms(&b, "none") - none, full_more = layers_ms(&b, "full") - full;
        cr_expect(none_more > 0 && full_more > none_more + 0.1, "%g and %g ms", none_more, full_more);
        rw_costs_of(b.ctx)->memory.near_bytes = (uint64_t)1 << 40; /* so that this is the only cost */
        cr_assert(rw_costs_seal(rw_costs_of(b.ctx)));
        const double near = layers_ms(&b, "full");
        rw_costs_of(b.ctx)->memory.shared_picoseconds = 0;
        cr_assert(rw_costs_seal(rw_costs_of(b.ctx)));
        cr_expect_gt(near, layers_ms(&b, "full") + 0.1);
        close_fake(&b);
    }
}

/* Bytes that the nodes of a plan of `none` read and write, repetitions included: the misses of a cache of no size. */
static uint64_t used_by_chain(void)
{
    const uint64_t forward = 12 * 2, sum = 1, backward = 12 * (2 + 3) - 1; /* 2 x, times upstream, at first a scalar */
    return (forward + sum + backward) * CHAIN_BYTES;
}

/* The prediction is the cost of nodes plus half the price of each missed byte: zero if the cache holds all that a step
   uses. */
Test(cache_miss_cost, a_prediction_is_nodes_and_the_cost_of_cache_misses)
{
    static const char *const policies[] = { "none", "full", "uniform:2", "block:2", "ops:linear" };
    struct fixture b = fixture_open(3, 1);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        const rw_prediction p = predict(&b, policies[i]);
        const uint64_t all = p.largest_live + CHAIN_BYTES; /* the input */
        const uint64_t near[] = { 0, CHAIN_BYTES, all / 2, all - CHAIN_BYTES / 2, all, all + 1, UINT64_MAX };
        enum { N = sizeof near / sizeof *near };
        double far[N];
        *rw_costs_place(b.ctx) = calloc(1, sizeof *rw_costs_of(b.ctx)); /* nominal costs */
        for (size_t k = 0; k < N; k++) {
            rw_costs_of(b.ctx)->memory = (struct rw_memory_cost){ near[k], 2000000000 }; /* 1 ms per MiB, each way */
            far[k] = predict(&b, policies[i]).ms - p.ms;
            rw_costs_of(b.ctx)->memory.picoseconds = 1000000000;
            cr_expect_float_eq(predict(&b, policies[i]).ms - p.ms, far[k] / 2, 1e-9 * (p.ms + far[k]));
            cr_expect(far[k] >= (near[k] < all ? 0.9 : 0) * (double)(near[k] < all ? all - near[k] : 0) / (double)MIB,
                      "%s, %llu near: %g", policies[i], (unsigned long long)near[k], far[k]);
            if (k) cr_expect(far[k] <= far[k - 1] + 1e-9, "%s: %g behind %g", policies[i], far[k], far[k - 1]);
        }
        cr_expect(far[4] == 0 && far[5] == 0 && far[6] == 0, "%s: %g %g %g", policies[i], far[4], far[5], far[6]);
        if (i == 0) cr_expect_float_eq(far[0], (double)used_by_chain() / (double)MIB, 1e-3, "%g", far[0]);
        free(rw_costs_of(b.ctx));
        *rw_costs_place(b.ctx) = NULL;
    }
    fixture_close(&b);
}

/* Parameters that are read and gradients that are written use the caches, too; values that no op reads do not. */
Test(cache_miss_cost, caches_hold_memory_outside_the_arena)
{
    enum { N = 1 << 18 };
    struct fixture b = fixture_open(3, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N));
    rw_tensor *const table = rw_buffer(b.ctx, "table", RW_F32, RW_SHAPE(N));
    rw_tensor *const unread = rw_buffer(b.ctx, "unread", RW_F32, RW_SHAPE(N));
    const uint64_t beside = 3 * N * sizeof(float); /* for w also its gradient */
    *rw_costs_place(b.ctx) = calloc(1, sizeof *rw_costs_of(b.ctx));
    double ms[4];
    uint64_t live = 0;
    for (int i = 0; i < 4; i++) {
        rw_tensor *const y = rw_tanh(b.t, rw_mul(b.t, rw_mul(b.t, w, table), rw_exp(b.t, rw_mul(b.t, w, table))));
        rw_prediction p;
        rw_exp(b.t, unread); /* whose result is not read */
        rw_costs_of(b.ctx)->memory.picoseconds = i ? 1000000000 : 0;
        rw_costs_of(b.ctx)->memory.near_bytes = live + (i == 2 ? beside - MIB : i == 3 ? beside - 1 : beside);
        cr_assert_eq(rw_tape_plan(b.t, rw_sum(b.t, y, RW_ALL_AXES, false), "none", &p), RW_OK);
        cr_assert_gt(p.largest_live, 2 * MIB);
        live = p.largest_live;
        ms[i] = p.ms;
        rw_tape_reset(b.t);
    }
    cr_expect_float_eq(ms[1], ms[0], 1e-9, "all of it: %g %g", ms[1], ms[0]);
    cr_expect_gt(ms[2], ms[0] + 0.4, "a MiB less: %g %g", ms[2], ms[0]);
    cr_expect(ms[3] > ms[0] && ms[3] < ms[2], "a byte less: %.17g %.17g", ms[3], ms[0]);
    free(rw_costs_of(b.ctx));
    *rw_costs_place(b.ctx) = NULL;
    fixture_close(&b);
}

/* Only the rows of a table that are read count. */
Test(cache_miss_cost, a_few_rows_of_a_table_are_cache_misses)
{
    enum { ROWS = 1 << 16, WIDTH = 64, TOKENS = 8 };
    static const int32_t token[TOKENS] = { 5, 3 };
    struct fixture b = fixture_open(3, 1);
    rw_tensor *const table = rw_param(b.ctx, "table", RW_F32, RW_SHAPE(ROWS, WIDTH));
    *rw_costs_place(b.ctx) = calloc(1, sizeof *rw_costs_of(b.ctx));
    double ms[2];
    for (int i = 0; i < 2; i++) {
        rw_tensor *const x = rw_embedding(b.t, table, rw_input(b.t, RW_I32, RW_SHAPE(TOKENS), token, sizeof token));
        rw_prediction p;
        rw_costs_of(b.ctx)->memory.picoseconds = i ? 1000000000 : 0; /* one ms per MiB, of which the table has 16 */
        cr_assert_eq(rw_tape_plan(b.t, rw_sum(b.t, rw_tanh(b.t, x), RW_ALL_AXES, false), "none", &p), RW_OK);
        ms[i] = p.ms;
        rw_tape_reset(b.t);
    }
    cr_expect(ms[1] > ms[0] && ms[1] < ms[0] + 16.5 / 2, "its gradient is whole, it is not: %g", ms[1] - ms[0]);
    free(rw_costs_of(b.ctx));
    *rw_costs_place(b.ctx) = NULL;
    fixture_close(&b);
}

static double said; /* traffic returned by the next op's cost function */

static rw_op_cost odd_cost(const rw_op_call *call)
{
    return (rw_op_cost){ .flops = 1, .bytes = said };
}

/* A caller's op may report traffic that is NaN or impossible: it is clamped to at least zero and at most its
   operands. */
Test(cache_miss_cost, of_an_op_whose_traffic_is_odd_is_a_number)
{
    enum { N = 1 << 18 };
    static const double traffic[] = { 0, -1, -1e30, NAN, 1e30, INFINITY };
    static const rw_op_def odd = { .name = "odd", .n_inputs = 1, .n_outputs = 1, .check = row_check, .cost = odd_cost,
                                   .kernel = { [RW_DEVICE_CPU] = row_kernel } };
    struct fixture b = fixture_open(3, 1);
    rw_tensor *const w = rw_buffer(b.ctx, "w", RW_F32, RW_SHAPE(N));
    *rw_costs_place(b.ctx) = calloc(1, sizeof *rw_costs_of(b.ctx));
    double ms[sizeof traffic / sizeof *traffic];
    for (size_t i = 0; i < sizeof traffic / sizeof *traffic; i++) {
        rw_prediction p[2];
        said = traffic[i];
        for (int priced = 0; priced < 2; priced++) {
            rw_costs_of(b.ctx)->memory.picoseconds = priced ? 1000000000 : 0; /* half a ms per MiB: all are misses */
            rw_tensor *const x = rw_require_grad(b.t, rw_apply(b.t, &odd, (rw_tensor *[]){ w }, 1, NULL, 0, NULL));
            cr_assert_eq(rw_tape_plan(b.t, rw_sum(b.t, x, RW_ALL_AXES, false), "none", &p[priced]), RW_OK, "%s",
                         rw_error_message(b.ctx));
            rw_tape_reset(b.t);
        }
        ms[i] = p[1].ms - p[0].ms;
    }
    for (size_t i = 1; i < 4; i++) cr_expect_float_eq(ms[i], ms[0], 1e-9, "%g: %g", traffic[i], ms[i]);
    free(rw_costs_of(b.ctx));
    *rw_costs_place(b.ctx) = NULL;
    fixture_close(&b);
}

/* A value that is copied back is a cache miss, however large the caches are. */
Test(cache_miss_cost, offloaded_values_return_as_cache_misses)
{
    struct fixture b = fixture_open(3, 1);
    cr_assert_eq(rw_context_set_offload(b.ctx, NULL), RW_OK);
    const rw_prediction moved = predict(&b, "offload:r");
    cr_assert(moved.at_peak.host > 0 && moved.at_peak.host % CHAIN_BYTES == 0, "%zu", moved.at_peak.host);
    *rw_costs_place(b.ctx) = calloc(1, sizeof *rw_costs_of(b.ctx));
    const double near = predict(&b, "offload:r").ms;
    rw_costs_of(b.ctx)->memory = (struct rw_memory_cost){ UINT64_MAX, 1000000000 }; /* 1 ms per MiB, both ways */
    const double far = predict(&b, "offload:r").ms - near, want = (double)moved.at_peak.host / (double)MIB / 2;
    cr_expect_float_eq(far, want, 0.02 * want, "%g ms for %g", far, want); /* copies wait for the slower computation */
    free(rw_costs_of(b.ctx));
    *rw_costs_place(b.ctx) = NULL;
    fixture_close(&b);
}

/* If values may be offloaded, the bound is the sum of the nodes of `none` only: an offloading plan may have fewer
   misses. */
Test(cache_miss_cost, is_in_no_bound_where_values_may_move)
{
    struct fixture b = fixture_open(3, 1);
    const rw_offload fast = { .out_bytes_per_s = 1e15, .in_bytes_per_s = 1e15 };
    cr_assert_eq(rw_context_set_offload(b.ctx, &fast), RW_OK);
    const rw_prediction none = predict(&b, "none");
    *rw_costs_place(b.ctx) = calloc(1, sizeof *rw_costs_of(b.ctx));
    rw_costs_of(b.ctx)->memory = (struct rw_memory_cost){ 1 * MIB, 40000000 };
    const rw_prediction moves = predict(&b, "budget:40%+offload");
    cr_assert_gt(moves.at_peak.host, 0);
    cr_expect_float_eq(moves.bound_ms, none.ms, 1e-9 * none.ms, "%g %g", moves.bound_ms, none.ms);
    cr_expect(moves.bound_ms <= moves.ms && moves.gap >= 0);
    free(rw_costs_of(b.ctx));
    *rw_costs_place(b.ctx) = NULL;
    fixture_close(&b);
}
