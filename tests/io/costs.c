/*
 * Costs: measured in steps that run anyhow, the same after a file, in every plan's key; and files that are cut off,
 * changed or from elsewhere are refused with their line, with nothing changed.
 */
#include "support/support.h"

#include "autodiff/costs.h"
#include "base/alloc.h"
#include "plan/cache.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char dir[32], path[64], other[64];

static void open_files(void)
{
    strcpy(dir, "/tmp/rewind-costs-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/costs", dir);
    snprintf(other, sizeof other, "%s/other", dir);
}

static void close_files(void)
{
    remove(path);
    remove(other);
    cr_assert_eq(rmdir(dir), 0, "something was left beside the file");
}

TestSuite(costs, .init = open_files, .fini = close_files);

static struct net net;

static void steps(struct fixture *b, int n, int tokens)
{
    for (int i = 0; i < n; i++) {
        cr_assert_eq(rw_backward(b->t, net_loss(&net, b->t, tokens, i)), RW_OK, "%s", rw_error_message(b->ctx));
        rw_tape_reset(b->t);
        rw_zero_grad(b->ctx);
    }
}

static double predicted_ms(struct fixture *b, const char *policy, int tokens)
{
    rw_prediction p;
    cr_assert_eq(rw_tape_plan(b->t, net_loss(&net, b->t, tokens, 0), policy, &p), RW_OK, "%s",
                 rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    return p.ms;
}

static struct fixture measured(void)
{
    struct fixture b = fixture_open(1, 1);
    net_init(&net, b.ctx, 3, 32, RW_F32, 1);
    cr_assert_eq(rw_costs_begin(b.ctx), RW_OK);
    steps(&b, 5, 24);
    cr_assert_eq(rw_costs_end(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_gt(rw_costs_count(b.ctx), 10);
    return b;
}

static char *text_of(const char *name, size_t *ret_bytes)
{
    FILE *const f = fopen(name, "rb");
    cr_assert_not_null(f);
    char *const text = malloc(1 << 20);
    *ret_bytes = fread(text, 1, (1 << 20) - 1, f);
    text[*ret_bytes] = '\0';
    fclose(f);
    return text;
}

static void write_file(const char *name, const char *text, size_t bytes)
{
    FILE *const f = fopen(name, "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(text, 1, bytes, f), bytes);
    fclose(f);
}

Test(costs, what_is_measured_is_what_is_predicted_also_behind_a_file)
{
    struct fixture b = measured();
    const double none = predicted_ms(&b, "none", 24), full = predicted_ms(&b, "full", 24);
    cr_expect_gt(full, none);
    double sum = 0;
    for (size_t i = 0; i < b.ctx->costs->n; i++) sum += (double)b.ctx->costs->entry[i].picoseconds * 1e-9;
    cr_expect_geq(none, sum, "each signature runs once at least");
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    const uint64_t hash = b.ctx->costs->hash;
    rw_costs_clear(b.ctx);
    cr_expect_eq(rw_costs_count(b.ctx), 0);
    const double nominal = predicted_ms(&b, "none", 24);
    cr_expect_neq(nominal, none);
    cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(b.ctx->costs->hash, hash);
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

/* What of a step's peak is not near has a price, also behind a file; what is near has none. Parameters, their gradients
   and inputs are near first. */
Test(costs, memory_beyond_the_caches_is_paid_by_the_step)
{
    struct fixture b = measured();
    rw_prediction p;
    rw_tensor *const loss = net_loss(&net, b.t, 24, 0);
    cr_assert_eq(rw_tape_plan(b.t, loss, "none", &p), RW_OK);
    rw_tape_reset(b.t);
    const uint64_t beside = p.at_peak.parameters + p.at_peak.gradients + p.at_peak.inputs;
    const struct rw_memory_cost price = { beside + p.largest_live / 2, 1000000000000 }; /* a second for each MiB */
    b.ctx->costs->memory = price;
    cr_assert(rw_costs_seal(b.ctx->costs));
    cr_expect_float_eq(predicted_ms(&b, "none", 24), p.ms + 1e3 * (double)p.largest_live / 2 / (1 << 20), 1e-6 * p.ms);
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    rw_costs_clear(b.ctx);
    cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(b.ctx->costs->memory.near_bytes, price.near_bytes);
    cr_expect_eq(b.ctx->costs->memory.picoseconds, price.picoseconds);
    b.ctx->costs->memory.near_bytes = beside + p.largest_live;
    cr_expect_eq(predicted_ms(&b, "none", 24), p.ms);
    fixture_close(&b);
}

/* ---- equal nodes that take their time at one place of a step ---- */

static int naps;

static rw_status nap_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

/* Every third. */
static rw_status nap(const rw_kernel *k)
{
    usleep(naps++ % 3 == 2 ? 30000 : 1000);
    memcpy(k->out[0].data, k->in[0].data, sizeof(float) * (size_t)k->out[0].layout->numel);
    return RW_OK;
}

static const rw_op_def nap_op = { .name = "nap", .n_inputs = 1, .n_outputs = 1, .check = nap_check,
                                  .kernel = { [RW_DEVICE_CPU] = nap } };

/* What a step takes is their sum: the middle one says nothing of it. */
Test(costs, of_equal_nodes_is_what_they_take_on_the_average)
{
    if (test_device() != RW_DEVICE_CPU) return;
    struct fixture b = fixture_open(1, 1);
    cr_assert_eq(rw_costs_begin(b.ctx), RW_OK);
    for (int step = 0; step < 5; step++) {
        rw_tensor *x = rw_input(b.t, RW_F32, RW_SHAPE(4), (float[]){ 1, 2, 3, 4 });
        for (int i = 0; i < 3; i++) x = rw_apply(b.t, &nap_op, &x, 1, NULL, 0, NULL);
        cr_assert_eq(rw_eval(b.t, &x, 1), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tape_reset(b.t);
    }
    cr_assert_eq(rw_costs_end(b.ctx), RW_OK);
    cr_assert_eq(naps, 15);
    cr_assert_eq(rw_costs_count(b.ctx), 1);
    const double ms = (double)b.ctx->costs->entry[0].picoseconds * 1e-9;
    cr_expect(ms > 32.0 / 3 && ms < 28, "%.2f ms", ms);
    fixture_close(&b);
}

/* What memory costs is the step's, and taken off where memory is first used, but never more than half. */
Test(costs, what_a_step_pays_for_memory_is_no_nodes)
{
    if (test_device() != RW_DEVICE_CPU) return;
    struct fixture b = measured();
    b.ctx->costs->memory = (struct rw_memory_cost){ 0, 1000000000000000000 };
    cr_assert_eq(rw_costs_begin(b.ctx), RW_OK);
    rw_tensor *x = rw_input(b.t, RW_F32, RW_SHAPE(4), (float[]){ 1, 2, 3, 4 });
    for (int i = 0; i < 3; i++) x = rw_apply(b.t, &nap_op, &x, 1, NULL, 0, NULL);
    cr_assert_eq(rw_eval(b.t, &x, 1), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_costs_end(b.ctx), RW_OK);
    double ms = 0;
    for (size_t i = 0; i < b.ctx->costs->n; i++)
        if (!strcmp(b.ctx->costs->entry[i].op, "nap")) ms = (double)b.ctx->costs->entry[i].picoseconds * 1e-9;
    cr_expect(ms > 32.0 / 6 && ms < 32.0 / 3, "%.2f ms", ms);
    cr_expect_eq(b.ctx->costs->memory.picoseconds, 1000000000000000000, "it is not asked for again");
    fixture_close(&b);
}

static int steps_gone, away_from;

/* Of three nodes another one in each step. */
static rw_status interrupted(const rw_kernel *k)
{
    const int node = (int)k->out[0].layout->numel - 4;
    usleep((steps_gone % 3 == node ? 20000 : 2000) + (steps_gone >= away_from ? 100000 : 0));
    memset(k->out[0].data, 0, sizeof(float) * (size_t)k->out[0].layout->numel);
    return RW_OK;
}

static const rw_op_def interrupted_op = { .name = "interrupted", .n_inputs = 1, .n_outputs = 1, .check = nap_check,
                                          .kernel = { [RW_DEVICE_CPU] = interrupted } };

/* Each node's usual time is a short one, and no step is: costs are those of steps. Some in which the machine was away
   are none, and not in the middle. */
Test(costs, what_interrupts_now_one_node_and_now_another_counts)
{
    if (test_device() != RW_DEVICE_CPU) return;
    struct fixture b = fixture_open(1, 1);
    cr_assert_eq(rw_costs_begin(b.ctx), RW_OK);
    for (away_from = 5; steps_gone < 9; steps_gone++) {
        rw_tensor *x[3];
        for (int i = 0; i < 3; i++) {
            rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(4 + i), (float[6]){ 0 });
            x[i] = rw_apply(b.t, &interrupted_op, &in, 1, NULL, 0, NULL);
        }
        cr_assert_eq(rw_eval(b.t, x, 3), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tape_reset(b.t);
    }
    cr_assert_eq(rw_costs_end(b.ctx), RW_OK);
    cr_assert_eq(rw_costs_count(b.ctx), 3);
    double ms = 0;
    for (size_t i = 0; i < 3; i++) ms += (double)b.ctx->costs->entry[i].picoseconds * 1e-9;
    cr_expect(ms > 24 && ms < 60, "%.2f ms", ms);
    fixture_close(&b);
}

/* ---- ceilings ---- */

/* Layers of float64 and float16 take minutes under sanitizers, and others run these kernels there. */
#ifdef __SANITIZE_ADDRESS__
#define IS_SLOW true
#else
#define IS_SLOW false
#endif

static uint64_t picoseconds_of(const rw_context *ctx, uint64_t signature)
{
    for (size_t i = 0; i < ctx->costs->n; i++)
        if (ctx->costs->entry[i].signature == signature) return ctx->costs->entry[i].picoseconds;
    return 0;
}

static bool knows(const rw_context *ctx, const char *op, rw_dtype dtype)
{
    for (size_t i = 0; i < ctx->costs->n_kinds; i++)
        if (!strcmp(ctx->costs->kind[i].op, op) && ctx->costs->kind[i].dtype == dtype) return true;
    return false;
}

/* Nothing of the caller's runs, what it measured stays as it is, and what the environment asks of its steps is not
   asked of these. */
Test(costs, ceilings_are_measured_beside_what_is_known)
{
    if (test_device() != RW_DEVICE_CPU || IS_SLOW) return;
    setenv("REWIND_VERIFY", "1", 1);
    setenv("REWIND_POLICY", "budget:1B", 1);
    struct fixture b = fixture_open(1, 1);
    unsetenv("REWIND_VERIFY");
    net_init(&net, b.ctx, 3, 32, RW_F32, 1);
    const struct rw_cost_entry known = { .signature = 77, .picoseconds = 5, .op = "mine", .dtype = RW_F32 };
    b.ctx->costs = rw_calloc(1, sizeof *b.ctx->costs);
    cr_assert(!rw_costs_add(b.ctx->costs, &known) && rw_costs_seal(b.ctx->costs));
    b.ctx->costs->threads = rw_context_threads(b.ctx);
    const size_t params = b.ctx->n_params;
    rw_memory before, after;
    cr_assert_eq(rw_memory_stats(b.ctx, &before), RW_OK);
    cr_assert_eq(rw_costs_ceilings(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_memory_stats(b.ctx, &after), RW_OK);
    cr_expect_eq(memcmp(&before, &after, sizeof before), 0);
    cr_expect_eq(b.ctx->n_params, params);
    cr_expect_eq(picoseconds_of(b.ctx, 77), 5);
    for (rw_dtype d = 0; d < RW_DTYPE_COUNT; d++) {
        cr_expect_eq(knows(b.ctx, "linear", d), rw_dtype_is_float(d), "%s", rw_dtype_name(d));
        cr_expect_eq(knows(b.ctx, "conv2d_weight", d), d == RW_F32 || d == RW_BF16, "%s", rw_dtype_name(d));
    }
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    const uint64_t hash = b.ctx->costs->hash;
    cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(b.ctx->costs->hash, hash);
    fixture_close(&b);
}

Test(costs, of_which_there_is_no_memory_for_ceilings_stay_as_they_were)
{
    if (test_device() != RW_DEVICE_CPU) return;
    struct fixture b = measured();
    const uint64_t hash = b.ctx->costs->hash;
    for (uint64_t n = 1; n < (IS_SLOW ? 40 : 400); n = 2 * n + 1) {
        rw_alloc_fail_from(n);
        const rw_status status = rw_costs_ceilings(b.ctx);
        rw_alloc_fail_at(0);
        cr_assert_eq(status, RW_ERR_MEMORY, "allocation %llu: %s", (unsigned long long)n, rw_error_message(b.ctx));
        cr_expect(strstr(rw_error_message(b.ctx), "rw_costs_ceilings"), "%s", rw_error_message(b.ctx));
        cr_assert_eq(b.ctx->costs->hash, hash);
        rw_error_clear(b.ctx);
    }
    fixture_close(&b);
}

/* An op that was never measured: by its type's rate for what binds it, else by any type's. */
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
        double by_arithmetic, by_memory; /* seconds; nominal ones are 10 and 1, and a microsecond for the node */
    } cases[] = { { RW_F32, 10, 0.25 }, { RW_F64, 40, 0.25 }, { RW_BF16, 25, 0.25 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const rw_desc out = { .dtype = cases[i].dtype, .layout = &number };
        const rw_op_call call = { .op = &op, .n_outputs = 1, .out = (rw_desc *)(uintptr_t)&out };
        cr_expect_float_eq(rw_costs_seconds(costs, &call, 0, products), cases[i].by_arithmetic, 1e-5);
        cr_expect_float_eq(rw_costs_seconds(costs, &call, 0, bytes), cases[i].by_memory, 1e-5);
    }
    rw_costs_free(costs);
}

/* As many ops as lines, as nobody's file has: found by sorting, not by looking through all. */
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

/* A length that was never run: taken from the ops that were. */
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

/* tanh of 1,000 elements took ten times what nominal rates say: so does one of 5,000, and for want of better, exp. */
Test(costs, an_op_that_was_measured_speaks_for_its_kind)
{
    struct fixture b = fixture_open(1, 1);
    struct rw_costs *const costs = rw_calloc(1, sizeof *costs);
    rw_tensor *const small = rw_tanh(b.t, rw_input(b.t, RW_F32, RW_SHAPE(1000), NULL));
    rw_tensor *const large = rw_tanh(b.t, rw_input(b.t, RW_F32, RW_SHAPE(5000), NULL));
    rw_tensor *const other = rw_exp(b.t, rw_input(b.t, RW_F32, RW_SHAPE(5000), NULL));
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
    e.picoseconds = rw_cost_number(1e12 * times * rw_nominal_seconds((rw_op_cost){ flops, bytes }));
    return e;
}

/* A product at ten times the nominal rate, a copy at half of it: an exp, which is bound by memory, is like the copy. */
Test(costs, an_op_that_never_ran_is_like_those_bound_by_the_same)
{
    struct fixture b = fixture_open(1, 1);
    struct rw_costs *const costs = rw_calloc(1, sizeof *costs);
    rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(500, 500), NULL);
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

Test(costs, are_in_the_key_of_every_plan)
{
    struct fixture b = measured();
    steps(&b, 2, 24);
    const uint64_t before = b.ctx->plans->misses;
    steps(&b, 2, 24);
    cr_expect_eq(b.ctx->plans->misses, before);
    rw_costs_clear(b.ctx);
    steps(&b, 1, 24);
    const uint64_t nominal = b.ctx->plans->misses;
    cr_assert_eq(rw_costs_begin(b.ctx), RW_OK);
    steps(&b, 3, 24);
    cr_assert_eq(rw_costs_end(b.ctx), RW_OK);
    cr_expect_eq(b.ctx->plans->misses, nominal, "measuring itself plans nothing");
    steps(&b, 1, 24);
    cr_expect_eq(b.ctx->plans->misses, nominal + 1, "other costs, another plan");
    fixture_close(&b);
}

/* The n-th line of the file is another one; the status and the line that the message names. */
static void expect_refused(struct fixture *b, const char *text, size_t bytes, rw_status want, int line,
                           const char *what)
{
    const struct rw_costs *const before = b->ctx->costs;
    char where[32];
    snprintf(where, sizeof where, ", line %d: ", line);
    write_file(other, text, bytes);
    const rw_status got = rw_costs_load(b->ctx, other);
    cr_expect_eq(got, want, "%s: %s", what, rw_status_name(got));
    cr_expect(strstr(rw_error_message(b->ctx), where), "%s: line %d, not: %s", what, line, rw_error_message(b->ctx));
    cr_expect_eq(b->ctx->costs, before, "%s: the old costs are in force", what);
    rw_error_clear(b->ctx);
}

/* Line number `line` (from 1) replaced. */
static const char *other_line(const char *text, int line, const char *in_place)
{
    static char changed[1 << 16];
    const char *at = text;
    for (int i = 1; i < line; i++) at = strchr(at, '\n') + 1;
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, in_place, strchr(at, '\n'));
    return changed;
}

static void with_line(struct fixture *b, const char *text, int line, const char *in_place, rw_status want)
{
    const char *const changed = other_line(text, line, in_place);
    expect_refused(b, changed, strlen(changed), want, line, in_place);
}

Test(costs, files_from_elsewhere_are_refused_by_line)
{
    struct fixture b = measured();
    size_t bytes;
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    char *const text = text_of(path, &bytes);
    with_line(&b, text, 1, "rewind costs 4", RW_ERR_UNSUPPORTED);
    with_line(&b, text, 1, "rewind costs 10", RW_ERR_UNSUPPORTED);
    with_line(&b, text, 1, "safetensors", RW_ERR_IO);
    with_line(&b, text, 2, "library 0.0.9", RW_ERR_UNSUPPORTED);
    with_line(&b, text, 3, "device tpu", RW_ERR_UNSUPPORTED);
    with_line(&b, text, 4, "machine another", RW_ERR_UNSUPPORTED);
    with_line(&b, text, 5, "threads 77", RW_ERR_UNSUPPORTED);
    static const char *const no_memory[] = { "memory", "memory ", "memory 5", "memory 5 ", "memory 5 x", "memory -1 5",
                                             "memory 5 5 ", "memory 5 5 5", "memory 5.5 5", "nodes 5",
                                             "memory 5 9999999999999999999", "memory 99999999999999999999 5" };
    for (size_t i = 0; i < sizeof no_memory / sizeof *no_memory; i++) with_line(&b, text, 6, no_memory[i], RW_ERR_IO);
    with_line(&b, text, 6, "memory 1000000000000000000 1000000000000000001", RW_ERR_IO);
    const char *const negative = other_line(text, 6, "memory 5 -1");
    write_file(other, negative, strlen(negative));
    cr_assert_eq(rw_costs_load(b.ctx, other), RW_ERR_IO);
    cr_expect(strstr(rw_error_message(b.ctx), "line 6: bytes and picoseconds, up to 10^18 each, are expected, found "
                                              "\"5 -1\""), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    static const char *const no_store[] = {
        "store", "store ", "store nobody", "store none ", "store 5", "store 5 5 5", "store 5 5 5 ", "store 5 5 5 tmp",
        "store 0 5 5 /tmp", "store 5 0 5 /tmp", "store -5 5 5 /tmp", "store 5.5 5 5 /tmp", "store 5  5 5 /tmp",
        "store 5 5 9999999999999999999 /tmp", "nodes 5",
    };
    for (size_t i = 0; i < sizeof no_store / sizeof *no_store; i++) with_line(&b, text, 7, no_store[i], RW_ERR_IO);
    const char *const no_folder = other_line(text, 7, "store 5 5 5 folder");
    write_file(other, no_folder, strlen(no_folder));
    cr_assert_eq(rw_costs_load(b.ctx, other), RW_ERR_IO);
    cr_expect(strstr(rw_error_message(b.ctx), "line 7: column 13: the whole path of a folder expected, found \"folder"),
              "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    with_line(&b, text, 8, "nodes 0", RW_ERR_IO);
    with_line(&b, text, 8, "nodes -1", RW_ERR_IO);
    with_line(&b, text, 8, "nodes 99999999999999999999", RW_ERR_IO);
    static const char *const bad[] = {
        "", "x", "0123456789abcdef", "0123456789abcdef 0 1 1 f32 add", "0123456789abcdef -5 1 1 f32 add",
        "0123456789abcde 5 1 1 f32 add", "0123456789abcdef 5 1 1 f99 add", "0123456789abcdef 5 1 1 f32",
        "0123456789abcdef 5 1 1 f32 ", "0123456789abcdef 5.5 1 1 f32 add", "0123456789abcdef nan 1 1 f32 add",
        "0123456789ABCDEF 5 1 1 f32 add", "0123456789abcdef 99999999999999999999 1 1 f32 add",
        "0123456789abcdef 5 1 1 f32 addddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) with_line(&b, text, 9, bad[i], RW_ERR_IO);
    with_line(&b, text, 10, "0000000000000000 5 1 1 f32 add", RW_ERR_IO);
    const int last = 9 + (int)rw_costs_count(b.ctx);
    with_line(&b, text, last, "end 0123456789abcdef", RW_ERR_IO);
    with_line(&b, text, last, "end", RW_ERR_IO);
    char more[1 << 16];
    snprintf(more, sizeof more, "%smore", text);
    expect_refused(&b, more, strlen(more), RW_ERR_IO, last + 1, "more behind the end");
    free(text);
    fixture_close(&b);
}

/* They were written before costs knew of memory. */
Test(costs, files_of_version_1_are_read)
{
    struct fixture b = measured();
    char old[1 << 16], end[64];
    size_t bytes;
    b.ctx->costs->memory = (struct rw_memory_cost){ 1 << 10, 1000000000 };
    const double priced = predicted_ms(&b, "none", 24);
    b.ctx->costs->memory = (struct rw_memory_cost){ 0 };
    const double none = predicted_ms(&b, "none", 24);
    cr_expect_lt(none, priced);
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    char *const text = text_of(path, &bytes);
    const char *const memory = strstr(text, "memory "), *const nodes = strstr(text, "nodes "),
                      *const last = strstr(text, "\nend ");
    snprintf(end, sizeof end, "\nend %016llx\n", (unsigned long long)rw_costs_entries_hash(b.ctx->costs));
    snprintf(old, sizeof old, "rewind costs 1\n%.*s%.*s%s", (int)(memory - text) - 15, text + 15, (int)(last - nodes),
             nodes, end);
    write_file(other, old, strlen(old));
    rw_costs_clear(b.ctx);
    cr_assert_eq(rw_costs_load(b.ctx, other), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(b.ctx->costs->memory.picoseconds, 0);
    cr_expect_eq(predicted_ms(&b, "none", 24), none);
    free(text);
    fixture_close(&b);
}

/* They were written before costs knew of a folder. */
Test(costs, files_of_version_2_are_read)
{
    struct fixture b = measured();
    char old[1 << 16];
    size_t bytes;
    b.ctx->costs->memory = (struct rw_memory_cost){ 1 << 10, 1000000000 };
    cr_assert(rw_costs_seal(b.ctx->costs));
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    char *const text = text_of(path, &bytes);
    const char *const store = strstr(text, "store none\n");
    cr_assert_not_null(store);
    snprintf(old, sizeof old, "rewind costs 2\n%.*s%s", (int)(store - text) - 15, text + 15, strchr(store, '\n') + 1);
    write_file(other, old, strlen(old));
    rw_costs_clear(b.ctx);
    cr_assert_eq(rw_costs_load(b.ctx, other), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(b.ctx->costs->memory.picoseconds, 1000000000);
    cr_expect_null(b.ctx->costs->folder);
    free(text);
    fixture_close(&b);
}

/* A file of version 1 knows no line "memory", one of version 2 cannot do without, and knows no line "store". */
Test(costs, a_version_has_the_lines_that_it_has)
{
    struct fixture b = measured();
    size_t bytes;
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    char *const text = text_of(path, &bytes), *const memory = strstr(text, "memory ");
    const char *const first = other_line(text, 1, "rewind costs 1");
    expect_refused(&b, first, strlen(first), RW_ERR_IO, 6, "a line that version 1 does not have");
    const char *const second = other_line(text, 1, "rewind costs 2");
    expect_refused(&b, second, strlen(second), RW_ERR_IO, 7, "a line that version 2 does not have");
    memmove(memory, strchr(memory, '\n') + 1, strlen(strchr(memory, '\n') + 1) + 1);
    expect_refused(&b, text, strlen(text), RW_ERR_IO, 6, "a line that version 2 must have");
    free(text);
    fixture_close(&b);
}

/* The largest numbers that a file may have: read as they are, and plans are made with them. */
Test(costs, memory_may_cost_the_most_that_a_file_can_say)
{
    static const uint64_t most = 1000000000000000000u;
    struct fixture b = measured();
    double ms[2];
    for (int i = 0; i < 2; i++) {
        rw_prediction p;
        b.ctx->costs->memory = (struct rw_memory_cost){ i ? most : 0, most };
        cr_assert(rw_costs_seal(b.ctx->costs));
        cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
        rw_costs_clear(b.ctx);
        cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert(b.ctx->costs->memory.near_bytes == (i ? most : 0) && b.ctx->costs->memory.picoseconds == most);
        ms[i] = predicted_ms(&b, "none", 24);
        cr_assert_eq(rw_tape_plan(b.t, net_loss(&net, b.t, 24, 0), "budget:70%", &p), RW_OK, "%s",
                     rw_error_message(b.ctx));
        cr_expect(p.ms > 0 && p.ms < 1e300 && p.bound_ms <= p.ms * (1 + 1e-9) && p.gap >= -1e-9, "%g ms, bound %g, %g",
                  p.ms, p.bound_ms, p.gap);
        rw_tape_reset(b.t);
    }
    cr_expect_gt(ms[0], ms[1] + 1e7, "%g and %g ms", ms[0], ms[1]); /* the price alone is ten times that */
    fixture_close(&b);
}

/* ---- where values wait ---- */

static void wait_in(struct fixture *b, const char *folder, double out, double in)
{
    const rw_offload o = { .path = folder, .out_bytes_per_s = out, .in_bytes_per_s = in };
    cr_assert_eq(rw_context_set_offload(b->ctx, &o), RW_OK, "%s", rw_error_message(b->ctx));
}

struct moves {
    double ms;
    size_t peak, host;
};

/* Of a plan that moves values; no step runs. */
static struct moves predicted_moves(struct fixture *b)
{
    rw_prediction p;
    cr_assert_eq(rw_tape_plan(b->t, net_loss(&net, b->t, 60, 0), "budget:40%+offload", &p), RW_OK, "%s",
                 rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    return (struct moves){ p.ms, p.peak_bytes, p.at_peak.host };
}

static bool is_same(struct moves a, struct moves b)
{
    return a.ms == b.ms && a.peak == b.peak && a.host == b.host;
}

/* One context measures its disk and writes that down; another one, as in another process, plans the same to the bit and
   measures nothing: rates that no disk has are taken as they are. */
Test(costs, a_file_knows_how_fast_the_folder_is)
{
    struct fixture a = measured();
    const struct net of_a = net;
    for (size_t i = 0; i < a.ctx->costs->n; i++) a.ctx->costs->entry[i].picoseconds *= 10000; /* longer than copies */
    cr_assert(rw_costs_seal(a.ctx->costs));
    wait_in(&a, dir, 0, 0);
    cr_expect_gt(predicted_moves(&a).host, 0);
    cr_assert_gt(a.ctx->store.measured.out, 0);
    const struct rw_store_cost odd[] = { a.ctx->store.measured, { 123456789, 987654321, 77777 } };
    for (int i = 0; i < 2; i++) {
        rw_store_learn(&a.ctx->store, odd[i]);
        const struct moves there = predicted_moves(&a);
        cr_assert_eq(rw_costs_save(a.ctx, path), RW_OK, "%s", rw_error_message(a.ctx));
        for (int before = 0; before < 2; before++) {
            struct fixture b = fixture_open(1, 1);
            net_init(&net, b.ctx, 3, 32, RW_F32, 1);
            if (before) wait_in(&b, dir, 0, 0);
            cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
            if (!before) wait_in(&b, dir, 0, 0);
            cr_expect(is_same(predicted_moves(&b), there), "%d, %d", i, before);
            cr_expect(!memcmp(&b.ctx->store.measured, &odd[i], sizeof odd[i]), "%d, %d: measured again", i, before);
            fixture_close(&b);
            net = of_a;
        }
    }
    fixture_close(&a);
}

/* What is known of one folder says nothing of another, is not lost meanwhile, and gives way to what the caller says. */
Test(costs, what_is_known_of_a_folder_is_of_that_folder)
{
    struct fixture b = measured();
    char there[80], *text;
    size_t bytes;
    snprintf(there, sizeof there, "\nstore 5000000000 4000000000 333 %s\n", dir);
    wait_in(&b, dir, 0, 0);
    rw_store_learn(&b.ctx->store, (struct rw_store_cost){ 5000000000, 4000000000, 333 });
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    text = text_of(path, &bytes);
    cr_assert_not_null(strstr(text, there), "%s", text);
    free(text);
    cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    const uint64_t hash = b.ctx->costs->hash;
    wait_in(&b, "/tmp", 0, 0);
    cr_expect(b.ctx->store.rate.out == 0 && b.ctx->store.rate.in == 0);
    wait_in(&b, dir, 0, 3e9);
    cr_expect(b.ctx->store.rate.out == 5e9 && b.ctx->store.rate.in == 3e9 && b.ctx->store.rate.loss > 0);
    wait_in(&b, dir, 2e9, 3e9);
    cr_expect(b.ctx->store.rate.out == 2e9 && b.ctx->store.rate.in == 3e9 && b.ctx->store.rate.loss == 0);
    wait_in(&b, "/tmp", 0, 0);
    cr_assert_eq(rw_costs_begin(b.ctx), RW_OK);
    steps(&b, 2, 24);
    cr_assert_eq(rw_costs_end(b.ctx), RW_OK);
    cr_assert_eq(rw_costs_save(b.ctx, other), RW_OK);
    text = text_of(other, &bytes);
    cr_expect_not_null(strstr(text, there), "costs that were measured since know it too: %s", text);
    free(text);
    cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK);
    cr_expect_eq(b.ctx->costs->hash, hash);
    b.ctx->costs->store.loss++;
    cr_expect_neq(rw_costs_hash(b.ctx->costs), hash, "another plan, another key");
    fixture_close(&b);
}

/* Cut off anywhere, any byte another one: refused, or the same costs; no crash, nothing changed. */
Test(costs, no_damaged_file_is_taken)
{
    struct fixture b = measured();
    size_t bytes, taken = 0;
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    char *const text = text_of(path, &bytes);
    const uint64_t hash = b.ctx->costs->hash;
    for (size_t cut = 0; cut < bytes; cut += 1 + cut / 100) {
        write_file(other, text, cut);
        cr_expect_eq(rw_costs_load(b.ctx, other), RW_ERR_IO, "cut at %zu", cut);
        rw_error_clear(b.ctx);
    }
    for (size_t i = 0; i < bytes; i += 1 + i / 200)
        for (int bit = 0; bit < 8; bit += 3) {
            text[i] ^= (char)(1 << bit);
            write_file(other, text, bytes);
            taken += rw_costs_load(b.ctx, other) == RW_OK;
            rw_error_clear(b.ctx);
            text[i] ^= (char)(1 << bit);
        }
    cr_expect_eq(taken, 0, "%zu damaged files were taken", taken);
    cr_expect_eq(b.ctx->costs->hash, hash);
    free(text);
    fixture_close(&b);
}

Test(costs, what_is_no_file_and_calls_in_a_wrong_order)
{
    struct fixture b = fixture_open(1, 1);
    cr_expect_eq(rw_costs_load(b.ctx, dir), RW_ERR_IO);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_costs_load(b.ctx, path), RW_ERR_IO, "there is none");
    rw_error_clear(b.ctx);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_expect_eq(rw_costs_load(b.ctx, path), RW_ERR_IO, "a FIFO");
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_costs_save(b.ctx, other), RW_ERR_ARGUMENT, "no costs");
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_costs_end(b.ctx), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_costs_begin(b.ctx), RW_OK);
    cr_expect_eq(rw_costs_begin(b.ctx), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_costs_end(b.ctx), RW_OK, "nothing ran");
    cr_expect_eq(rw_costs_count(b.ctx), 0);
    fixture_close(&b);
}

/* How a step runs does not depend on what was measured of it. */
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
