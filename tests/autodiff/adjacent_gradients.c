/*
 * Gradients of the slices of one buffer. If q, k and v are slices of one buffer, attention writes dq, dk and dv as
 * slices of one, and the gradient rule of slicing passes that buffer on: no node concatenates them. Their bytes are
 * those of attention on three separate tensors, in every type. For other arrangements of slices the gradients have the
 * same numbers, computed with copies.
 */
#include "support/compare.h"
#include "support/plan_queries.h"

#include "models/model.h"
#include "record/context.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define MAX ((size_t)1 << 20) /* bytes of the largest tensor */

struct extents {
    int64_t batch, heads, kv_heads, seq, d;
    bool causal;
    float dropout;
};

/* One of every path: heads that share keys, partial blocks, sizes for the tensor cores and odd ones. */
static const struct extents all[] = {
    { 2, 4, 4, 9, 16, true, 0 },     { 3, 4, 2, 70, 16, true, 0.2f }, { 1, 2, 1, 33, 64, false, 0 },
    { 2, 6, 2, 65, 64, true, 0.1f }, { 1, 2, 2, 21, 128, true, 0 },   { 2, 2, 1, 7, 5, false, 0.3f },
    { 4, 4, 2, 19, 12, true, 0 },    { 1, 1, 1, 1, 8, true, 0 },      { 1, 3, 3, 40, 24, true, 0 },
};
#define CASES (sizeof all / sizeof *all)
static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };

enum form {
    SPLIT,        /* [b, s, heads, d] split along the heads, each slice transposed */
    TRANSPOSED_FIRST, /* transposed, then split */
    SLICED,       /* sliced one by one */
    OTHER_ORDER,  /* k precedes q */
    A_GAP,        /* an unused head between q and k */
    A_COPY,       /* q is computed from its slice */
    FORMS
};

static const char *const form_names[] = { "split", "transposed first", "sliced", "other order", "a gap", "a copy" };

/* Whether the slices form one contiguous buffer. */
static bool is_packed(enum form form)
{
    return form <= SLICED;
}

static bool has_concat(enum form form)
{
    return form == OTHER_ORDER || form == A_GAP || form == A_COPY;
}

static double element(int64_t i, int salt)
{
    return (double)((i * 37 + salt * 11 + i * i % 53) % 65 - 32) / 32;
}

/* Number of outputs of attention's backward. */
static int outputs_of_backward(struct fixture *b, const rw_plan *plan)
{
    for (size_t i = 0; i < plan->n_actions; i++) {
        const struct rw_node *const node = backward_node(b, plan, i, "attention_backward");
        if (node) return node->n_outputs;
    }
    return 0;
}

/* ---- q, k and v as one buffer or as three ---- */

/* First head of slice i, and its number of heads. */
static int64_t first_head(const struct extents *e, enum form form, int i)
{
    if (form == OTHER_ORDER) return i == 0 ? e->kv_heads : i == 1 ? 0 : e->heads + e->kv_heads;
    return (i > 0 ? e->heads : 0) + (i > 1 ? e->kv_heads : 0) + (form == A_GAP && i > 0);
}

static int64_t heads_of(const struct extents *e, int i)
{
    return i ? e->kv_heads : e->heads;
}

static int64_t all_heads(const struct extents *e, enum form form)
{
    return e->heads + 2 * e->kv_heads + (form == A_GAP);
}

static rw_tensor *whole_input(struct fixture *b, const struct extents *e, enum form form, rw_dtype dtype, bool wanted)
{
    static char data[MAX];
    const rw_shape shape = RW_SHAPE(e->batch, e->seq, all_heads(e, form) * e->d);
    for (int64_t i = 0; i < rw_shape_numel(shape); i++) number_put(data, dtype, i, element(i, 1));
    rw_tensor *const x = rw_input(b->t, dtype, shape, data, (size_t)rw_shape_numel(shape) * rw_dtype_size(dtype));
    return wanted ? rw_require_grad(b->t, x) : x;
}

/* The same numbers as slice i, dense. */
static rw_tensor *own_input(struct fixture *b, const struct extents *e, enum form form, rw_dtype dtype, int i)
{
    static char data[MAX];
    const int64_t n = heads_of(e, i) * e->d, row = all_heads(e, form) * e->d, from = first_head(e, form, i) * e->d;
    for (int64_t r = 0; r < e->batch * e->seq; r++)
        for (int64_t c = 0; c < n; c++) number_put(data, dtype, r * n + c, element(r * row + from + c, 1));
    return rw_require_grad(b->t, rw_input(b->t, dtype, RW_SHAPE(e->batch, e->seq, heads_of(e, i), e->d), data,
                                          (size_t)(e->batch * e->seq * heads_of(e, i) * e->d) * rw_dtype_size(dtype)));
}

/* Slices q, k and v from the whole buffer, in the given form. */
static void cut(struct fixture *b, const struct extents *e, enum form form, rw_tensor *whole, rw_tensor **qkv)
{
    rw_tape *const t = b->t;
    rw_tensor *x = rw_reshape(t, whole, RW_SHAPE(e->batch, e->seq, all_heads(e, form), e->d)), *part[4];
    if (form == TRANSPOSED_FIRST) x = rw_transpose(t, x, 1, 2);
    if (form == SLICED) {
        for (int i = 0; i < 3; i++)
            part[i] = rw_slice(t, x, 2, first_head(e, form, i), first_head(e, form, i) + heads_of(e, i));
    } else {
        const int64_t usual[] = { e->heads, e->kv_heads, e->kv_heads };
        const int64_t other[] = { e->kv_heads, e->heads, e->kv_heads };
        const int64_t gap[] = { e->heads, 1, e->kv_heads, e->kv_heads };
        const int64_t *const counts = form == OTHER_ORDER ? other : form == A_GAP ? gap : usual;
        cr_assert_eq(rw_split(t, x, form == TRANSPOSED_FIRST ? 1 : 2, counts, form == A_GAP ? 4 : 3, part), RW_OK);
    }
    for (int i = 0; i < 3; i++) {
        const int at = form == OTHER_ORDER ? (const int[]){ 1, 0, 2 }[i] : form == A_GAP && i ? i + 1 : i;
        qkv[i] = form == TRANSPOSED_FIRST ? part[at] : rw_transpose(t, part[at], 1, 2);
    }
    if (form == A_COPY) qkv[0] = rw_scale(t, qkv[0], 1);
}

static rw_tensor *loss_of(struct fixture *b, const struct extents *e, rw_tensor *const *qkv)
{
    static char data[MAX];
    const rw_attention_params params = { .causal = e->causal, .dropout = e->dropout };
    rw_generator_set(b->ctx, (rw_generator_state){ 5, 11 });
    rw_tensor *const y = rw_attention(b->t, qkv[0], qkv[1], qkv[2], &params);
    cr_assert(y, "%s", rw_error_message(b->ctx));
    const rw_dtype dtype = rw_tensor_dtype(y);
    for (int64_t i = 0; i < rw_shape_numel(rw_tensor_shape(y)); i++) number_put(data, dtype, i, element(i, 2));
    return rw_sum(b->t,
                  rw_mul(b->t, y,
                         rw_input(b->t, dtype, rw_tensor_shape(y), data,
                                  (size_t)rw_shape_numel(rw_tensor_shape(y)) * rw_dtype_size(dtype))),
                  RW_ALL_AXES, false);
}

static void backward(struct fixture *b, rw_tensor *loss)
{
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
}

static void read_gradient(struct fixture *b, rw_tensor *x, char *to)
{
    cr_assert_leq(rw_tensor_bytes(x), MAX);
    cr_assert_eq(rw_read(b->t, rw_gradient(x), to, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(b->ctx));
}

/* The gradient of the buffer of which q, k and v are slices. */
static void gradient_of_whole(struct fixture *b, const struct extents *e, enum form form, rw_dtype dtype, char *to)
{
    rw_tensor *const whole = whole_input(b, e, form, dtype, true), *qkv[3];
    cut(b, e, form, whole, qkv);
    rw_tensor *const loss = loss_of(b, e, qkv);
    const rw_plan *const plan = step_plan(b, loss);
    cr_expect_eq(outputs_of_backward(b, plan), is_packed(form) ? 1 : 3, "%s", form_names[form]);
    cr_expect_eq(steps_of(b, plan, "concat"), has_concat(form), "%s", form_names[form]);
    cr_expect_eq(steps_of(b, plan, "contiguous"), 1, "%s: more than that of the loss", form_names[form]);
    backward(b, loss);
    read_gradient(b, whole, to);
    rw_tape_reset(b->t);
}

/* The gradients of three tensors, concatenated in the order of the form. */
static void gradients_joined(struct fixture *b, const struct extents *e, enum form form, rw_dtype dtype, char *to)
{
    static char piece[MAX];
    const size_t size = rw_dtype_size(dtype);
    rw_tensor *own[3], *qkv[3];
    for (int i = 0; i < 3; i++) {
        own[i] = own_input(b, e, form, dtype, i);
        qkv[i] = rw_transpose(b->t, own[i], 1, 2);
    }
    rw_tensor *const loss = loss_of(b, e, qkv);
    cr_expect_eq(outputs_of_backward(b, step_plan(b, loss)), 3);
    backward(b, loss);
    memset(to, 0, (size_t)(e->batch * e->seq * all_heads(e, form) * e->d) * size);
    for (int i = 0; i < 3; i++) {
        const int64_t n = heads_of(e, i) * e->d, row = all_heads(e, form) * e->d, from = first_head(e, form, i) * e->d;
        read_gradient(b, own[i], piece);
        for (int64_t r = 0; r < e->batch * e->seq; r++)
            memcpy(to + (size_t)(r * row + from) * size, piece + (size_t)(r * n) * size, (size_t)n * size);
    }
    rw_tape_reset(b->t);
}

/* Gradients of slices are added up from zero, so a negative zero loses its sign. */
static void expect_same(const struct extents *e, enum form form, rw_dtype dtype, const char *a, const char *b)
{
    const int64_t n = e->batch * e->seq * all_heads(e, form) * e->d;
    int64_t bad = -1;
    for (int64_t i = 0; i < n && bad < 0; i++)
        if (number_get(a, dtype, i) != number_get(b, dtype, i)) bad = i;
    if (form != SLICED) bad = first_difference(a, b, (size_t)n * rw_dtype_size(dtype));
    cr_expect(bad < 0, "%s, %s, heads %d of %d, seq %d: differs at %d", form_names[form], rw_dtype_name(dtype),
              (int)e->heads, (int)e->d, (int)e->seq, (int)bad);
}

static void check_form(enum form form)
{
    static char one[MAX], three[MAX];
    for (int threads = 1; threads < 4; threads += 2) {
        struct fixture b = fixture_open(1, threads);
        for (size_t i = 0; i < CASES; i++)
            for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
                gradient_of_whole(&b, &all[i], form, types[k], one);
                gradients_joined(&b, &all[i], form, types[k], three);
                expect_same(&all[i], form, types[k], one, three);
            }
        fixture_close(&b);
        if (test_device() != RW_DEVICE_CPU) break;
    }
}

Test(adjacent_gradients, split) { check_form(SPLIT); }
Test(adjacent_gradients, transposed_first) { check_form(TRANSPOSED_FIRST); }
Test(adjacent_gradients, sliced) { check_form(SLICED); }
Test(adjacent_gradients, other_order) { check_form(OTHER_ORDER); }
Test(adjacent_gradients, a_gap) { check_form(A_GAP); }
Test(adjacent_gradients, a_copy) { check_form(A_COPY); }

/* One of the three requires no gradient: the others' are unchanged. */
Test(adjacent_gradients, a_piece_without_gradient)
{
    static char got[MAX], want[MAX];
    const struct extents e = { 2, 4, 2, 9, 16, true, 0 };
    rw_tensor *qkv[3];
    struct fixture b = fixture_open(1, 2);
    for (int whole = 1; whole >= 0; whole--) {
        if (whole) cut(&b, &e, SPLIT, whole_input(&b, &e, SPLIT, RW_F32, false), qkv);
        for (int i = 0; i < 3 && !whole; i++)
            qkv[i] = rw_transpose(b.t, own_input(&b, &e, SPLIT, RW_F32, i), 1, 2);
        for (int i = 0; i < 3; i += 2) rw_require_grad(b.t, qkv[i]);
        rw_tensor *const loss = loss_of(&b, &e, qkv);
        cr_expect_eq(outputs_of_backward(&b, step_plan(&b, loss)), 3);
        backward(&b, loss);
        for (int i = 0; i < 3; i += 2) read_gradient(&b, qkv[i], (whole ? got : want) + i * 65536);
        rw_tape_reset(b.t);
    }
    const size_t bytes = (size_t)(e.batch * e.seq * e.d) * 4;
    cr_expect_eq(first_difference(got, want, bytes * (size_t)e.heads), -1);
    cr_expect_eq(first_difference(got + 2 * 65536, want + 2 * 65536, bytes * (size_t)e.kv_heads), -1);
    fixture_close(&b);
}

/* Other ops read the slices, too: their gradients are added to views of the buffer that attention wrote. */
Test(adjacent_gradients, pieces_that_others_read)
{
    static char one[MAX], three[MAX], part[MAX];
    const struct extents e = { 2, 4, 2, 9, 16, true, 0 };
    struct fixture b = fixture_open(1, 2);
    rw_tensor *whole = whole_input(&b, &e, SPLIT, RW_F32, true), *qkv[3], *own[3];
    cut(&b, &e, SPLIT, whole, qkv);
    for (int joined = 1; joined >= 0; joined--) {
        for (int i = 0; i < 3 && !joined; i++) {
            own[i] = own_input(&b, &e, SPLIT, RW_F32, i);
            qkv[i] = rw_transpose(b.t, own[i], 1, 2);
        }
        rw_tensor *loss = loss_of(&b, &e, qkv);
        for (int i = 0; i < 2; i++)
            loss = rw_add(b.t, loss, rw_sum(b.t, rw_mul(b.t, qkv[i], qkv[i]), RW_ALL_AXES, false));
        if (joined) cr_expect_eq(outputs_of_backward(&b, step_plan(&b, loss)), 1);
        for (int i = 0; i < 3; i++) rw_require_grad(b.t, qkv[i]);
        backward(&b, loss);
        for (int i = 0; i < 3; i++) {
            const size_t bytes = rw_tensor_bytes(qkv[i]);
            read_gradient(&b, qkv[i], joined ? one : three);
            if (joined) memcpy(part + i * 65536, one, bytes);
            else cr_expect_eq(first_difference(part + i * 65536, three, bytes), -1, "piece %d", i);
        }
        if (joined) read_gradient(&b, whole, one);
        for (int i = 0; i < 3 && !joined; i++) {
            read_gradient(&b, own[i], three);
            for (int64_t r = 0; r < e.batch * e.seq; r++) {
                const size_t n = (size_t)(heads_of(&e, i) * e.d) * 4, row = (size_t)(all_heads(&e, SPLIT) * e.d) * 4;
                const char *const from = one + (size_t)r * row + (size_t)(first_head(&e, SPLIT, i) * e.d) * 4;
                cr_assert_eq(first_difference(from, three + (size_t)r * n, n), -1, "piece %d, row %d", i, (int)r);
            }
        }
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* sum(g * g) of a gradient g, differentiated: attention is then composed of differentiable ops. */
Test(adjacent_gradients, differentiated_again)
{
    static char one[MAX], three[MAX];
    const struct extents e = { 2, 4, 2, 7, 8, true, 0 };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const whole = whole_input(&b, &e, SPLIT, RW_F64, true), *qkv[3], *own[3], *g = NULL, *each[3];
    cut(&b, &e, SPLIT, whole, qkv);
    cr_assert_eq(rw_grad(b.t, loss_of(&b, &e, qkv), &whole, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
    backward(&b, rw_sum(b.t, rw_mul(b.t, g, g), RW_ALL_AXES, false));
    read_gradient(&b, whole, one);
    rw_tape_reset(b.t);
    for (int i = 0; i < 3; i++) {
        own[i] = own_input(&b, &e, SPLIT, RW_F64, i);
        qkv[i] = rw_transpose(b.t, own[i], 1, 2);
    }
    cr_assert_eq(rw_grad(b.t, loss_of(&b, &e, qkv), own, 3, each), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const square = rw_concat(b.t, each, 3, 2);
    backward(&b, rw_sum(b.t, rw_mul(b.t, square, square), RW_ALL_AXES, false));
    for (int i = 0; i < 3; i++) {
        read_gradient(&b, own[i], three);
        for (int64_t r = 0; r < e.batch * e.seq; r++) {
            const size_t n = (size_t)(heads_of(&e, i) * e.d) * 8, row = (size_t)(all_heads(&e, SPLIT) * e.d) * 8;
            const char *const from = one + (size_t)r * row + (size_t)(first_head(&e, SPLIT, i) * e.d) * 8;
            cr_assert_eq(first_difference(from, three + (size_t)r * n, n), -1, "input %d, row %d", i, (int)r);
        }
    }
    fixture_close(&b);
}

/* ---- slices without attention ---- */

/* The slices concatenated in the same order: the gradient is passed through without a copy. In another order: one
   copy. */
Test(adjacent_gradients, split_and_concatenated)
{
    float data[3 * 8 * 4], dy[3 * 8 * 4], g[3 * 8 * 4];
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 96; i++) data[i] = (float)element(i, 1), dy[i] = (float)element(i, 2);
    for (int transposed = 0; transposed < 2; transposed++) {
        rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(3, 8, 4), data, sizeof data)),
                         *part[3];
        cr_assert_eq(rw_split(b.t, x, 1, (int64_t[]){ 2, 5, 1 }, 3, part), RW_OK);
        if (transposed) part[0] = part[2];
        rw_tensor *const y = rw_concat(b.t, part, 3, 1);
        rw_tensor *const w = rw_input(b.t, RW_F32, rw_tensor_shape(y), dy,
                                      (size_t)rw_shape_numel(rw_tensor_shape(y)) * sizeof *dy);
        rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, w), RW_ALL_AXES, false);
        cr_expect_eq(steps_of(&b, step_plan(&b, loss), "concat"), transposed);
        backward(&b, loss);
        read_gradient(&b, x, (char *)g);
        for (int i = 0; i < 96 && !transposed; i++) cr_assert_eq(g[i], dy[i], "element %d", i);
        /* rows of 7: slice 2 twice, at 0 and at 6; slice 0 nowhere */
        for (int i = 0; i < 96 && transposed; i++) {
            const int n = i / 32, r = i / 4 % 8, c = i % 4;
            const float *const row = dy + n * 28;
            const float want = r < 2 ? 0 : r < 7 ? row[(r - 1) * 4 + c] : row[c] + row[24 + c];
            cr_assert_eq(g[i], want, "element %d", i);
        }
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

enum { LONGER, NOT_BESIDE, EXCHANGED, TRANSPOSED, STRETCHED, OTHERS };

/* x [4, 4] sliced, with readers whose gradients are slices of one buffer, but in another arrangement than x's. */
static rw_tensor *read_otherwise(struct fixture *b, rw_tensor *x, int how)
{
    rw_tape *const t = b->t;
    rw_tensor *part[4], *other = rw_input(t, RW_F32, RW_SHAPE(1, 4), NULL, 0);
    const int64_t n = how == STRETCHED ? 4 : how == EXCHANGED ? 1 : 2, sizes[] = { n, n, n, n };
    if (how == TRANSPOSED) x = rw_reshape(t, x, RW_SHAPE(8, 2));
    cr_assert_eq(rw_split(t, x, 0, sizes, how == TRANSPOSED ? 4 : (int)(4 / n), part), RW_OK);
    if (how == LONGER) return rw_concat(t, (rw_tensor *[]){ part[0], part[1], other }, 3, 0);
    if (how == NOT_BESIDE) return rw_concat(t, part, 2, 1);
    if (how == EXCHANGED) return rw_concat(t, (rw_tensor *[]){ part[0], part[1], part[3], part[2] }, 4, 0);
    if (how == TRANSPOSED) {
        part[2] = rw_transpose(t, part[2], 0, 1);
        return rw_concat(t, part, 4, 0);
    }
    rw_tensor *const total = rw_sum(t, part[0], RW_AXES(0), true);
    return rw_concat(t, (rw_tensor *[]){ total, other, other, other }, 4, 0);
}

/* The element of w that is the gradient of x at row r, column c. */
static int element_of(int how, int r, int c)
{
    if (how == NOT_BESIDE) return r % 2 * 8 + r / 2 * 4 + c;
    if (how == EXCHANGED) return (r > 1 ? 5 - r : r) * 4 + c;
    if (how == TRANSPOSED && r == 2) return 8 + c % 2 * 2 + c / 2;
    return how == STRETCHED ? c : r * 4 + c;
}

Test(adjacent_gradients, pieces_of_something_else)
{
    float data[20], g[16];
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 20; i++) data[i] = (float)(i + 1);
    for (int how = 0; how < OTHERS; how++) {
        rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(4, 4), data, 4 * 4 * sizeof *data));
        rw_tensor *const y = read_otherwise(&b, x, how), *const w = rw_input(
                                                             b.t, RW_F32, rw_tensor_shape(y), data,
                                                             (size_t)rw_shape_numel(rw_tensor_shape(y)) * sizeof *data);
        rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, w), RW_ALL_AXES, false);
        cr_expect_eq(steps_of(&b, step_plan(&b, loss), "concat"), 1, "%d", how);
        backward(&b, loss);
        read_gradient(&b, x, (char *)g);
        for (int i = 0; i < 16; i++)
            cr_expect_eq(g[i], data[element_of(how, i / 4, i % 4)], "%d: element %d is %g", how, i, (double)g[i]);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* A buffer with the heads as the outer axis: its gradient's layout is not the one that attention writes. */
Test(adjacent_gradients, heads_outside)
{
    rw_tensor *qkv[3];
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(2, 6, 5, 8), NULL, 0));
    cr_assert_eq(rw_split(b.t, x, 1, (int64_t[]){ 2, 2, 2 }, 3, qkv), RW_OK);
    rw_tensor *const y = rw_attention(b.t, qkv[0], qkv[1], qkv[2], NULL);
    cr_expect_eq(outputs_of_backward(&b, step_plan(&b, rw_sum(b.t, y, RW_ALL_AXES, false))), 3);
    fixture_close(&b);
}

/* Gradients that are differentiated themselves: the whole's is composed of the slices', and depends on them. */
Test(adjacent_gradients, gradients_of_gradients_of_pieces)
{
    float data[8], g[4];
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 8; i++) data[i] = (float)(i + 1);
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(8), data, sizeof data)), *part[2],
                     *first[2];
    cr_assert_eq(rw_split(b.t, x, 0, (int64_t[]){ 4, 4 }, 2, part), RW_OK);
    rw_tensor *const y = rw_concat(b.t, part, 2, 0), *const cube = rw_mul(b.t, rw_mul(b.t, y, y), y);
    rw_tensor *const of[] = { x, part[0] };
    rw_tensor *const total = rw_sum(b.t, cube, RW_ALL_AXES, false);
    cr_assert_eq(rw_grad(b.t, total, of, 2, first), RW_OK, "%s", rw_error_message(b.ctx));
    rw_require_grad(b.t, first[1]);
    backward(&b, rw_sum(b.t, rw_mul(b.t, first[0], first[0]), RW_ALL_AXES, false));
    read_gradient(&b, first[1], (char *)g);
    for (int i = 0; i < 4; i++) cr_expect_eq(g[i], 6 * data[i] * data[i]); /* 2 (3 x^2) */
    fixture_close(&b);
}

/* The result of rw_concat() is a value of its own: gradients of slices flow through it. */
Test(adjacent_gradients, joining_is_a_copy_that_gradients_flow_through)
{
    float data[8], g[4];
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 8; i++) data[i] = (float)(i + 1);
    rw_tensor *part[2];
    cr_assert_eq(rw_split(b.t, rw_input(b.t, RW_F32, RW_SHAPE(8), data, sizeof data), 0, (int64_t[]){ 4, 4 }, 2, part),
                 RW_OK);
    rw_require_grad(b.t, part[0]);
    rw_tensor *const y = rw_concat(b.t, part, 2, 0);
    backward(&b, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false));
    read_gradient(&b, part[0], (char *)g);
    for (int i = 0; i < 4; i++) cr_expect_eq(g[i], 2 * data[i]);
    fixture_close(&b);
}

/* ---- models, memory ---- */

/* Number of concatenations in backward of a small model. */
static int concats_of(enum model_kind kind)
{
    struct fixture b = fixture_open(1, 2);
    struct model m;
    const struct model_config c = { .kind = kind, .layers = 2, .width = 32, .heads = 4,
                                    .kv_heads = kind == MODEL_GPT ? 4 : 2, .vocab = 11, .max_seq = 8, .dropout = 0.1f,
                                    .dtype = RW_F32 };
    int32_t tokens[16];
    for (int i = 0; i < 16; i++) tokens[i] = i % 11;
    cr_assert_eq(model_create(&m, b.ctx, &c), RW_OK);
    rw_tensor *const loss = model_loss(&m, b.t, 2, 8, tokens, tokens);
    const rw_plan *const plan = step_plan(&b, loss);
    /* for qkv's bias, if there is one, the gradient is computed as well */
    cr_expect_eq(steps_of(&b, plan, "attention_backward"), kind == MODEL_GPT ? 0 : 2);
    cr_expect_eq(steps_of(&b, plan, "attention_backward_columns"), kind == MODEL_GPT ? 2 : 0);
    cr_expect_eq(steps_of(&b, plan, "contiguous"), 0);
    const int n = steps_of(&b, plan, "concat");
    fixture_close(&b);
    return n;
}

/* Llama's q and k come from rope, not from the buffer. */
Test(adjacent_gradients, models)
{
    cr_expect_eq(concats_of(MODEL_GPT), 0);
    cr_expect_eq(concats_of(MODEL_LLAMA), 2);
}

/*
 * The gradient of tanh needs its result, a buffer as large as that of q, k and v. While dq, dk and dv are concatenated
 * there are three such buffers; while attention's backward runs, two and two thirds: o and its gradient have a third
 * each. The rest is workspace, and less than a twelfth.
 */
Test(adjacent_gradients, memory)
{
    const struct extents e = { 8, 4, 4, 256, 32, true, 0 };
    const enum form forms[] = { SPLIT, OTHER_ORDER };
    const rw_shape shape = RW_SHAPE(e.batch, e.seq, all_heads(&e, SPLIT) * e.d);
    struct fixture b = fixture_open(1, 1);
    uint64_t live[2];
    for (int i = 0; i < 2; i++) {
        rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, shape, NULL, 0)), *qkv[3];
        cut(&b, &e, forms[i], rw_tanh(b.t, x), qkv);
        rw_tensor *const loss = rw_sum(b.t, rw_attention(b.t, qkv[0], qkv[1], qkv[2], NULL), RW_ALL_AXES, false);
        live[i] = step_plan(&b, loss)->largest_live;
        rw_tape_reset(b.t);
    }
    const uint64_t buffer = (uint64_t)rw_shape_numel(shape) * 4;
    cr_expect_leq(live[0] + buffer / 4, live[1], "%d and %d bytes, the buffer has %d", (int)live[0], (int)live[1],
                  (int)buffer);
    fixture_close(&b);
}
