/*
 * Costs: measured in ordinary steps, unchanged after saving and loading, and part of every plan's key.
 */
#include "io/cost_fixture.h"

#include "autodiff/costs.h"
#include "base/alloc.h"
#include "plan/cache.h"
#include "record/tape.h"

#include <math.h>
#include <sys/syscall.h>
#include <time.h>

TestSuite(costs, .init = open_files, .fini = close_files);

Test(costs, measured_times_are_predicted_also_from_a_file)
{
    struct fixture b = measured();
    const double none = predicted_ms(&b, "none", 24), full = predicted_ms(&b, "full", 24);
    cr_expect_gt(full, none);
    double sum = 0;
    for (size_t i = 0; i < rw_costs_of(b.ctx)->n; i++) sum += (double)rw_costs_of(b.ctx)->entry[i].picoseconds * 1e-9;
    cr_expect_geq(none, sum, "each signature runs once at least");
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    const uint64_t hash = rw_costs_of(b.ctx)->hash;
    rw_costs_clear(b.ctx);
    cr_expect_eq(rw_costs_count(b.ctx), 0);
    const double nominal = predicted_ms(&b, "none", 24);
    cr_expect_neq(nominal, none);
    cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_costs_of(b.ctx)->hash, hash);
    cr_expect_eq(predicted_ms(&b, "none", 24), none);
    cr_expect_eq(predicted_ms(&b, "full", 24), full);
    size_t n, m;
    cr_assert_eq(rw_costs_save(b.ctx, other), RW_OK);
    char *const first = text_of(path, &n), *const again = text_of(other, &m);
    cr_expect(n == m && !memcmp(first, again, n), "the same file");
    free(first);
    free(again);
    fixture_close(&b);
}

/* Cache misses have a cost, also after loading a file; if the cache holds all that a step uses, it is zero. */
Test(costs, cache_misses_are_charged_to_the_step)
{
    struct fixture b = measured();
    rw_prediction p;
    rw_tensor *const loss = net_loss(&net, b.t, 24, 0);
    cr_assert_eq(rw_tape_plan(b.t, loss, "none", &p), RW_OK);
    rw_tape_reset(b.t);
    const uint64_t beside = p.at_peak.parameters + p.at_peak.gradients + p.at_peak.inputs;
    const struct rw_memory_cost price = { p.largest_live / 2, 1000000000000, 7000000 }; /* 1 s per MiB */
    rw_costs_of(b.ctx)->memory = price;
    cr_assert(rw_costs_seal(rw_costs_of(b.ctx)));
    const double ms = predicted_ms(&b, "none", 24);
    cr_expect_gt(ms, p.ms + 1e3 * (double)p.largest_live / 2 / (1 << 20));
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    rw_costs_clear(b.ctx);
    cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_costs_of(b.ctx)->memory.near_bytes, price.near_bytes);
    cr_expect_eq(rw_costs_of(b.ctx)->memory.picoseconds, price.picoseconds);
    cr_expect_eq(rw_costs_of(b.ctx)->memory.shared_picoseconds, price.shared_picoseconds);
    cr_expect_eq(predicted_ms(&b, "none", 24), ms);
    rw_costs_of(b.ctx)->memory.near_bytes = beside + p.largest_live;
    rw_costs_of(b.ctx)->memory.shared_picoseconds = 0;
    cr_expect_eq(predicted_ms(&b, "none", 24), p.ms);
    fixture_close(&b);
}

/* ---- equal nodes whose time is spent at one point of a step ---- */

/* A clock advanced only by these nodes: on a busy machine a node that sleeps takes longer. */
static long long clock_us;
static bool is_moved;

int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    if (!is_moved) return (int)syscall(SYS_clock_gettime, clock, t);
    *t = (struct timespec){ .tv_sec = clock_us / 1000000, .tv_nsec = clock_us % 1000000 * 1000 };
    return 0;
}

static int naps;

static rw_status nap_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

/* Every third. */
static rw_status nap(const rw_kernel *k)
{
    clock_us += naps++ % 3 == 2 ? 30000 : 1000;
    memcpy(k->out[0].data, k->in[0].data, sizeof(float) * (size_t)k->out[0].layout->numel);
    return RW_OK;
}

static const rw_op_def nap_op = { .name = "nap", .n_inputs = 1, .n_outputs = 1, .check = nap_check,
                                  .kernel = { [RW_DEVICE_CPU] = nap } };

/* A step takes the sum of their times: the median does not reflect it. */
Test(costs, of_equal_nodes_is_what_they_take_on_the_average)
{
    if (test_device() != RW_DEVICE_CPU) return;
    struct fixture b = fixture_open(1, 1);
    is_moved = true;
    cr_assert_eq(rw_profile_begin(b.ctx), RW_OK);
    for (int step = 0; step < 5; step++) {
        rw_tensor *x = rw_input(b.t, RW_F32, RW_SHAPE(4), (float[]){ 1, 2, 3, 4 }, 4 * sizeof(float));
        for (int i = 0; i < 3; i++) x = rw_apply(b.t, &nap_op, &x, 1, NULL, 0, NULL);
        cr_assert_eq(rw_eval(b.t, &x, 1), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tape_reset(b.t);
    }
    cr_assert_eq(rw_profile_end(b.ctx), RW_OK);
    cr_assert_eq(naps, 15);
    cr_assert_eq(rw_costs_count(b.ctx), 1);
    const double ms = (double)rw_costs_of(b.ctx)->entry[0].picoseconds * 1e-9;
    cr_expect_float_eq(ms, 32.0 / 3, 1e-3, "%.4f ms", ms);
    fixture_close(&b);
}

/* The cost of memory belongs to the step, and is deducted from nodes that use memory first, but never more than half of
   their time. */
Test(costs, what_a_step_pays_for_memory_is_no_nodes)
{
    if (test_device() != RW_DEVICE_CPU) return;
    struct fixture b = measured();
    is_moved = true;
    rw_costs_of(b.ctx)->memory = (struct rw_memory_cost){ 0, 1000000000000000000 };
    cr_assert_eq(rw_profile_begin(b.ctx), RW_OK);
    rw_tensor *x = rw_input(b.t, RW_F32, RW_SHAPE(4), (float[]){ 1, 2, 3, 4 }, 4 * sizeof(float));
    for (int i = 0; i < 3; i++) x = rw_apply(b.t, &nap_op, &x, 1, NULL, 0, NULL);
    cr_assert_eq(rw_eval(b.t, &x, 1), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_profile_end(b.ctx), RW_OK);
    double ms = 0;
    const struct rw_costs *const costs = rw_costs_of(b.ctx);
    for (size_t i = 0; i < costs->n; i++)
        if (!strcmp(costs->entry[i].op, "nap")) ms = (double)costs->entry[i].picoseconds * 1e-9;
    cr_expect_float_eq(ms, 32.0 / 6, 1e-3, "%.4f ms", ms);
    cr_expect_eq(rw_costs_of(b.ctx)->memory.picoseconds, 1000000000000000000, "it is not measured again");
    fixture_close(&b);
}

static int steps_gone, away_from;

/* With so many nodes of 4, 5, ... elements: each is a signature of its own. */
static void measure_steps(struct fixture *b, const rw_op_def *op, int nodes, int steps)
{
    cr_assert_eq(rw_profile_begin(b->ctx), RW_OK);
    for (steps_gone = 0; steps_gone < steps; steps_gone++) {
        rw_tensor *x[3];
        for (int i = 0; i < nodes; i++) {
            rw_tensor *const in = rw_input(b->t, RW_F32, RW_SHAPE(4 + i), (float[6]){ 0 },
                                           (size_t)(4 + i) * sizeof(float));
            x[i] = rw_apply(b->t, op, &in, 1, NULL, 0, NULL);
        }
        cr_assert_eq(rw_eval(b->t, x, (size_t)nodes), RW_OK, "%s", rw_error_message(b->ctx));
        rw_tape_reset(b->t);
    }
    cr_assert_eq(rw_profile_end(b->ctx), RW_OK);
    cr_assert_eq(rw_costs_count(b->ctx), (size_t)nodes);
}

/* One of three nodes, another one in each step. */
static rw_status interrupted(const rw_kernel *k)
{
    const int node = (int)k->out[0].layout->numel - 4;
    clock_us += (steps_gone % 3 == node ? 20000 : 2000) + (steps_gone >= away_from ? 100000 : 0);
    memset(k->out[0].data, 0, sizeof(float) * (size_t)k->out[0].layout->numel);
    return RW_OK;
}

static const rw_op_def interrupted_op = { .name = "interrupted", .n_inputs = 1, .n_outputs = 1, .check = nap_check,
                                          .kernel = { [RW_DEVICE_CPU] = interrupted } };

/* Each node's usual time is short, but no step's is: costs reproduce those of steps. Steps in which the process was
   suspended do not count, and are not in the middle. */
Test(costs, what_interrupts_now_one_node_and_now_another_counts)
{
    if (test_device() != RW_DEVICE_CPU) return;
    struct fixture b = fixture_open(1, 1);
    away_from = 5;
    is_moved = true;
    measure_steps(&b, &interrupted_op, 3, 9);
    double ms = 0;
    for (size_t i = 0; i < 3; i++) ms += (double)rw_costs_of(b.ctx)->entry[i].picoseconds * 1e-9;
    cr_expect_float_eq(ms, 24, 1e-3, "%.4f ms", ms);
    fixture_close(&b);
}

/* In one of four steps, neither the fastest nor the slowest, a node took forty times as long. */
static rw_status once_interrupted(const rw_kernel *k)
{
    static const int of_step[] = { 60000, 60000, 84000, 88000 };
    const bool is_long = k->out[0].layout->numel == 4;
    clock_us += is_long ? of_step[steps_gone] : steps_gone == 1 ? 20000 : 500;
    memset(k->out[0].data, 0, sizeof(float) * (size_t)k->out[0].layout->numel);
    return RW_OK;
}

static const rw_op_def once_interrupted_op = { .name = "once", .n_inputs = 1, .n_outputs = 1, .check = nap_check,
                                               .kernel = { [RW_DEVICE_CPU] = once_interrupted } };

Test(costs, of_few_steps_one_long_node_is_no_measure)
{
    if (test_device() != RW_DEVICE_CPU) return;
    struct fixture b = fixture_open(1, 1);
    is_moved = true;
    measure_steps(&b, &once_interrupted_op, 2, 4);
    double least = INFINITY;
    for (size_t i = 0; i < 2; i++) least = fmin(least, (double)rw_costs_of(b.ctx)->entry[i].picoseconds * 1e-9);
    cr_expect_lt(least, 4, "%.2f ms", least);
    fixture_close(&b);
}

/* ---- calibration ---- */

/* Layers of float64 and float16 take minutes under sanitizers, and other tests run these kernels there. */
#ifdef __SANITIZE_ADDRESS__
#define IS_SLOW true
#else
#define IS_SLOW false
#endif

static uint64_t picoseconds_of(const rw_context *ctx, uint64_t signature)
{
    for (size_t i = 0; i < rw_costs_of(ctx)->n; i++)
        if (rw_costs_of(ctx)->entry[i].signature == signature) return rw_costs_of(ctx)->entry[i].picoseconds;
    return 0;
}

static bool knows(const rw_context *ctx, const char *op, rw_dtype dtype)
{
    for (size_t i = 0; i < rw_costs_of(ctx)->n_kinds; i++)
        if (!strcmp(rw_costs_of(ctx)->kind[i].op, op) && rw_costs_of(ctx)->kind[i].dtype == dtype) return true;
    return false;
}

/* No op of the caller's is executed, its measurements are unchanged, and environment settings for its steps do not
   apply to these. */
Test(costs, calibration_adds_to_known_costs)
{
    if (test_device() != RW_DEVICE_CPU || IS_SLOW) return;
    setenv("REWIND_VERIFY", "1", 1);
    setenv("REWIND_POLICY", "budget:1B", 1);
    struct fixture b = fixture_open(1, 1);
    unsetenv("REWIND_VERIFY");
    net_init(&net, b.ctx, 3, 32, RW_F32, 1);
    const struct rw_cost_entry known = { .signature = 77, .picoseconds = 5, .op = "mine", .dtype = RW_F32 };
    *rw_costs_place(b.ctx) = rw_calloc(1, sizeof *rw_costs_of(b.ctx));
    cr_assert(!rw_costs_add(rw_costs_of(b.ctx), &known) && rw_costs_seal(rw_costs_of(b.ctx)));
    rw_costs_of(b.ctx)->threads = rw_context_threads(b.ctx);
    const size_t params = b.ctx->n_params;
    rw_memory before, after;
    cr_assert_eq(rw_memory_stats(b.ctx, &before), RW_OK);
    cr_assert_eq(rw_costs_calibrate(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_memory_stats(b.ctx, &after), RW_OK);
    cr_expect_eq(memcmp(&before, &after, sizeof before), 0);
    cr_expect_eq(b.ctx->n_params, params);
    cr_expect_eq(picoseconds_of(b.ctx, 77), 5);
    for (rw_dtype d = 0; d < RW_DTYPE_COUNT; d++) {
        cr_expect_eq(knows(b.ctx, "linear", d), rw_dtype_is_float(d), "%s", rw_dtype_name(d));
        cr_expect_eq(knows(b.ctx, "conv2d_weight", d), d == RW_F32 || d == RW_BF16, "%s", rw_dtype_name(d));
    }
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    const uint64_t hash = rw_costs_of(b.ctx)->hash;
    cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_costs_of(b.ctx)->hash, hash);
    fixture_close(&b);
}

Test(costs, costs_stay_unchanged_if_calibration_has_no_memory)
{
    if (test_device() != RW_DEVICE_CPU) return;
    struct fixture b = measured();
    const uint64_t hash = rw_costs_of(b.ctx)->hash;
    for (uint64_t n = 1; n < (IS_SLOW ? 40 : 400); n = 2 * n + 1) {
        rw_alloc_fail_from(n);
        const rw_status status = rw_costs_calibrate(b.ctx);
        rw_alloc_fail_at(0);
        cr_assert_eq(status, RW_ERR_MEMORY, "allocation %llu: %s", (unsigned long long)n, rw_error_message(b.ctx));
        cr_expect(strstr(rw_error_message(b.ctx), "rw_costs_calibrate"), "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_costs_of(b.ctx)->hash, hash);
        rw_error_clear(b.ctx);
    }
    fixture_close(&b);
}

/* An op that was never measured: estimated by its type's rate for the same bottleneck, or by any type's. */
Test(costs, of_an_op_unknown_are_those_of_its_type)
{
    static const struct rw_cost_entry entries[] = {
        { .signature = 1, .picoseconds = 2000000, .operations = 100000, .op = "a", .dtype = RW_F32 },
        { .signature = 2, .picoseconds = 8000000, .operations = 100000, .op = "b", .dtype = RW_F64 },
        { .signature = 3, .picoseconds = 500000, .bytes = 10000, .op = "c", .dtype = RW_F32 },
    };
    struct rw_costs *const costs = rw_calloc(1, sizeof *costs);
    for (int i = 0; i < 3; i++) cr_assert_eq(rw_costs_add(costs, &entries[i]), RW_OK);
    cr_assert(rw_costs_seal(costs));
    static const rw_op_def op = { .name = "unknown" };
    const rw_op_cost products = { .flops = 1e12 }, bytes = { .bytes = 1e10 };
    const rw_layout number = { .numel = 1 };
    const struct {
        rw_dtype dtype;
        double by_arithmetic, by_memory; /* in seconds; nominal ones are 10 and 1, and a microsecond for the node */
    } cases[] = { { RW_F32, 10, 0.25 }, { RW_F64, 40, 0.25 }, { RW_BF16, 25, 0.25 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const rw_operand_desc out = { .dtype = cases[i].dtype, .layout = &number };
        const rw_op_call call = { .op = &op, .n_outputs = 1, .out = (rw_operand_desc *)(uintptr_t)&out };
        cr_expect_float_eq(rw_costs_seconds(costs, &call, 0, products), cases[i].by_arithmetic, 1e-5);
        cr_expect_float_eq(rw_costs_seconds(costs, &call, 0, bytes), cases[i].by_memory, 1e-5);
    }
    rw_costs_free(costs);
}

/* As many ops as lines, more than any real file: they are sorted, not searched one by one. */
Test(costs, of_many_ops_are_read_at_once)
{
    enum { N = 200000 };
    struct fixture b = measured();
    struct rw_costs *const many = rw_calloc(1, sizeof *many);
    for (uint64_t i = 0; i < N; i++) {
        struct rw_cost_entry e = { .signature = i, .picoseconds = 1 + i % 5, .operations = i, .bytes = 1 };
        snprintf(e.op, sizeof e.op, "op%llu", (unsigned long long)(i * 7919 % N));
        cr_assert_eq(rw_costs_add(many, &e), RW_OK);
    }
    const clock_t begin = clock();
    cr_assert(rw_costs_seal(many));
    cr_expect_lt((double)(clock() - begin) / CLOCKS_PER_SEC, 5, "sorted in a part of a second, searched in minutes");
    cr_expect_eq(many->n_kinds, N);
    rw_costs_free(many);
    fixture_close(&b);
}

/* A length that was never executed: scaled from the measured ones. */
Test(costs, what_was_not_measured_is_scaled_from_what_was)
{
    struct fixture b = measured();
    const double once = predicted_ms(&b, "none", 24), twice = predicted_ms(&b, "none", 60);
    rw_costs_clear(b.ctx);
    const double nominal = predicted_ms(&b, "none", 60);
    cr_expect_gt(twice, once);
    cr_expect_neq(twice, nominal);
    fixture_close(&b);
}

static double seconds_of(struct fixture *b, const struct rw_costs *costs, const rw_tensor *x, double *ret_nominal)
{
    const struct rw_node *const node = &b->t->nodes[x->producer];
    const rw_op_call call = rw_call_of(b->t, node);
    const rw_op_cost cost = rw_call_cost(&call);
    *ret_nominal = rw_nominal_seconds(cost);
    return rw_costs_seconds(costs, &call, node->attrs_size, cost);
}

/* tanh of 1,000 elements took ten times its nominal time: so does one of 5,000, and for lack of better data, exp. */
Test(costs, an_op_that_was_measured_speaks_for_its_kind)
{
    struct fixture b = fixture_open(1, 1);
    struct rw_costs *const costs = rw_calloc(1, sizeof *costs);
    rw_tensor *const small = rw_tanh(b.t, rw_input(b.t, RW_F32, RW_SHAPE(1000), NULL, 0));
    rw_tensor *const large = rw_tanh(b.t, rw_input(b.t, RW_F32, RW_SHAPE(5000), NULL, 0));
    rw_tensor *const other = rw_exp(b.t, rw_input(b.t, RW_F32, RW_SHAPE(5000), NULL, 0));
    const struct rw_node *const node = &b.t->nodes[small->producer];
    const rw_op_call call = rw_call_of(b.t, node);
    const rw_op_cost cost = rw_call_cost(&call);
    struct rw_cost_entry e = { .signature = rw_call_signature(&call, node->attrs_size), .op = "tanh", .dtype = RW_F32,
                               .picoseconds = rw_cost_number(1e13 * rw_nominal_seconds(cost)),
                               .operations = rw_cost_number(cost.flops), .bytes = rw_cost_number(cost.bytes) };
    cr_assert_eq(rw_costs_add(costs, &e), RW_OK);
    cr_assert(rw_costs_seal(costs));
    double nominal;
    cr_expect_eq(seconds_of(&b, costs, small, &nominal), (double)e.picoseconds * 1e-12);
    cr_expect_float_eq(seconds_of(&b, costs, large, &nominal) / nominal, 10, 1e-3);
    cr_expect_float_eq(seconds_of(&b, costs, other, &nominal) / nominal, 10, 1e-3);
    cr_expect_eq(seconds_of(&b, NULL, large, &nominal), nominal);
    cr_assert_eq(rw_costs_add(costs, &e), RW_OK);
    cr_expect_not(rw_costs_seal(costs), "a signature that is there twice");
    rw_costs_free(costs);
    fixture_close(&b);
}

static struct rw_cost_entry entry_of(const char *op, uint64_t signature, double flops, double bytes, double times)
{
    struct rw_cost_entry e = { .signature = signature, .dtype = RW_F32, .operations = rw_cost_number(flops),
                               .bytes = rw_cost_number(bytes) };
    snprintf(e.op, sizeof e.op, "%s", op);
    e.picoseconds = rw_cost_number(1e12 * times * rw_nominal_seconds((rw_op_cost){ .flops = flops, .bytes = bytes }));
    return e;
}

/* A product at ten times the nominal rate, a copy at half of it: an exp, which is memory-bound, is estimated like the
   copy. */
Test(costs, an_op_that_never_ran_is_like_those_bound_by_the_same)
{
    struct fixture b = fixture_open(1, 1);
    struct rw_costs *const costs = rw_calloc(1, sizeof *costs);
    rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(500, 500), NULL, 0);
    rw_tensor *const exp = rw_exp(b.t, in), *const product = rw_matmul(b.t, in, in);
    const struct rw_cost_entry matmul = entry_of("a product", 1, 1e12, 1e8, 0.1);
    const struct rw_cost_entry copy = entry_of("a copy", 2, 0, 1e9, 2);
    double nominal;
    cr_assert_eq(rw_costs_add(costs, &matmul), RW_OK);
    cr_assert(rw_costs_seal(costs));
    cr_expect_float_eq(seconds_of(&b, costs, exp, &nominal) / nominal, 0.1, 1e-6, "for want of better");
    struct rw_costs *const both = rw_calloc(1, sizeof *both);
    cr_assert_eq(rw_costs_add(both, &matmul), RW_OK);
    cr_assert_eq(rw_costs_add(both, &copy), RW_OK);
    cr_assert(rw_costs_seal(both));
    cr_expect_float_eq(seconds_of(&b, both, exp, &nominal) / nominal, 2, 1e-6);
    cr_expect_float_eq(seconds_of(&b, both, product, &nominal) / nominal, 0.1, 1e-6);
    rw_costs_free(costs);
    rw_costs_free(both);
    fixture_close(&b);
}

static double times_nominal(struct fixture *b, const struct rw_costs *costs, const rw_tensor *x)
{
    double nominal;
    const double seconds = seconds_of(b, costs, x, &nominal);
    return seconds / nominal;
}

/*
 * The recompute node of a linear layer with gelu is gelu alone, which was never executed: its gradient was, and
 * predicts it better than copies do. A name with the same prefix only is not related, and one in another type does not
 * count.
 */
Test(costs, an_op_that_never_ran_is_like_its_family)
{
    struct fixture b = fixture_open(1, 1);
    struct rw_costs *const costs = rw_calloc(1, sizeof *costs);
    rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(500, 500), NULL, 0);
    rw_tensor *const half = rw_input(b.t, RW_BF16, RW_SHAPE(500, 500), NULL, 0);
    const struct rw_cost_entry entry[] = { entry_of("a copy", 1, 0, 1e9, 2), entry_of("add", 2, 0, 1e9, 7),
                                           entry_of("gelu_tanh_backward", 3, 0, 1e9, 5),
                                           entry_of("logarithm", 4, 0, 1e9, 9) };
    double all = 0;
    for (int i = 0; i < 4; i++) {
        all += (double)entry[i].picoseconds / 4;
        cr_assert_eq(rw_costs_add(costs, &entry[i]), RW_OK);
    }
    all *= 1e-12 / rw_nominal_seconds((rw_op_cost){ .flops = 0, .bytes = 1e9 });
    cr_assert(rw_costs_seal(costs));
    cr_expect_float_eq(times_nominal(&b, costs, rw_gelu_tanh(b.t, in)), 5, 1e-6);
    cr_expect_float_eq(times_nominal(&b, costs, rw_add_scalar(b.t, in, 1)), 7, 1e-6);
    cr_expect_float_eq(times_nominal(&b, costs, rw_log(b.t, in)), all, 1e-6, "a logarithm is no relative of log");
    cr_expect_float_eq(times_nominal(&b, costs, rw_gelu_tanh(b.t, half)), all, 1e-6, "not of this type");
    rw_costs_free(costs);
    fixture_close(&b);
}

Test(costs, are_in_the_key_of_every_plan)
{
    struct fixture b = measured();
    steps(&b, 2, 24);
    const uint64_t before = rw_plan_cache_of(b.ctx)->misses;
    steps(&b, 2, 24);
    cr_expect_eq(rw_plan_cache_of(b.ctx)->misses, before);
    rw_costs_clear(b.ctx);
    steps(&b, 1, 24);
    const uint64_t nominal = rw_plan_cache_of(b.ctx)->misses;
    cr_assert_eq(rw_profile_begin(b.ctx), RW_OK);
    steps(&b, 3, 24);
    cr_assert_eq(rw_profile_end(b.ctx), RW_OK);
    cr_expect_eq(rw_plan_cache_of(b.ctx)->misses, nominal, "measuring itself plans nothing");
    steps(&b, 1, 24);
    cr_expect_eq(rw_plan_cache_of(b.ctx)->misses, nominal + 1, "other costs, another plan");
    fixture_close(&b);
}

/* Line n of the file is replaced; the status and the line that the message names. */

Test(costs, gradients_are_the_same_bytes)
{
    struct fixture b = measured();
    unsigned char *got[2];
    size_t bytes;
    for (int i = 0; i < 2; i++) {
        rw_generator_set(b.ctx, (rw_generator_state){ 3, 0 });
        rw_zero_grad(b.ctx);
        cr_assert_eq(rw_backward(b.t, net_loss(&net, b.t, 24, 0)), RW_OK);
        got[i] = all_gradients(b.ctx, &bytes);
        rw_tape_reset(b.t);
        rw_costs_clear(b.ctx);
    }
    cr_expect_eq(first_difference(got[0], got[1], bytes), -1);
    free(got[0]);
    free(got[1]);
    fixture_close(&b);
}
