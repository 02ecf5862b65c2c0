/*
 * rw_call(): pairs of hand-written kernels, as C trainers have them. Compared with the library's own op of the same
 * formula, and with themselves under recompute, with several uses, in graphs; and each mistake in the params.
 */
#include "support/support.h"

#include "autodiff/costs.h"
#include "device/device.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, WIDTH = 10 };

struct sizes {
    int64_t rows, width;
};

/* ---- kernels on the host, as a C trainer has them ---- */

static void rms_forward(float *y, float *inverse, const float *x, const float *gain, int64_t rows, int64_t width)
{
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t i = 0; i < width; i++) sum += (double)x[r * width + i] * x[r * width + i];
        inverse[r] = (float)(1 / sqrt(sum / (double)width + 1e-5));
        for (int64_t i = 0; i < width; i++) y[r * width + i] = x[r * width + i] * inverse[r] * gain[i];
    }
}

/* Adds to dx and dgain, either of which may be NULL. */
static void rms_backward(float *dx, float *dgain, const float *dy, const float *x, const float *gain,
                         const float *inverse, int64_t rows, int64_t width)
{
    for (int64_t r = 0; r < rows; r++) {
        double dot = 0;
        for (int64_t i = 0; i < width; i++) dot += (double)dy[r * width + i] * gain[i] * x[r * width + i];
        for (int64_t i = 0; i < width; i++) {
            const int64_t at = r * width + i;
            const double s = inverse[r];
            if (dgain) dgain[i] += dy[at] * x[at] * inverse[r];
            if (dx) dx[at] += (float)(s * dy[at] * gain[i] - s * s * s * x[at] * dot / (double)width);
        }
    }
}

/* ---- wrappers; on another device they work on copies ---- */

extern const struct rw_device_fns rw_device_cuda __attribute__((weak)); /* defined only in a build with CUDA */

static float *fetch(const rw_kernel *k, void *p, int64_t n)
{
    if (!p || test_device() == RW_DEVICE_CPU) return p;
    float *const copy = malloc((size_t)n * sizeof *copy + 1);
    cr_assert_eq(rw_device_cuda.download(k->device, copy, p, (size_t)n * sizeof *copy), RW_OK);
    return copy;
}

static void put(const rw_kernel *k, void *p, float *copy, int64_t n, bool written)
{
    if (!p || test_device() == RW_DEVICE_CPU) return;
    if (written) cr_assert_eq(rw_device_cuda.upload(k->device, p, copy, (size_t)n * sizeof *copy), RW_OK);
    free(copy);
}

static int forwards, backwards;
static bool asked_dx, saw_x;

static rw_status forward(void *const *out, void *const *in, const void *data, const rw_kernel *k)
{
    const struct sizes *const s = data;
    const int64_t n = s->rows * s->width;
    float *const y = fetch(k, out[0], n), *const inverse = fetch(k, out[1], s->rows);
    float *const x = fetch(k, in[0], n), *const gain = fetch(k, in[1], s->width);
    forwards++;
    rms_forward(y, inverse, x, gain, s->rows, s->width);
    put(k, out[0], y, n, true), put(k, out[1], inverse, s->rows, true);
    put(k, in[0], x, n, false), put(k, in[1], gain, s->width, false);
    return RW_OK;
}

static rw_status backward(void *const *d_in, void *const *d_out, void *const *in, void *const *out, const void *data,
                          const rw_kernel *k)
{
    const struct sizes *const s = data;
    const int64_t n = s->rows * s->width;
    float *const dx = fetch(k, d_in[0], n), *const dgain = fetch(k, d_in[1], s->width);
    float *const dy = fetch(k, d_out[0], n), *const inverse = fetch(k, out[1], s->rows);
    float *const x = fetch(k, in[0], n), *const gain = fetch(k, in[1], s->width);
    backwards++;
    asked_dx = dx;
    saw_x = in[0] && !out[0] && !d_out[1];
    rms_backward(dx, dgain, dy, x, gain, inverse, s->rows, s->width);
    put(k, d_in[0], dx, n, true), put(k, d_in[1], dgain, s->width, true), put(k, d_out[0], dy, n, false);
    put(k, in[0], x, n, false), put(k, in[1], gain, s->width, false), put(k, out[1], inverse, s->rows, false);
    return RW_OK;
}

static rw_call_params params(const struct sizes *s)
{
    return (rw_call_params){ .name = "rms", .forward = forward, .backward = backward,
                             .outputs = { { RW_F32, RW_SHAPE(s->rows, s->width), false },
                                          { RW_F32, RW_SHAPE(s->rows), true } },
                             .n_outputs = 2, .data = s, .data_size = sizeof *s, .unread_outputs = RW_OP_INPUT(0) };
}

static rw_tensor *rms(rw_tape *t, rw_tensor *x, rw_tensor *gain)
{
    const struct sizes s = { ROWS, WIDTH }; /* gone when the kernels run */
    const rw_call_params p = params(&s);
    return rw_call(t, &p, (rw_tensor *[]){ x, gain }, 2);
}

struct world {
    struct fixture b;
    rw_tensor *w, *gain;
    float input[ROWS * WIDTH];
};

static struct world open_world(const char *policy)
{
    struct world x = { .b = fixture_open(3, 2) };
    ckpt_set_policy(x.b.t, policy);
    x.w = rw_param(x.b.ctx, "w", RW_F32, RW_SHAPE(WIDTH, WIDTH));
    x.gain = rw_param(x.b.ctx, "gain", RW_F32, RW_SHAPE(WIDTH));
    rw_init_normal(x.w, 0, 0.5);
    rw_init_normal(x.gain, 1, 0.1);
    for (int i = 0; i < ROWS * WIDTH; i++) x.input[i] = (float)sin(i * 0.7) * (float)(1 + i % 3);
    return x;
}

/* Two layers; in the first one the pair, or the library's op, reads a transposed view. */
static rw_tensor *record(struct world *x, bool pair)
{
    rw_tape *const t = x->b.t;
    rw_tensor *h = rw_transpose(t, rw_input(t, RW_F32, RW_SHAPE(WIDTH, ROWS), x->input, sizeof x->input), 0, 1);
    for (int layer = 0; layer < 2; layer++) {
        ckpt_begin(t, "layer");
        h = pair ? rms(t, h, x->gain) : rw_rmsnorm(t, h, x->gain, 1e-5f);
        h = rw_dropout(t, rw_gelu(t, rw_matmul(t, h, x->w)), 0.2f);
        ckpt_end(t);
    }
    return rw_mean_all(t, rw_mul(t, h, h));
}

struct numbers {
    float loss, w[WIDTH * WIDTH], gain[WIDTH];
};

static struct numbers step(const char *policy, bool pair)
{
    struct world x = open_world(policy);
    struct numbers n;
    rw_tensor *const loss = record(&x, pair);
    cr_assert_eq(rw_backward(x.b.t, loss), RW_OK, "%s", rw_error_message(x.b.ctx));
    n.loss = rw_item(x.b.t, loss);
    cr_assert_eq(rw_read(x.b.t, rw_gradient(x.w), n.w, sizeof n.w), RW_OK);
    cr_assert_eq(rw_read(x.b.t, rw_gradient(x.gain), n.gain, sizeof n.gain), RW_OK);
    fixture_close(&x.b);
    return n;
}

/* Rounding of float32, with sums of six and ten terms. */
Test(kernel_pairs, give_what_the_op_of_the_same_formula_gives)
{
    const struct numbers a = step("none", true), b = step("none", false);
    cr_assert_float_eq(a.loss, b.loss, 1e-6 * fabsf(b.loss));
    float largest = 0;
    for (int i = 0; i < WIDTH * WIDTH; i++) largest = fmaxf(largest, fabsf(b.w[i]));
    cr_assert_gt(largest, 0);
    for (int i = 0; i < WIDTH * WIDTH; i++) cr_assert_float_eq(a.w[i], b.w[i], 2e-6 * largest, "%d", i);
    for (int i = 0; i < WIDTH; i++) cr_assert_float_eq(a.gain[i], b.gain[i], 2e-6 * largest, "%d", i);
}

Test(kernel_pairs, are_recomputed_to_the_same_bytes)
{
    const char *const policies[] = { "full",          "selective:layer", "ops:call_rms",
                                     "offload:layer", "budget:60%",      "block:1" };
    const struct numbers a = step("none", true);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        const struct numbers b = step(policies[i], true);
        cr_assert(!memcmp(&a, &b, sizeof a), "%s", policies[i]);
    }
    forwards = backwards = 0;
    step("full", true);
    cr_assert(forwards == 4 && backwards == 2, "%d forwards, %d backwards", forwards, backwards);
    cr_assert(saw_x && asked_dx == false, "the input needs no gradient");
}

Test(kernel_pairs, are_verified)
{
    struct world x = open_world("full");
    ckpt_report r;
    rw_tensor *const loss = record(&x, true);
    cr_assert_eq(ckpt_verify(x.b.t, loss, &r), RW_OK, "%s", rw_error_message(x.b.ctx));
    cr_assert(r.identical && r.replayed > 0);
    fixture_close(&x.b);
}

/* The gain's gradient after two launches. */
static void launch_twice(const char *policy, float *gain)
{
    struct world x = open_world(policy);
    rw_graph *graph = NULL;
    cr_assert_eq(rw_graph_create(&graph, x.b.t, record(&x, true), &(rw_graph_params){ 0 }), RW_OK, "%s",
                 rw_error_message(x.b.ctx));
    for (int i = 0; i < 2; i++) cr_assert_eq(rw_graph_launch(graph), RW_OK, "%s", rw_error_message(x.b.ctx));
    cr_assert_eq(rw_read(x.b.t, rw_gradient(x.gain), gain, WIDTH * sizeof *gain), RW_OK);
    rw_graph_destroy(&graph);
    fixture_close(&x.b);
}

Test(kernel_pairs, run_in_a_graph)
{
    NEEDS_HOST_MEMORY(); /* a copy to the host cannot be captured */
    float none[WIDTH], full[WIDTH];
    launch_twice("none", none);
    launch_twice("full", full);
    cr_assert(none[0] != 0 && !memcmp(none, full, sizeof none));
}

/* ---- what backward does not read is not kept ---- */

static rw_status twice(void *const *out, void *const *in, const void *data, const rw_kernel *k)
{
    float *const y = fetch(k, out[0], 1024), *const x = fetch(k, in[0], 1024);
    for (int i = 0; i < 1024; i++) y[i] = 2 * x[i];
    put(k, out[0], y, 1024, true), put(k, in[0], x, 1024, false);
    cr_assert_null(data);
    return RW_OK;
}

static rw_status d_twice(void *const *d_in, void *const *d_out, void *const *in, void *const *out, const void *data,
                         const rw_kernel *k)
{
    float *const dx = fetch(k, d_in[0], 1024), *const dy = fetch(k, d_out[0], 1024);
    saw_x = in[0] || out[0];
    for (int i = 0; i < 1024; i++) dx[i] += 2 * dy[i];
    put(k, d_in[0], dx, 1024, true), put(k, d_out[0], dy, 1024, false);
    return RW_OK;
}

static size_t kept_bytes(bool reads)
{
    struct fixture b = fixture_open(1, 1);
    static float numbers[1024];
    rw_memory m;
    const uint32_t unread = reads ? 0 : RW_OP_ALL_INPUTS;
    const rw_call_params p = { .name = "twice", .forward = twice, .backward = d_twice, .n_outputs = 1,
                               .outputs = { { RW_F32, RW_SHAPE(1024), false } }, .unread_inputs = unread,
                               .unread_outputs = unread };
    rw_tensor *h = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(1024), numbers, sizeof numbers));
    for (int i = 0; i < 6; i++) h = rw_call(b.t, &p, &h, 1);
    cr_assert_eq(rw_backward(b.t, rw_sum_all(b.t, h)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(saw_x, reads);
    cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
    fixture_close(&b);
    return m.kept;
}

Test(kernel_pairs, keep_only_what_backward_reads)
{
    const size_t all = kept_bytes(true), none = kept_bytes(false);
    cr_assert(all >= 5 * 4096 && none < 4096, "%zu and %zu bytes", all, none);
}

/* ---- zeroing ---- */

static rw_status adds(void *const *out, void *const *in, const void *data, const rw_kernel *k)
{
    float *const y = fetch(k, out[0], 4), *const x = fetch(k, in[0], 4);
    for (int i = 0; i < 4; i++) y[i] += 3 * x[i];
    put(k, out[0], y, 4, true), put(k, in[0], x, 4, false);
    return RW_OK;
}

static rw_status d_adds(void *const *d_in, void *const *d_out, void *const *in, void *const *out, const void *data,
                        const rw_kernel *k)
{
    float *const dx = fetch(k, d_in[0], 4), *const dy = fetch(k, d_out[0], 4);
    for (int i = 0; i < 4; i++) dx[i] += 3 * dy[i];
    put(k, d_in[0], dx, 4, true), put(k, d_out[0], dy, 4, false);
    return RW_OK;
}

static rw_tensor *record_adds(struct fixture *b, rw_tensor *x, bool zeroed, uint32_t overwritten)
{
    const rw_call_params p = { .name = "adds", .forward = adds, .backward = d_adds, .n_outputs = 1,
                               .outputs = { { RW_F32, RW_SHAPE(4), false } }, .zeroed_outputs = zeroed,
                               .overwritten_gradients = overwritten };
    rw_tensor *const y = rw_call(b->t, &p, &x, 1);
    return rw_sum_all(b->t, rw_call(b->t, &p, &y, 1));
}

Test(kernel_pairs, zero_what_kernels_add_to)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(4));
    float g[4];
    rw_init_constant(x, 2.5);
    for (int i = 1; i <= 3; i++) { /* later steps use memory that the first one has written */
        rw_tensor *const loss = record_adds(&b, x, true, 0);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_float_eq(rw_item(b.t, loss), 90, 0);
        cr_assert_eq(rw_read(b.t, rw_gradient(x), g, sizeof g), RW_OK, "%s", rw_error_message(b.ctx));
        for (int k = 0; k < 4; k++) cr_assert_float_eq(g[k], (float)(9 * i), 0);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* A kernel that adds where it has promised to write is named by the verifier: forward, then backward. */
Test(kernel_pairs, that_add_to_undefined_memory_are_named)
{
    NEEDS_HOST_MEMORY();
    for (int in_backward = 0; in_backward < 2; in_backward++) {
        struct fixture b = fixture_open(1, 1);
        ckpt_report r;
        rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(4));
        rw_init_constant(x, 2.5);
        rw_tensor *const loss = record_adds(&b, x, in_backward, in_backward ? RW_OP_INPUT(0) : 0);
        cr_assert_eq(ckpt_verify(b.t, loss, &r), RW_ERR_MISMATCH);
        cr_assert_eq(r.cause, CKPT_CAUSE_UNDEFINED_READ, "%s", ckpt_cause_name(r.cause));
        cr_assert_str_eq(r.op, in_backward ? "call_adds_backward" : "call_adds");
        fixture_close(&b);
    }
}

/* ---- random numbers, workspace, cost ---- */

enum { N = 64 };

/* A mask from the numbers of the ticket: a hash of them is enough here. */
static float mask(const rw_kernel *k, int i)
{
    const uint64_t base = k->ticket_base && test_device() == RW_DEVICE_CPU ? *k->ticket_base : 0;
    const uint64_t x = (k->ticket.seed + k->ticket.offset + base + (uint64_t)i / 4) * 0x9e3779b97f4a7c15u;
    return (float)(x >> (40 + i % 4) & 1) * 2;
}

static rw_status drop(void *const *out, void *const *in, const void *data, const rw_kernel *k)
{
    float *const y = fetch(k, out[0], N), *const x = fetch(k, in[0], N);
    if (k->workspace_bytes != 512) return RW_ERR_ARGUMENT;
    for (int i = 0; i < N; i++) y[i] = x[i] * mask(k, i);
    put(k, out[0], y, N, true), put(k, in[0], x, N, false);
    return RW_OK;
}

static rw_status d_drop(void *const *d_in, void *const *d_out, void *const *in, void *const *out, const void *data,
                        const rw_kernel *k)
{
    float *const dx = fetch(k, d_in[0], N), *const dy = fetch(k, d_out[0], N);
    if (k->workspace_bytes != 128) return RW_ERR_ARGUMENT;
    for (int i = 0; i < N; i++) dx[i] = dy[i] * mask(k, i);
    put(k, d_in[0], dx, N, true), put(k, d_out[0], dy, N, false);
    return RW_OK;
}

static rw_tensor *dropped(rw_tape *t, rw_tensor *x)
{
    const rw_call_params p = { .name = "drop", .forward = drop, .backward = d_drop, .n_outputs = 1,
                               .outputs = { { RW_F32, RW_SHAPE(N), false } }, .unread_inputs = RW_OP_ALL_INPUTS,
                               .unread_outputs = RW_OP_ALL_INPUTS, .overwritten_gradients = RW_OP_ALL_INPUTS,
                               .draws = N, .workspace = 512, .backward_workspace = 128,
                               .cost = { .flops = 5e6, .model_flops = 3e6 }, .backward_cost = { .flops = 7e6 } };
    return rw_call(t, &p, &x, 1);
}

Test(kernel_pairs, draw_the_same_numbers_again)
{
    NEEDS_HOST_MEMORY(); /* the mask reads the ticket's base */
    float g[2][N];
    for (int i = 0; i < 2; i++) {
        struct fixture b = fixture_open(7, 1);
        rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(N));
        rw_init_constant(x, 1);
        ckpt_set_policy(b.t, i ? "full" : "none");
        ckpt_begin(b.t, "r");
        rw_tensor *const h = rw_sin(b.t, dropped(b.t, rw_sin(b.t, dropped(b.t, x))));
        ckpt_end(b.t);
        rw_tensor *const loss = rw_sum_all(b.t, rw_mul(b.t, h, h));
        rw_cost cost;
        cr_assert_eq(rw_tape_cost(b.t, loss, &cost), RW_OK);
        cr_assert(cost.forward_flops >= 1e7 && cost.model_flops >= 6e6, "%g %g", cost.forward_flops, cost.model_flops);
        cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, rw_gradient(x), g[i], sizeof g[i]), RW_OK);
        fixture_close(&b);
    }
    cr_assert(!memcmp(g[0], g[1], sizeof g[0]));
    struct fixture b = fixture_open(7, 1);
    rw_tensor *const ones = rw_ones(b.t, RW_F32, RW_SHAPE(N));
    rw_tensor *const calls[] = { dropped(b.t, ones), dropped(b.t, ones) };
    float y[2][N];
    for (int i = 0; i < 2; i++) cr_assert_eq(rw_read(b.t, calls[i], y[i], sizeof y[i]), RW_OK);
    cr_assert(memcmp(y[0], y[1], sizeof y[0]), "two calls drew the same numbers");
    fixture_close(&b);
    int zeros = 0;
    for (int i = 0; i < N; i++) zeros += g[0][i] == 0;
    cr_assert(zeros > 8 && zeros < N - 4, "%d", zeros);
}

/* ---- mistakes ---- */

static void expect_refused(struct fixture *b, const rw_call_params *p, rw_tensor *const *in, size_t n, const char *text)
{
    const size_t nodes = rw_tape_nodes(b->t);
    cr_expect_null(rw_call(b->t, p, in, n), "%s", text);
    cr_expect(message_has(rw_error_message(b->ctx), text), "\"%s\" is not in: %s", text, rw_error_message(b->ctx));
    cr_expect(strstr(rw_error_message(b->ctx), "kernel_pairs.c:"), "%s", rw_error_message(b->ctx));
    cr_expect_eq(rw_tape_nodes(b->t), nodes);
    rw_error_clear(b->ctx);
}

#define REFUSED(change, text)                        \
    do {                                             \
        rw_call_params p = params(&s);               \
        change;                                      \
        expect_refused(&b, &p, in, 2, "rw_call" text); \
    } while (0)

Test(kernel_pairs, mistakes_are_named)
{
    struct fixture b = fixture_open(1, 1);
    const struct sizes s = { ROWS, WIDTH };
    static float numbers[ROWS * WIDTH];
    rw_tensor *const in[] = { rw_input(b.t, RW_F32, RW_SHAPE(ROWS, WIDTH), numbers, sizeof numbers),
                              rw_input(b.t, RW_F32, RW_SHAPE(WIDTH), numbers, WIDTH * 4) };
    static unsigned char large[RW_CALL_MAX_DATA + 1];
    REFUSED(p.name = NULL, "(name): expected 1 to 48 characters of a-z, 0-9 and _, got NULL");
    REFUSED(p.name = "", "(name): expected 1 to 48 characters of a-z, 0-9 and _, got none");
    REFUSED(p.name = "Rms norm", "(name): expected 1 to 48 characters of a-z, 0-9 and _, got Rms norm");
    REFUSED(p.name = "a23456789012345678901234567890123456789012345678x", "(name): expected 1 to 48 characters");
    REFUSED(p.forward = NULL, "(forward): expected a function, got NULL");
    REFUSED(p.n_outputs = 0, "(n_outputs): expected 1 to 8, got 0");
    REFUSED(p.n_outputs = 9, "(n_outputs): expected 1 to 8, got 9");
    REFUSED((p.data = large, p.data_size = sizeof large), "(data_size): expected at most 4096 bytes, got 4097");
    REFUSED(p.data = NULL, "(data): expected 16 bytes, got NULL");
    REFUSED(p.draws = -1, "(draws): expected 0 to 2^60 words, got -1");
    const rw_call_params good = params(&s);
    expect_refused(&b, NULL, in, 2, "rw_call(p): expected params, got NULL");
    expect_refused(&b, &good, NULL, 2, "rw_call(in): expected an array of 2 tensors, got NULL");
    expect_refused(&b, &good, in, RW_CALL_MAX_INPUTS + 1, "rw_call(n): expected at most 31 inputs, got 32");
    expect_refused(&b, &good, (rw_tensor *[]){ in[0], NULL }, 2, "call_rms");
    rw_call_params p = params(&s);
    p.outputs[1].shape.dim[0] = -3;
    expect_refused(&b, &p, in, 2, "output 1: ");
    p = params(&s);
    rw_tensor *const half = rw_cast(b.t, in[0], RW_BF16);
    expect_refused(&b, &p, (rw_tensor *[]){ half, in[1] }, 2, "input 0: expected f32 as output 0, got bf16");
    p.mixed_dtypes = true;
    cr_expect_not_null(rw_call(b.t, &p, (rw_tensor *[]){ half, in[1] }, 2));
    p = params(&s);
    p.outputs[1].dtype = RW_DTYPE_COUNT;
    expect_refused(&b, &p, in, 2, "output 1: ");
    fixture_close(&b);
}

Test(kernel_pairs, gradients_that_are_not_there_are_refused)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(4));
    rw_call_params p = { .name = "adds", .forward = adds, .n_outputs = 1, .zeroed_outputs = true,
                         .outputs = { { RW_F32, RW_SHAPE(4), false } } };
    rw_tensor *loss = rw_sum_all(b.t, rw_call(b.t, &p, (rw_tensor *[]){ x }, 1));
    cr_assert_eq(rw_backward(b.t, loss), RW_ERR_NO_GRADIENT);
    cr_assert(strstr(rw_error_message(b.ctx), "adds"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    p.backward = d_adds;
    p.outputs[0].no_gradient = true;
    loss = rw_sum_all(b.t, rw_call(b.t, &p, (rw_tensor *[]){ x }, 1));
    cr_assert_eq(rw_backward(b.t, loss), RW_ERR_NO_GRADIENT);
    cr_assert(strstr(rw_error_message(b.ctx), "outputs[0]"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    p.outputs[0].no_gradient = false;
    loss = rw_sum_all(b.t, rw_call(b.t, &p, (rw_tensor *[]){ x }, 1));
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

static rw_status fails(void *const *out, void *const *in, const void *data, const rw_kernel *k)
{
    return RW_ERR_MEMORY;
}

Test(kernel_pairs, outputs_are_returned_and_failures_passed_on)
{
    struct fixture b = fixture_open(1, 1);
    const struct sizes s = { ROWS, WIDTH };
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(ROWS, WIDTH)), *outs[2];
    rw_tensor *const gain = rw_param(b.ctx, "gain", RW_F32, RW_SHAPE(WIDTH));
    rw_init_constant(x, 2), rw_init_constant(gain, 1);
    rw_call_params p = params(&s);
    p.ret_outputs = outs;
    rw_tensor *const y = rw_call(b.t, &p, (rw_tensor *[]){ x, gain }, 2);
    cr_assert(y == outs[0] && outs[1]);
    float inverse[ROWS];
    cr_assert_eq(rw_read(b.t, outs[1], inverse, sizeof inverse), RW_OK);
    cr_assert_float_eq(inverse[0], 0.5, 1e-5);
    p.n_outputs = 0;
    outs[0] = outs[1] = x;
    cr_assert_null(rw_call(b.t, &p, (rw_tensor *[]){ x, gain }, 2));
    rw_error_clear(b.ctx);
    p = params(&s);
    p.forward = fails;
    rw_tensor *const z = rw_call(b.t, &p, (rw_tensor *[]){ x, gain }, 2);
    cr_assert(isnan(rw_item(b.t, rw_sum_all(b.t, z))));
    cr_assert(strstr(rw_error_message(b.ctx), "rms"), "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

/* Definitions with equal members are one, so that the second step finds the plan of the first one. */
Test(kernel_pairs, are_planned_once)
{
    struct world x = open_world("none");
    rw_memory m;
    size_t plans = 0;
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(rw_backward(x.b.t, record(&x, true)), RW_OK);
        cr_assert_eq(rw_memory_stats(x.b.ctx, &m), RW_OK);
        if (i == 1) plans = m.plans;
        rw_tape_reset(x.b.t);
    }
    cr_assert_eq(m.plans, plans);
    fixture_close(&x.b);
}

static uint64_t signature(const rw_tape *t, size_t node)
{
    const rw_op_call call = rw_call_of(t, &t->nodes[node]);
    return rw_call_signature(&call, t->nodes[node].attrs_size);
}

/* Costs of a file are found in another process: addresses are no part of what identifies a call. The definition of the
   gradient has another address in each context. */
Test(kernel_pairs, have_the_same_costs_in_another_context)
{
    struct fixture a = fixture_open(1, 1), b = fixture_open(1, 1);
    struct fixture *const both[] = { &a, &b };
    for (int i = 0; i < 2; i++) {
        rw_tensor *const x = rw_zeros(both[i]->t, RW_F32, RW_SHAPE(N));
        dropped(both[i]->t, x);
        rw_custom_grad(both[i]->t, x, &x, 1, (rw_custom_grad_fn)(uintptr_t)(0x1000 * (i + 1)), NULL, 0);
    }
    for (size_t node = 1; node < 3; node++) cr_expect_eq(signature(a.t, node), signature(b.t, node), "node %zu", node);
    fixture_close(&a), fixture_close(&b);
}
