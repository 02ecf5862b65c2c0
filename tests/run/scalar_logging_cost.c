/*
 * Logging scalars in a training loop: from the second step with the same structure on, no op is executed twice,
 * whatever is read and when; each scalar takes 4 bytes, and the gradients have the same bytes. Executions are counted
 * by an op of the caller's own, one in each layer, and by the trace (tests/run/trace.c).
 */
#include "support/support.h"

#include <rewind/rewind.h>

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(ctx, call) cr_assert_eq((call), RW_OK, "%s: %s", #call, rw_error_message(ctx))

enum { WIDTH = 32, LAYERS = 6, BATCH = 16, MAX = 100, STEPS = 8 };

/* ---- an op that counts ---- */

static int runs[LAYERS + MAX];

static rw_status same_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status count_run(const rw_kernel *k)
{
    const int *const at = k->attrs;
    runs[*at]++;
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->in[0].layout->numel * sizeof(float));
    return RW_OK;
}

HOST_KERNEL_OF(count_run)

static rw_status pass_on(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

static const rw_op_def counted = { .name = "counted", .n_inputs = 1, .n_outputs = 1,
                                   .check = same_check, .grad = pass_on, .kernel = HOST_KERNEL(count_run) };

static rw_tensor *count(rw_tape *t, rw_tensor *x, int at)
{
    rw_tensor *const in[] = { x };
    return rw_apply(t, &counted, in, 1, &at, sizeof at, NULL);
}

/* ---- a step that logs ---- */

enum when { NEVER, BEFORE, BETWEEN, AFTER, UPDATED, WHENS };
static const char *const names[] = { "never", "before backward", "while recording", "after backward",
                                     "after the update" };

struct model {
    struct fixture b;
    rw_tensor *w[LAYERS];
    rw_optimizer *sgd;
};

static struct model open_model(const char *policy)
{
    struct model m = { .b = fixture_open(3, 1) };
    for (int i = 0; i < LAYERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        m.w[i] = rw_param(m.b.ctx, name, RW_F32, RW_SHAPE(WIDTH, WIDTH));
        OK(m.b.ctx, rw_init_normal(m.w[i], 0, 0.2));
    }
    OK(m.b.ctx, ckpt_set_policy(m.b.t, policy));
    OK(m.b.ctx, rw_sgd_create(&m.sgd, m.b.ctx, &(rw_sgd_params){ .lr = 0.01 }));
    return m;
}

static void close_model(struct model *m)
{
    rw_optimizer_destroy(&m->sgd);
    fixture_close(&m->b);
}

struct step {
    rw_tensor *scalar[MAX]; /* the first half are terms of the loss, the others norms that no op reads */
    double value[MAX];
    size_t bytes; /* of the step: its arena and its results */
};

static void read_all(const struct model *m, struct step *s, int from, int to)
{
    for (int i = from; i < to; i++) s->value[i] = rw_item(m->b.t, s->scalar[i]);
    cr_assert_eq(rw_error_status(m->b.ctx), RW_OK, "%s", rw_error_message(m->b.ctx));
}

/* Only terms if they are read after the update: a value that no step has computed cannot be read then. */
static bool is_term(int i, int k, enum when when)
{
    return when == UPDATED || i < (k + 1) / 2;
}

/* One step that reads k scalars at the given time. */
static void run_step(const struct model *m, int k, enum when when, struct step *s)
{
    rw_tape *const t = m->b.t;
    rw_context *const ctx = m->b.ctx;
    rw_tensor *x = rw_input(t, RW_F32, RW_SHAPE(BATCH, WIDTH), NULL, 0), *loss = NULL;
    x = rw_add_scalar(t, x, 0.5);
    int n = 0;
    for (int i = 0; i < LAYERS; i++) {
        ckpt_begin(t, "layer");
        x = count(t, rw_gelu(t, rw_linear(t, x, m->w[i], RW_NONE)), i);
        ckpt_end(t);
        for (const int first = n; n < k * (i + 1) / LAYERS; n++) {
            rw_tensor *const mean = rw_mean(t, x, RW_ALL_AXES, false);
            s->scalar[n] = count(t, rw_scale(t, mean, 1 + n), LAYERS + n);
            if (is_term(n, k, when)) loss = loss ? rw_add(t, loss, s->scalar[n]) : s->scalar[n];
            if (when == BETWEEN && n + 1 == k * (i + 1) / LAYERS) read_all(m, s, first, n + 1);
        }
    }
    x = rw_sub(t, x, rw_input(t, RW_F32, RW_SHAPE(BATCH, WIDTH), NULL, 0)); /* labels come last */
    rw_tensor *const own = rw_mean(t, x, RW_ALL_AXES, false);
    loss = loss ? rw_add(t, loss, own) : own;
    if (when == BEFORE) read_all(m, s, 0, k);
    OK(ctx, rw_backward(t, loss));
    if (when == AFTER) read_all(m, s, 0, k);
    rw_memory memory;
    OK(ctx, rw_memory_stats(ctx, &memory));
    s->bytes = memory.measured_peak + memory.results;
    OK(ctx, rw_optimizer_step(m->sgd));
    if (when == UPDATED) read_all(m, s, 0, k);
    rw_zero_grad(ctx);
    rw_tape_reset(t);
}

/* Results of the last of several steps: how often each layer's op was executed. */
struct outcome {
    int runs[LAYERS + MAX];
    unsigned char *weights;
    size_t n_weights;
    double value[MAX];
    size_t bytes;
};

/* Several steps; returns the execution counts and results of the last. */
static struct outcome train(const char *policy, int k, enum when when, int steps)
{
    struct model m = open_model(policy);
    struct outcome o = { .n_weights = 0 };
    struct step s;
    for (int i = 0; i < steps; i++) {
        memset(runs, 0, sizeof runs);
        run_step(&m, k, when, &s);
        for (int r = 0; i == 1 && r < LAYERS + k; r++) o.runs[r] = runs[r];
        for (int r = 0; i > 1 && r < LAYERS + k; r++)
            cr_expect_eq(o.runs[r], runs[r], "%s, %d %s: op %d ran %d times in step %d and %d in the second", policy,
                         k, names[when], r, runs[r], i, o.runs[r]);
    }
    memcpy(o.value, s.value, sizeof o.value);
    o.bytes = s.bytes;
    o.weights = malloc(LAYERS * WIDTH * WIDTH * sizeof(float));
    for (int i = 0; i < LAYERS; i++)
        OK(m.b.ctx, rw_read(NULL, m.w[i], o.weights + i * WIDTH * WIDTH * sizeof(float),
                            WIDTH * WIDTH * sizeof(float)));
    o.n_weights = LAYERS * WIDTH * WIDTH * sizeof(float);
    close_model(&m);
    return o;
}

/* Compares a training that logs with one that does not. */
static void compare(const char *policy, int k, enum when when)
{
    struct outcome with = train(policy, k, when, STEPS);
    struct outcome without = train(policy, k, NEVER, STEPS);
    /* There buffers take at least 512 bytes, and a share of `none` may be another plan with other replays. */
    const bool is_another_budget = test_device() != RW_DEVICE_CPU && strchr(policy, '%');
    for (int i = 0; i < LAYERS && !is_another_budget; i++)
        cr_expect_eq(with.runs[i], without.runs[i], "%s, %d %s: layer %d ran %d times, %d without logging", policy, k,
                     names[when], i, with.runs[i], without.runs[i]);
    for (int i = 0; i < k; i++)
        cr_expect_eq(with.runs[LAYERS + i], 1, "%s, %d %s: scalar %d ran %d times", policy, k, names[when], i,
                     with.runs[LAYERS + i]);
    if (when != UPDATED) /* there the loss is another one */
        cr_expect(!memcmp(with.weights, without.weights, with.n_weights), "%s, %d %s", policy, k, names[when]);
    const size_t logged = (test_device() == RW_DEVICE_CPU ? 4 : 16) * (size_t)k;
    const size_t most = without.bytes + (logged + 255) / 256 * 256 + (test_device() == RW_DEVICE_CPU ? 256 : 512);
    if (when != UPDATED && !is_another_budget)
        cr_expect_leq(with.bytes, most, "%s, %d %s: %zu bytes, %zu without logging", policy, k, names[when],
                      with.bytes, without.bytes);
    free(with.weights);
    free(without.weights);
}

enum { POLICIES = 7 };
static const char *const policies[POLICIES] = { "none", "full", "budget:75%", "budget:40000B", "total:4MiB",
                                                "uniform:2", "selective:layer" };

static void logged(int k, size_t n_policies)
{
    for (size_t p = 0; p < n_policies; p += (size_t)test_steps(1, 2))
        for (enum when when = BEFORE; when < WHENS; when++) compare(policies[p], k, when);
}

Test(scalar_logging_cost, one_scalar_runs_nothing_twice)
{
    logged(1, POLICIES);
}

Test(scalar_logging_cost, three_scalars_run_nothing_twice)
{
    logged(3, POLICIES);
}

Test(scalar_logging_cost, twelve_scalars_run_nothing_twice)
{
    logged(12, POLICIES);
}

Test(scalar_logging_cost, a_hundred_scalars_run_nothing_twice)
{
    logged(100, 3);
}

/* REWIND_VERIFY=digest digests the same runs. */
Test(scalar_logging_cost, steps_with_digests_run_nothing_twice)
{
    setenv("REWIND_VERIFY", "digest", 1);
    for (enum when when = BEFORE; when < WHENS; when++)
        for (int p = 0; p < 2; p++) compare(policies[p], 3, when);
    unsetenv("REWIND_VERIFY");
}

/* The bytes that a total leaves differ between the reset, where the next step is planned, and the read: the inputs of
   another tape are gone. */
Test(scalar_logging_cost, a_total_beside_an_evaluation_tape)
{
    struct model m = open_model("total:4MiB");
    rw_tape *other;
    struct step s;
    OK(m.b.ctx, rw_tape_create(&other, m.b.ctx));
    for (int step = 0; step < 5; step++) {
        memset(runs, 0, sizeof runs);
        rw_item(other, rw_mean(other, rw_input(other, RW_F32, RW_SHAPE(BATCH, WIDTH), NULL, 0), RW_ALL_AXES, false));
        run_step(&m, 3, BETWEEN, &s);
        rw_tape_reset(other);
        for (int i = 0; step && i < LAYERS + 3; i++) cr_expect_eq(runs[i], 1, "step %d: op %d: %d", step, i, runs[i]);
    }
    rw_tape_destroy(&other);
    close_model(&m);
}

/* Where the step has no run, because a value is held already, the scalars are evaluated in one pass and not in one
   each. */
Test(scalar_logging_cost, scalars_of_a_step_that_cannot_begin_cost_one_pass)
{
    struct model m = open_model("none");
    rw_tape *const t = m.b.t;
    for (int step = 0; step < 3; step++) {
        rw_tensor *x = rw_input(t, RW_F32, RW_SHAPE(BATCH, WIDTH), NULL, 0), *mean[3];
        rw_tensor *held = rw_add_scalar(t, x, 0.5);
        OK(m.b.ctx, rw_eval(t, &held, 1));
        x = held;
        memset(runs, 0, sizeof runs);
        for (int i = 0; i < LAYERS; i++) x = count(t, rw_linear(t, x, m.w[i], RW_NONE), i);
        for (int i = 0; i < 3; i++) mean[i] = rw_scale(t, rw_mean(t, x, RW_ALL_AXES, false), i);
        for (int i = 0; i < 3; i++) rw_item(t, mean[i]);
        OK(m.b.ctx, rw_backward(t, rw_mean(t, rw_mul(t, x, x), RW_ALL_AXES, false)));
        for (int i = 0; step && i < LAYERS; i++) cr_expect_leq(runs[i], 2, "step %d: layer %d: %d", step, i, runs[i]);
        rw_zero_grad(m.b.ctx);
        rw_tape_reset(t);
    }
    close_model(&m);
}

/* The losses of tasks in one vector, and one of shape [1, 1]: each element is held like a scalar, from the first step
   on, also after the update. */
Test(scalar_logging_cost, elements_of_a_small_value_are_terms)
{
    for (int shaped = 0; shaped < 2; shaped++) {
        struct model m = open_model("none");
        rw_tape *const t = m.b.t;
        for (int step = 0; step < 3; step++) {
            rw_tensor *x = rw_add_scalar(t, rw_input(t, RW_F32, RW_SHAPE(3, WIDTH), NULL, 0), 0.5);
            memset(runs, 0, sizeof runs);
            x = count(t, rw_linear(t, x, m.w[0], RW_NONE), 0);
            rw_tensor *const y = shaped ? rw_mean(t, x, RW_ALL_AXES, true) : rw_mean(t, x, RW_AXES(1), false);
            rw_tensor *const term = shaped ? y : rw_select(t, y, 0, 1);
            OK(m.b.ctx, rw_backward(t, rw_sum(t, rw_mul(t, term, term), RW_ALL_AXES, false)));
            OK(m.b.ctx, rw_optimizer_step(m.sgd));
            rw_item(t, term);
            cr_expect_eq(rw_error_status(m.b.ctx), RW_OK, "step %d: %s", step, rw_error_message(m.b.ctx));
            cr_expect_eq(runs[0], 1, "step %d: %d runs", step, runs[0]);
            rw_zero_grad(m.b.ctx);
            rw_tape_reset(t);
        }
        close_model(&m);
    }
}

/* One element of a value of more than 256 bytes is not held: reading it costs a pass of its own, and begins no step
   with the memory of backward. */
Test(scalar_logging_cost, an_element_of_a_larger_value_begins_no_step)
{
    struct model m = open_model("none");
    rw_tape *const t = m.b.t;
    rw_memory memory;
    for (int step = 0; step < 3; step++) {
        rw_tensor *x = rw_add_scalar(t, rw_input(t, RW_F32, RW_SHAPE(BATCH, WIDTH), NULL, 0), 0.5);
        for (int i = 0; i < LAYERS; i++) x = count(t, rw_linear(t, x, m.w[i], RW_NONE), i);
        rw_tensor *const loss = rw_mean(t, rw_mul(t, x, x), RW_ALL_AXES, false);
        rw_item(t, rw_select(t, rw_select(t, x, 0, 1), 0, 1));
        OK(m.b.ctx, rw_memory_stats(m.b.ctx, &memory));
        cr_expect_eq(memory.runs, step == 0 ? 1 : 0, "step %d: %zu", step, memory.runs);
        OK(m.b.ctx, rw_backward(t, loss));
        rw_zero_grad(m.b.ctx);
        rw_tape_reset(t);
    }
    close_model(&m);
}

/* A graph computes its loss: the logged terms are copies, whenever they are read. */
Test(scalar_logging_cost, terms_of_a_graphs_loss_are_copies)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("the op that counts runs on the host, which no capture holds");
    struct model m = open_model("full");
    rw_tape *const t = m.b.t;
    rw_tensor *term[LAYERS], *x = rw_input(t, RW_F32, RW_SHAPE(BATCH, WIDTH), NULL, 0), *loss = NULL;
    rw_graph *graph = NULL;
    x = rw_add_scalar(t, x, 0.5);
    for (int i = 0; i < LAYERS; i++) {
        x = count(t, rw_gelu(t, rw_linear(t, x, m.w[i], RW_NONE)), i);
        term[i] = count(t, rw_mean(t, x, RW_ALL_AXES, false), LAYERS + i);
        loss = loss ? rw_add(t, loss, term[i]) : term[i];
    }
    OK(m.b.ctx, rw_graph_create(&graph, t, loss, NULL));
    for (int step = 0; step < 3; step++) {
        memset(runs, 0, sizeof runs);
        OK(m.b.ctx, rw_graph_launch(graph));
        double sum = 0;
        for (int i = 0; i < LAYERS; i++) sum += rw_item(t, term[i]);
        cr_expect_float_eq(sum, rw_item(t, loss), 1e-6);
        for (int i = 0; i < 2 * LAYERS; i++) cr_expect_eq(runs[i], 1, "op %d ran %d times", i, runs[i]);
    }
    rw_graph_destroy(&graph);
    close_model(&m);
}

/* The same count by the trace: one event per action. */
static int count_events(const char *path, const char *what)
{
    static char text[1 << 20];
    FILE *const file = fopen(path, "r");
    cr_assert(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    int n = 0;
    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what)) n++;
    return n;
}

Test(scalar_logging_cost, the_trace_has_each_op_once)
{
    char path[] = "/tmp/rewind-logging-XXXXXX";
    const int file = mkstemp(path);
    cr_assert_geq(file, 0);
    close(file);
    setenv("REWIND_TRACE", path, 1);
    struct model m = open_model("none");
    unsetenv("REWIND_TRACE");
    struct step s;
    for (int i = 0; i < 5; i++) run_step(&m, 12, (enum when)(BEFORE + i % 2), &s);
    const int before = count_events(path, "\"counted\"");
    for (int i = 5; i < 9; i++) run_step(&m, 12, (enum when)(BEFORE + i % 2), &s);
    const int after = count_events(path, "\"counted\"");
    cr_expect_eq(after - before, 4 * (LAYERS + 12), "%d events in four steps", after - before);
    close_model(&m);
    unlink(path);
}

/* REWIND_EAGER=1 has executed all ops. */
Test(scalar_logging_cost, eager_steps_run_nothing_twice)
{
    setenv("REWIND_EAGER", "1", 1);
    for (enum when when = BEFORE; when < WHENS; when++) {
        struct outcome o = train("none", 12, when, STEPS);
        for (int i = 0; i < LAYERS + 12; i++) cr_expect_eq(o.runs[i], 1, "%s, op %d", names[when], i);
        free(o.weights);
    }
    unsetenv("REWIND_EAGER");
}
