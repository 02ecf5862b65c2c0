/*
 * Expected steps: the values that a step is expected to return, from the last step with the same structure. Several
 * backwards of one tape share one forward, an evaluation takes inference's memory, and a wrong expectation costs time,
 * never an error, a byte or a budget. See runtime/api/request_history.h; tests/run/scalar_logging_cost.c tests the cost
 * of logging.
 */
#include "plan/cache.h"
#include "record/tape.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OK(ctx, call) cr_assert_eq((call), RW_OK, "%s: %s", #call, rw_error_message(ctx))
#define NO_ERROR(ctx) cr_assert_eq(rw_error_status(ctx), RW_OK, "%s", rw_error_message(ctx))

enum { WIDTH = 16, LAYERS = 4, BATCH = 8, TASKS = 3 };

struct model {
    struct fixture b;
    rw_tensor *w, *head[TASKS];
};

static struct model open_model(const char *policy)
{
    struct model m = { .b = fixture_open(5, 1) };
    m.w = rw_param(m.b.ctx, "w", RW_F32, RW_SHAPE(WIDTH, WIDTH));
    OK(m.b.ctx, rw_init_normal(m.w, 0, 0.3));
    for (int i = 0; i < TASKS; i++) {
        char name[8];
        snprintf(name, sizeof name, "head%d", i);
        m.head[i] = rw_param(m.b.ctx, name, RW_F32, RW_SHAPE(WIDTH, WIDTH));
        OK(m.b.ctx, rw_init_normal(m.head[i], 0, 0.3));
    }
    OK(m.b.ctx, ckpt_set_policy(m.b.t, policy));
    return m;
}

static rw_tensor *trunk(const struct model *m, rw_tensor *x)
{
    for (int i = 0; i < LAYERS; i++) {
        ckpt_begin(m->b.t, "layer");
        x = counted_square(m->b.t, rw_linear(m->b.t, x, m->w, RW_NONE), i);
        ckpt_end(m->b.t);
    }
    return x;
}

static rw_tensor *input(const struct model *m)
{
    static float data[BATCH * WIDTH];
    for (int i = 0; i < BATCH * WIDTH; i++) data[i] = (float)(i % 7) / 7 - 0.4f;
    return rw_input(m->b.t, RW_F32, RW_SHAPE(BATCH, WIDTH), data, sizeof data);
}

static rw_tensor *mean(rw_tape *t, rw_tensor *x)
{
    return rw_mean(t, x, RW_ALL_AXES, false);
}

static rw_tensor *task(const struct model *m, rw_tensor *x, int i)
{
    rw_tape *const t = m->b.t;
    return mean(t, counted_square(t, rw_linear(t, x, m->head[i], RW_NONE), LAYERS + i));
}

/* ---- several backwards ---- */

/* The gradients of each task, concatenated; only: of that task alone, -1 for all. */
static unsigned char *gradients_of(const struct model *m, int only, size_t *ret_n)
{
    rw_tensor *const x = trunk(m, input(m)), *loss[TASKS];
    unsigned char *all = NULL;
    size_t n = 0;
    for (int i = 0; i < TASKS; i++) loss[i] = task(m, x, i);
    for (int i = 0; i < TASKS; i++) {
        if (only >= 0 && i != only) continue;
        OK(m->b.ctx, rw_backward(m->b.t, loss[i]));
        size_t one;
        unsigned char *const bytes = all_gradients(m->b.ctx, &one);
        all = realloc(all, n + one);
        memcpy(all + n, bytes, one);
        n += one;
        free(bytes);
        rw_zero_grad(m->b.ctx);
    }
    rw_tape_reset(m->b.t);
    *ret_n = n;
    return all;
}

Test(output_request_prediction, several_backwards_share_one_forward)
{
    static const char *const policies[] = { "none", "full", "budget:95%", "total:1MiB" };
    size_t n, n_one;
    for (int p = 0; p < 4; p++) {
        struct model m = open_model(policies[p]);
        unsigned char *first = gradients_of(&m, -1, &n);
        for (int step = 1; step < 4; step++) {
            counted_clear();
            unsigned char *const again = gradients_of(&m, -1, &n);
            cr_expect_eq(first_difference(first, again, n), -1, "%s", policies[p]);
            for (int i = 0; p == 0 && i < LAYERS + TASKS; i++)
                cr_expect_eq(counted_runs[i], 1, "op %d ran %d times", i, counted_runs[i]);
            free(again);
        }
        struct model alone = open_model("none");
        for (int i = 0; i < TASKS; i++) {
            unsigned char *const one = gradients_of(&alone, i, &n_one);
            cr_expect_eq(n_one * TASKS, n);
            cr_expect_eq(first_difference(first + i * n_one, one, n_one), -1, "%s, task %d", policies[p], i);
            free(one);
        }
        free(first);
        fixture_close(&alone.b);
        fixture_close(&m.b);
    }
}

/* The losses are read, too, and the gradient of each is added to the others. */
Test(output_request_prediction, several_backwards_that_add_up)
{
    struct model m = open_model("none");
    unsigned char *sums[3];
    double value[3][TASKS];
    size_t n;
    for (int step = 0; step < 3; step++) {
        rw_tensor *const x = trunk(&m, input(&m)), *loss[TASKS];
        counted_clear();
        for (int i = 0; i < TASKS; i++) loss[i] = task(&m, x, i);
        for (int i = 0; i < TASKS; i++) {
            value[step][i] = rw_item(m.b.t, loss[i]);
            OK(m.b.ctx, rw_backward(m.b.t, loss[i]));
        }
        sums[step] = all_gradients(m.b.ctx, &n);
        cr_expect_eq(first_difference(sums[0], sums[step], n), -1);
        cr_expect(!memcmp(value[0], value[step], sizeof *value));
        for (int i = 0; step && i < LAYERS + TASKS; i++) cr_expect_eq(counted_runs[i], 1, "op %d", i);
        rw_zero_grad(m.b.ctx);
        rw_tape_reset(m.b.t);
    }
    for (int i = 0; i < 3; i++) free(sums[i]);
    fixture_close(&m.b);
}

/* The losses of a step are the same in any order, as where the order of the tasks is random. */
Test(output_request_prediction, several_backwards_in_another_order_in_each_step)
{
    struct model m = open_model("none");
    for (int step = 0; step < 7; step++) {
        rw_tensor *const x = trunk(&m, input(&m)), *loss[TASKS];
        counted_clear();
        for (int i = 0; i < TASKS; i++) loss[i] = task(&m, x, i);
        for (int i = 0; i < TASKS; i++) OK(m.b.ctx, rw_backward(m.b.t, loss[(step % 2 ? i : 2 * i + step) % TASKS]));
        for (int i = 0; step && i < LAYERS + TASKS; i++)
            cr_expect_eq(counted_runs[i], 1, "step %d: op %d ran %d times", step, i, counted_runs[i]);
        rw_zero_grad(m.b.ctx);
        rw_tape_reset(m.b.t);
    }
    const uint64_t misses = rw_plan_cache_of(m.b.ctx)->misses;
    cr_expect_leq(misses, (uint64_t)4 * TASKS, "%d plans", (int)misses);
    fixture_close(&m.b);
}

/* Arena and results of the third step with two backwards, with marks of all values of the trunk or without. */
static size_t bytes_with_marks(rw_tensor *mark(rw_site at, rw_tape *t, rw_tensor *x), unsigned char **ret_gradients)
{
    enum { DEEP = 16, ROWS = 1024 };
    struct model m = open_model("none");
    rw_memory memory = { 0 };
    size_t n;
    *ret_gradients = NULL;
    for (int step = 0; step < 3; step++) {
        rw_tensor *x = rw_add_scalar(m.b.t, rw_input(m.b.t, RW_F32, RW_SHAPE(ROWS, WIDTH), NULL, 0), 0.5), *loss[2];
        for (int i = 0; i < DEEP; i++) {
            rw_tensor *const y = rw_linear(m.b.t, x, m.w, RW_NONE);
            x = rw_gelu(m.b.t, y);
            if (mark) mark(RW_HERE, m.b.t, y);
            if (mark && i % 4 != 3) mark(RW_HERE, m.b.t, x);
        }
        for (int i = 0; i < 2; i++) loss[i] = task(&m, x, i);
        for (int i = 0; i < 2; i++) OK(m.b.ctx, rw_backward(m.b.t, loss[i]));
        OK(m.b.ctx, rw_memory_stats(m.b.ctx, &memory));
        free(*ret_gradients);
        *ret_gradients = all_gradients(m.b.ctx, &n);
        rw_zero_grad(m.b.ctx);
        rw_tape_reset(m.b.t);
    }
    fixture_close(&m.b);
    return memory.measured_peak + memory.results;
}

/* A mark also means that the value is not kept for the second backward. */
Test(output_request_prediction, marks_hold_if_several_backwards_follow)
{
    unsigned char *gradients[3];
    const size_t kept = bytes_with_marks(NULL, &gradients[0]);
    const size_t recomputed = bytes_with_marks(ckpt_recompute_at, &gradients[1]);
    const size_t offloaded = bytes_with_marks(ckpt_offload_at, &gradients[2]);
    cr_expect_leq(recomputed, kept * 4 / 5, "%zu bytes, %zu without marks", recomputed, kept);
    cr_expect_leq(offloaded, kept * 4 / 5, "%zu bytes, %zu without marks", offloaded, kept);
    for (int i = 1; i < 3; i++)
        cr_expect(!memcmp(gradients[0], gradients[i], (1 + TASKS) * WIDTH * WIDTH * sizeof(float)));
    for (int i = 0; i < 3; i++) free(gradients[i]);
}

/* A loss that is computed from gradients is read before its backward: the step runs up to the loss. */
static unsigned char *penalized(const struct model *m, bool reads, size_t *ret_n)
{
    rw_tape *const t = m->b.t;
    rw_tensor *const x = rw_require_grad(t, input(m)), *dx = NULL;
    rw_tensor *const y = mean(t, trunk(m, x));
    OK(m->b.ctx, rw_grad(t, y, (rw_tensor *[]){ x }, 1, &dx));
    rw_tensor *const loss = rw_add(t, y, mean(t, rw_mul(t, dx, dx)));
    if (reads) rw_item(t, loss);
    OK(m->b.ctx, rw_backward(t, loss));
    unsigned char *const bytes = all_gradients(m->b.ctx, ret_n);
    rw_zero_grad(m->b.ctx);
    rw_tape_reset(t);
    return bytes;
}

Test(output_request_prediction, a_loss_after_recorded_gradients)
{
    static const char *const policies[] = { "none", "full" };
    for (int p = 0; p < 2; p++) {
        struct model m = open_model(policies[p]), without = open_model(policies[p]);
        size_t n;
        for (int step = 0; step < 4; step++) {
            int runs[2][LAYERS];
            unsigned char *bytes[2];
            for (int reads = 0; reads < 2; reads++) {
                counted_clear();
                bytes[reads] = penalized(reads ? &m : &without, reads, &n);
                memcpy(runs[reads], counted_runs, sizeof *runs);
            }
            cr_expect_eq(first_difference(bytes[0], bytes[1], n), -1, "%s, step %d", policies[p], step);
            for (int i = 0; step && i < LAYERS; i++)
                cr_expect_eq(runs[1][i], runs[0][i], "%s, step %d: layer %d ran %d times, %d without reading",
                             policies[p], step, i, runs[1][i], runs[0][i]);
            free(bytes[0]);
            free(bytes[1]);
        }
        fixture_close(&m.b);
        fixture_close(&without.b);
    }
}

/* ---- evaluations ---- */

static size_t arenas(const struct model *m)
{
    rw_memory memory;
    OK(m->b.ctx, rw_memory_stats(m->b.ctx, &memory));
    return memory.measured_peak;
}

/* A structure whose last step had no backward is evaluated: all reads take one forward, with inference's memory. */
Test(output_request_prediction, an_evaluation_is_one_forward)
{
    struct model m = open_model("none");
    size_t peak[3];
    for (int step = 0; step < 3; step++) {
        rw_tensor *const x = trunk(&m, input(&m)), *loss[TASKS];
        counted_clear();
        for (int i = 0; i < TASKS; i++) loss[i] = task(&m, x, i);
        for (int i = 0; i < TASKS; i++) rw_item(m.b.t, loss[i]);
        NO_ERROR(m.b.ctx);
        peak[step] = arenas(&m);
        for (int i = 0; step && i < LAYERS + TASKS; i++) cr_expect_eq(counted_runs[i], 1, "op %d", i);
        rw_tape_reset(m.b.t);
    }
    cr_expect_lt(peak[1], peak[0]);
    cr_expect_eq(peak[2], peak[1]);
    fixture_close(&m.b);
}

/* ---- wrong expectations ---- */

/* Two programs that begin identically, and differ after the first read. */
static unsigned char *one_of_two(const struct model *m, bool other, double *ret_read, size_t *ret_n)
{
    rw_tape *const t = m->b.t;
    rw_tensor *x = input(m);
    x = counted_square(t, rw_linear(t, x, m->w, RW_NONE), 0);
    *ret_read = rw_item(t, mean(t, x));
    NO_ERROR(m->b.ctx);
    x = rw_linear(t, x, m->head[1], RW_NONE);
    x = other ? rw_gelu(t, x) : counted_square(t, x, 1); /* as many values: the loss has the same number in both */
    OK(m->b.ctx, rw_backward(t, mean(t, x)));
    unsigned char *const bytes = all_gradients(m->b.ctx, ret_n);
    rw_zero_grad(m->b.ctx);
    rw_tape_reset(t);
    return bytes;
}

Test(output_request_prediction, a_tape_that_goes_on_otherwise)
{
    static const char *const policies[] = { "none", "full", "budget:100%" };
    for (int p = 0; p < 3; p++) {
        struct model m = open_model(policies[p]);
        unsigned char *expected[2];
        double read[2], value;
        size_t n;
        for (int i = 0; i < 2; i++) {
            struct model alone = open_model("none");
            expected[i] = one_of_two(&alone, i, &read[i], &n);
            fixture_close(&alone.b);
        }
        static const bool order[] = { 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1 };
        for (size_t i = 0; i < sizeof order; i++) {
            unsigned char *const bytes = one_of_two(&m, order[i], &value, &n);
            cr_expect_eq(first_difference(expected[order[i]], bytes, n), -1, "%s, step %zu", policies[p], i);
            cr_expect_eq(value, read[order[i]]);
            free(bytes);
        }
        free(expected[0]);
        free(expected[1]);
        fixture_close(&m.b);
    }
}

/* An input that has not affected any value seen by the program may be written, although the step begun by a read has
   already used it. */
Test(output_request_prediction, an_input_is_written_after_a_read_of_something_else)
{
    static const float ones[4] = { 1, 1, 1, 1 }, twos[4] = { 2, 2, 2, 2 };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4));
    OK(b.ctx, rw_init_constant(p, 3));
    for (int step = 0; step < 5; step++) {
        rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(4), ones, sizeof ones);
        rw_tensor *const y = rw_input(b.t, RW_F32, RW_SHAPE(4), ones, sizeof ones);
        rw_tensor *const first = mean(b.t, rw_mul(b.t, x, p)), *const second = mean(b.t, rw_mul(b.t, y, p));
        rw_tensor *const loss = rw_add(b.t, first, second);
        float got[4];
        cr_expect_eq(rw_item(b.t, first), 3);
        if (step > 1) OK(b.ctx, rw_input_write(y, twos, sizeof twos));
        cr_expect_eq(rw_item(b.t, second), step > 1 ? 6 : 3, "step %d", step);
        OK(b.ctx, rw_backward(b.t, loss));
        cr_expect_eq(rw_item(b.t, loss), step > 1 ? 9 : 6);
        OK(b.ctx, rw_read(NULL, rw_gradient(p), got, sizeof got));
        cr_expect_eq(got[0], step > 1 ? 0.75f : 0.5f);
        rw_zero_grad(b.ctx);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* ---- layouts that are swept ---- */

/* The loss of a step that reads a value before it records more, and the gradient of w. other: a tape that between the
   two records so many shapes and is reset, which sweeps the context's layouts and frees their indexes. */
static float step_beside(struct fixture *b, rw_tensor *w, int rows, int columns, rw_tape *other, int shapes,
                         float *ret_gradient)
{
    static float data[40 * 50];
    for (int i = 0; i < 40 * 50; i++) data[i] = (float)(i % 7) / 7;
    rw_tensor *const s = rw_sum(b->t, rw_mul(b->t, w, w), RW_ALL_AXES, false);
    cr_expect_eq(rw_item(b->t, s), 16);
    for (int i = 0; i < shapes; i++) cr_assert_not_null(rw_input(other, RW_F32, RW_SHAPE(1, 7 + i), NULL, 0));
    if (shapes) rw_tape_reset(other);
    rw_tensor *const z = rw_input(b->t, RW_F32, RW_SHAPE(rows, columns), data, (size_t)(rows * columns) * sizeof *data);
    rw_tensor *const u = rw_tanh(b->t, rw_exp(b->t, rw_tanh(b->t, z)));
    rw_tensor *const loss = rw_mul(b->t, s, rw_sum(b->t, rw_mul(b->t, u, z), RW_ALL_AXES, false));
    OK(b->ctx, rw_backward(b->t, loss));
    const float value = (float)rw_item(b->t, loss);
    OK(b->ctx, rw_read(NULL, rw_gradient(w), ret_gradient, 4 * sizeof *ret_gradient));
    NO_ERROR(b->ctx);
    rw_zero_grad(b->ctx);
    rw_tape_reset(b->t);
    return value;
}

static struct fixture open_beside(rw_tensor **ret_w)
{
    const struct fixture b = fixture_open(1, 1);
    *ret_w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    OK(b.ctx, rw_init_constant(*ret_w, 2));
    return b;
}

/* A run that was begun ahead, for the shapes of earlier steps, ends if the layouts are swept meanwhile: the words that
   the tape records then may have the same indexes of other shapes. */
Test(output_request_prediction, a_run_begun_ahead_does_not_outlast_a_sweep_of_layouts)
{
    float gradient[3][4];
    rw_tensor *w, *w_alone;
    rw_tape *other;
    struct fixture b = open_beside(&w), alone = open_beside(&w_alone);
    OK(b.ctx, rw_tape_create(&other, b.ctx));
    for (int i = 0; i < 4; i++) step_beside(&b, w, 3, 5, other, 0, gradient[0]);
    const uint64_t generation = b.ctx->layouts.generation;
    const float value = step_beside(&b, w, 40, 50, other, 8300, gradient[0]);
    cr_assert_gt(b.ctx->layouts.generation, generation);
    const float again = step_beside(&b, w, 40, 50, other, 0, gradient[1]);
    const float expected = step_beside(&alone, w_alone, 40, 50, NULL, 0, gradient[2]);
    cr_expect_eq(value, expected, "%.9g, not %.9g", value, expected);
    cr_expect_eq(again, expected);
    cr_expect(!memcmp(gradient[0], gradient[2], sizeof *gradient));
    cr_expect(!memcmp(gradient[1], gradient[2], sizeof *gradient));
    rw_tape_destroy(&other);
    fixture_close(&alone);
    fixture_close(&b);
}

/* Reads vary between steps: the set changes, the bytes do not, and a value that is read again costs one forward. */
Test(output_request_prediction, reads_that_change_from_step_to_step)
{
    struct model m = open_model("full"), without = open_model("full");
    size_t n;
    for (int step = 0; step < 40; step++) {
        unsigned char *bytes[2];
        for (int reads = 0; reads < 2; reads++) {
            const struct model *const x = reads ? &m : &without;
            rw_tensor *const hidden = trunk(x, input(x)), *const norm = mean(x->b.t, hidden);
            rw_tensor *const loss = task(x, hidden, 0), *const other = task(x, hidden, 1);
            if (reads && step % 20 == 0) rw_item(x->b.t, norm);
            if (reads && step % 3 == 0) rw_item(x->b.t, loss);
            OK(x->b.ctx, rw_backward(x->b.t, loss));
            if (reads && step % 7 == 0) rw_item(x->b.t, other);
            NO_ERROR(x->b.ctx);
            bytes[reads] = all_gradients(x->b.ctx, &n);
            rw_zero_grad(x->b.ctx);
            rw_tape_reset(x->b.t);
        }
        cr_expect_eq(first_difference(bytes[0], bytes[1], n), -1, "step %d", step);
        free(bytes[0]);
        free(bytes[1]);
    }
    fixture_close(&m.b);
    fixture_close(&without.b);
}

/* An evaluation during a begun step: both fit into the budget, or the step is begun again. */
Test(output_request_prediction, a_budget_holds_beside_a_step_that_was_begun)
{
    struct model m = open_model("none");
    OK(m.b.ctx, rw_backward(m.b.t, task(&m, trunk(&m, input(&m)), 0)));
    const size_t none = arenas(&m);
    char spec[32];
    snprintf(spec, sizeof spec, "budget:%zuB", none);
    fixture_close(&m.b);
    m = open_model(spec);
    for (int step = 0; step < 3; step++) {
        rw_tensor *const hidden = trunk(&m, input(&m)), *const loss = task(&m, hidden, 0);
        float norm;
        rw_memory memory;
        rw_item(m.b.t, loss);
        OK(m.b.ctx, rw_read(m.b.t, mean(m.b.t, hidden), &norm, sizeof norm));
        OK(m.b.ctx, rw_memory_stats(m.b.ctx, &memory));
        cr_expect_leq(memory.arenas, none, "step %d: %zu", step, memory.arenas);
        OK(m.b.ctx, rw_backward(m.b.t, loss));
        rw_zero_grad(m.b.ctx);
        rw_tape_reset(m.b.t);
    }
    fixture_close(&m.b);
}

/* Under a budget without space for the values that are read, the step is planned without them. */
Test(output_request_prediction, the_least_budget_of_a_step_is_that_of_the_step_without_reads)
{
    struct model m = open_model("budget:1B");
    rw_tensor *const hidden = trunk(&m, input(&m)), *loss = task(&m, hidden, 0);
    cr_assert_eq(rw_backward(m.b.t, loss), RW_ERR_BUDGET);
    const char *const at = strstr(rw_error_message(m.b.ctx), "is budget:");
    char spec[40];
    cr_assert(at);
    snprintf(spec, sizeof spec, "budget:%lluB", strtoull(at + 10, NULL, 10));
    rw_error_clear(m.b.ctx);
    rw_tape_reset(m.b.t);
    OK(m.b.ctx, ckpt_set_policy(m.b.t, spec));
    for (int step = 0; step < 3; step++) {
        rw_tensor *const x = trunk(&m, input(&m));
        loss = task(&m, x, 0);
        rw_tensor *const other = mean(m.b.t, rw_mul(m.b.t, rw_concat(m.b.t, (rw_tensor *[]){ x, x, x, x }, 4, 0),
                                                    rw_concat(m.b.t, (rw_tensor *[]){ x, x, x, x }, 4, 0)));
        rw_item(m.b.t, loss);
        rw_item(m.b.t, other);
        OK(m.b.ctx, rw_backward(m.b.t, loss));
        rw_item(m.b.t, other);
        NO_ERROR(m.b.ctx);
        rw_zero_grad(m.b.ctx);
        rw_tape_reset(m.b.t);
    }
    fixture_close(&m.b);
}

/* ---- failures of values that were not requested ---- */

enum way { BACKWARD, AFTER_READING, SECOND_ROOT, ADDS, SCALED, SCALED_FORWARD, WAYS };

static const char *const way_names[] = { "backward", "after a read of the loss", "the other loss has a backward",
                                         "adds to a gradient", "by a scaler", "forward, then by a scaler" };

/* A step with another loss, which depends on `index` and is requested unless that is bad. */
static void step_of_two(struct fixture *b, rw_tensor *w, rw_scaler *s, enum way way, int32_t index, int step)
{
    const int32_t good[4] = { 1, 2, 3, 4 }, may_be_bad[4] = { 1, 2, 3, index };
    const bool is_bad = index >= 8;
    if (way == ADDS) OK(b->ctx, rw_backward(b->t, mean(b->t, w)));
    if (way == ADDS) rw_tape_reset(b->t);
    rw_tensor *const x = rw_input(b->t, RW_I32, RW_SHAPE(4), good, sizeof good);
    rw_tensor *const y = rw_input(b->t, RW_I32, RW_SHAPE(4), may_be_bad, sizeof may_be_bad);
    rw_tensor *const loss = mean(b->t, rw_embedding(b->t, w, x)), *const other = mean(b->t, rw_embedding(b->t, w, y));
    if (way == AFTER_READING || way == SCALED_FORWARD) cr_expect_eq(rw_item(b->t, loss), 2);
    NO_ERROR(b->ctx);
    if (way == SCALED_FORWARD) OK(b->ctx, rw_forward(b->t, (rw_tensor *[]){ loss }, 1));
    const rw_status status = way >= SCALED ? rw_scaler_backward(s, b->t, loss) : rw_backward(b->t, loss);
    cr_expect_eq(status, RW_OK, "%s, step %d: %s", way_names[way], step, rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
    if (is_bad) cr_expect(isnan(rw_item(b->t, other)), "its own error is reported when it is requested");
    else if (way == SECOND_ROOT) OK(b->ctx, rw_backward(b->t, other));
    else cr_expect_eq(rw_item(b->t, other), 2);
    rw_error_clear(b->ctx);
}

/* One step in which the other loss cannot be computed, among steps in which it is requested after backward. */
Test(output_request_prediction, a_value_that_fails_and_was_not_requested)
{
    for (enum way way = 0; way < WAYS; way++) {
        if (way == ADDS && test_device() != RW_DEVICE_CPU) continue; /* known only after backward has added */
        struct fixture b = fixture_open(1, 1);
        rw_scaler *s = NULL;
        float got[64], want[64];
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(8, 8));
        OK(b.ctx, rw_init_constant(w, 2));
        OK(b.ctx, rw_scaler_create(&s, b.ctx, &(rw_scaler_params){ .init_scale = 1 }));
        for (int step = 0; step < 4; step++) {
            const bool is_bad = step == 2;
            step_of_two(&b, w, s, way, is_bad ? 99 : 4, step);
            OK(b.ctx, rw_read(b.t, rw_gradient(w), is_bad ? got : want, sizeof got));
            rw_zero_grad(b.ctx);
            rw_tape_reset(b.t);
        }
        const float times = way == SECOND_ROOT ? 2 : 1; /* the other loss was added in the other steps */
        for (int i = 8; i < 40; i++)
            cr_expect_eq(got[i], want[i] / times, "%s: %g, %g", way_names[way], got[i], want[i]);
        rw_scaler_destroy(&s);
        fixture_close(&b);
    }
}
