/*
 * Every kind of tensor is passed to every public function that takes one, in each position (the functions come from the
 * headers: tests/tools/generate_tensor_calls.py). Nothing crashes, no message has "(null)", and a call that fails
 * leaves a message, unless none of its arguments has a context.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum kind {
    PARAMETER, BUFFER, GRADIENT, AVERAGE, VALUE, SCALAR, INPUT, WHOLE_NUMBERS, VIEW, GRADIENT_OF_A_VALUE, STALE,
    STALE_GRADIENT, OF_A_DESTROYED_TAPE, OF_DESTROYED_AVERAGES, MISSING, NONE, OF_ANOTHER_TAPE, OF_ANOTHER_CONTEXT,
    AVERAGE_OF_ANOTHER_CONTEXT, VALUE_OF_ANOTHER_CONTEXT, KINDS
};
static const char *const names[KINDS] = {
    "a parameter", "a buffer", "a gradient", "an average", "a value", "a scalar", "an input", "an input of integers",
    "a view", "a gradient of a value", "a value of before a reset", "a gradient of before a reset",
    "a value of a destroyed tape", "a destroyed average", "NULL", "rw_none()", "a value of another tape",
    "a parameter of another context", "an average of another context", "a value of another context"
};

enum says { STATUS, RECORDED, ANSWER };

struct walk {
    struct fixture b, other;
    rw_tape *t, *second;
    rw_weight_average *average, *other_average;
    rw_optimizer *optimizer;
    rw_scaler *scaler;
    rw_delayed_scaling *delayed;
    rw_tensor *of[KINDS], *good;
    rw_graph *graph;
    FILE *file;
    rw_tensor *out[64];
    unsigned char bytes[256];
    int64_t sizes[16];
    int axes[8];
    size_t counts[8];
};

/* The report of the process of one function. */
static struct seen {
    enum kind kind;
    int at, faults;
    size_t calls;
    char text[1024];
} *seen;

struct call {
    const char *name;
    void (*call)(struct walk *w, int at, rw_tensor *x);
    int places;
};

static rw_status same_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status same_kernel(const rw_kernel *k)
{
    return RW_OK;
}

static const rw_op_def same_op = { .name = "same", .n_inputs = 2, .n_outputs = 1, .check = same_check,
                                   .kernel = { [RW_DEVICE_CPU] = same_kernel } };

static rw_status no_gradient(rw_grad_call *g, const void *data)
{
    return RW_OK;
}

static void fault(const struct walk *w, const char *name, const char *what)
{
    if (seen->faults++) return;
    snprintf(seen->text, sizeof seen->text, "%s: %s at place %d: %s: \"%.300s%.300s\"", name, names[seen->kind],
             seen->at, what, rw_error_message(w->b.ctx), rw_error_message(w->other.ctx));
}

/* Called after each call. result: a status, or the tensor that was recorded. */
static void told(struct walk *w, const char *name, enum says says, intptr_t result)
{
    const char *const here = rw_error_message(w->b.ctx), *const there = rw_error_message(w->other.ctx);
    const bool failed = says == STATUS ? result != RW_OK : says == RECORDED && !result;
    /* of these all arguments except the tensor belong to no context */
    const bool nobody = seen->kind == MISSING || seen->kind == NONE;
    if (strstr(here, "(null)") || strstr(there, "(null)")) fault(w, name, "its message has \"(null)\"");
    if (failed && !*here && !*there && !nobody) fault(w, name, "it failed without a message");
    if (says == STATUS && !failed && (*here || *there)) fault(w, name, "it returned RW_OK with a message");
    seen->calls++;
}

#include "tensor_calls.h"

/* ---- the tensors ---- */

static rw_tensor *square(rw_tape *t, rw_tensor *x)
{
    return rw_mul(t, x, x);
}

/* Creates the contexts, objects and arguments of all calls. */
static void open_walk(struct walk *w)
{
    memset(w, 0, sizeof *w);
    w->b = fixture_open(1, 1);
    w->other = fixture_open(1, 1);
    w->t = w->b.t;
    w->file = fopen("/dev/null", "w");
    for (int i = 0; i < 16; i++) w->sizes[i] = 2;
    for (int i = 0; i < 8; i++) w->axes[i] = i, w->counts[i] = 1;
    w->of[PARAMETER] = rw_param(w->b.ctx, "w", RW_F32, RW_SHAPE(4, 4));
    w->of[BUFFER] = rw_buffer(w->b.ctx, "b", RW_F32, RW_SHAPE(4, 4));
    w->of[GRADIENT] = rw_gradient(w->of[PARAMETER]);
    w->of[OF_ANOTHER_CONTEXT] = rw_param(w->other.ctx, "w", RW_F32, RW_SHAPE(4, 4));
    rw_weight_average *gone = NULL;
    rw_tape *dead = NULL;
    cr_assert_eq(rw_weight_average_create(&w->average, w->b.ctx, 0.5), RW_OK);
    cr_assert_eq(rw_weight_average_create(&w->other_average, w->other.ctx, 0.5), RW_OK);
    cr_assert_eq(rw_weight_average_create(&gone, w->b.ctx, 0.5), RW_OK);
    w->of[AVERAGE] = rw_weight_average_of(w->average, w->of[PARAMETER]);
    w->of[AVERAGE_OF_ANOTHER_CONTEXT] = rw_weight_average_of(w->other_average, w->of[OF_ANOTHER_CONTEXT]);
    w->of[OF_DESTROYED_AVERAGES] = rw_weight_average_of(gone, w->of[PARAMETER]);
    rw_weight_average_destroy(&gone);
    cr_assert_eq(rw_tape_create(&dead, w->b.ctx), RW_OK);
    w->of[OF_A_DESTROYED_TAPE] = square(dead, w->of[PARAMETER]);
    rw_tape_destroy(&dead);
    cr_assert_eq(rw_tape_create(&w->second, w->b.ctx), RW_OK);
    cr_assert_eq(rw_adamw_create(&w->optimizer, w->b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_scaler_create(&w->scaler, w->b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_delayed_scaling_create(&w->delayed, w->b.ctx, NULL), RW_OK);
    w->of[NONE] = rw_none();
}

static void close_walk(struct walk *w)
{
    rw_tape_destroy(&w->second);
    rw_weight_average_destroy(&w->average);
    rw_weight_average_destroy(&w->other_average);
    rw_optimizer_destroy(&w->optimizer);
    rw_delayed_scaling_destroy(&w->delayed);
    rw_scaler_destroy(&w->scaler);
    fclose(w->file);
    fixture_close(&w->b);
    fixture_close(&w->other);
}

/* Records the tapes' tensors anew before each call: values of the step before are stale. */
static void record(struct walk *w)
{
    static const float data[16] = { 1, 2, 3, 4 };
    static const int32_t numbers[16] = { 0, 1, 2, 3 };
    rw_graph_destroy(&w->graph);
    rw_error_clear(w->b.ctx);
    rw_error_clear(w->other.ctx);
    rw_zero_grad(w->b.ctx);
    w->of[STALE] = w->of[VALUE];
    w->of[STALE_GRADIENT] = w->of[GRADIENT_OF_A_VALUE];
    rw_tape_reset(w->t);
    rw_tape_reset(w->second);
    rw_tape_reset(w->other.t);
    w->of[INPUT] = rw_require_grad(w->t, rw_input(w->t, RW_F32, RW_SHAPE(4, 4), data, sizeof data));
    w->of[WHOLE_NUMBERS] = rw_input(w->t, RW_I32, RW_SHAPE(4, 4), numbers, sizeof numbers);
    w->of[SCALAR] = rw_sum(w->t, square(w->t, w->of[INPUT]), RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(w->t, w->of[SCALAR]), RW_OK, "%s", rw_error_message(w->b.ctx));
    w->of[GRADIENT_OF_A_VALUE] = rw_gradient(w->of[INPUT]);
    w->of[VALUE] = w->good = square(w->t, w->of[PARAMETER]);
    w->of[VIEW] = rw_transpose(w->t, w->of[VALUE], 0, 1);
    w->of[OF_ANOTHER_TAPE] = square(w->second, w->of[PARAMETER]);
    w->of[VALUE_OF_ANOTHER_CONTEXT] = square(w->other.t, w->of[OF_ANOTHER_CONTEXT]);
    cr_assert(!rw_error_status(w->b.ctx) && !rw_error_status(w->other.ctx), "%s", rw_error_message(w->b.ctx));
}

static void walk(const struct call *c)
{
    struct walk w;
    open_walk(&w);
    record(&w);
    for (int at = 0; at < c->places; at++)
        for (enum kind kind = 0; kind < KINDS; kind++) {
            record(&w);
            seen->kind = kind;
            seen->at = at;
            c->call(&w, at, w.of[kind]);
        }
    record(&w);
    close_walk(&w);
}

/* A query of a tensor that no longer exists returns the same as one of NULL. */
Test(tensor_kinds_as_arguments, that_are_no_more_answer_as_null_does)
{
    static const enum kind gone[] = { STALE, STALE_GRADIENT, OF_A_DESTROYED_TAPE, OF_DESTROYED_AVERAGES, MISSING };
    struct walk w;
    open_walk(&w);
    for (int i = 0; i < 3; i++) record(&w);
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        rw_tensor *const x = w.of[gone[i]];
        const char *const name = names[gone[i]];
        cr_expect_eq(x == NULL, gone[i] == MISSING, "%s", name);
        cr_expect_eq(rw_tensor_kind_of(x), RW_TENSOR_NONE, "%s", name);
        cr_expect_eq(rw_tensor_requires_grad(x), false, "%s", name);
        cr_expect_null(rw_tensor_base(x), "%s", name);
        cr_expect_null(rw_tensor_layout(x), "%s", name);
        cr_expect_null(rw_gradient(x), "%s", name);
        cr_expect_null(rw_weight_average_of(w.average, x), "%s", name);
        cr_expect_str_eq(rw_tensor_name(x), "", "%s", name);
        cr_expect_eq(rw_tensor_shape(x).rank, 0, "%s", name);
        cr_expect_eq(rw_tensor_bytes(x), 0, "%s", name);
        cr_expect_eq(rw_delayed_scaling_row(w.delayed, x), -1, "%s", name);
    }
    close_walk(&w);
}

/* Each function runs in a process of its own, which isolates a crash. */
Test(tensor_kinds_as_arguments, go_through_every_function, .timeout = 300)
{
    const size_t n = sizeof calls / sizeof *calls;
    size_t made = 0, places = 0;
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(seen != MAP_FAILED);
    for (size_t i = 0; i < n; i++) {
        int status = 0;
        memset(seen, 0, sizeof *seen);
        fflush(NULL);
        const pid_t child = fork();
        cr_assert_geq(child, 0);
        if (!child) {
            walk(&calls[i]);
            _exit(0);
        }
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_expect(WIFEXITED(status) && !WEXITSTATUS(status), "%s ended its process (%d): %s at place %d",
                  calls[i].name, status, names[seen->kind], seen->at);
        cr_expect_eq(seen->faults, 0, "%d faults, the first one: %s", seen->faults, seen->text);
        made += seen->calls;
        places += (size_t)calls[i].places;
    }
    cr_expect_eq(made, places * KINDS);
    cr_expect_gt(n, 190, "%zu functions: are the headers read?", n);
    munmap(seen, sizeof *seen);
}
