/*
 * Virtual concatenation: a norm that reads the inputs of concatenations is bit-identical to one that reads the whole,
 * under every policy, and so are the gradients of the whole itself. The whole is neither computed nor kept, so the
 * memory of layers that each read all earlier results grows linearly. The last tests are of cases in which the whole is
 * read after all.
 *
 * A concatenation that has a name is computed: all others are compared with it.
 */
#include "support/support.h"

#include "ops/norm/batch_group_instance_norm.h"
#include "ops/shape/virtual_concat.h"
#include "record/context.h"
#include "record/tape.h"

#include <rewind/conv.h>
#include <rewind/custom_grad.h>
#include <rewind/norm.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };

#define PIECES 3

struct form {
    int64_t n, side, widths[PIECES]; /* side 0: [n, c] */
    bool volumes;                    /* with one more axis */
    bool relu, adds, evaluates;
    bool raised; /* in a recipe: 16-bit inputs are cast to float32 */
    bool whole;  /* the concatenations have names */
    int groups;  /* of a group_norm; -1: an instance_norm; 0: a batchnorm */
};

struct layers {
    struct fixture b;
    rw_tensor *leaf[PIECES], *x[PIECES]; /* x[i] concatenates the inputs up to i */
    rw_tensor *y[PIECES];
};

static rw_tensor *vector(struct fixture *b, const char *kind, int i, rw_dtype dtype, int64_t c)
{
    char name[32];
    snprintf(name, sizeof name, "%s.%d", kind, i);
    rw_tensor *const v = rw_param(b->ctx, name, dtype, RW_SHAPE(c));
    rw_init_normal(v, 1, 0.3);
    return v;
}

/* Channels last, as convolutions leave their results. */
static rw_tensor *piece(struct layers *l, const struct form *f, rw_dtype dtype, const char *kind, int i, int64_t c)
{
    char name[32];
    snprintf(name, sizeof name, "%s.%d", kind, i);
    const rw_shape shape = !f->side     ? RW_SHAPE(f->n, c)
                           : f->volumes ? RW_SHAPE(f->n, f->side, 2, f->side + 1, c)
                                        : RW_SHAPE(f->n, f->side, f->side + 1, c);
    rw_tensor *const leaf = rw_param(l->b.ctx, name, dtype, shape);
    rw_init_normal(leaf, 0.5, 1 + i);
    if (*kind == 'x') l->leaf[i] = leaf;
    const int last = shape.rank - 1, turn[] = { 0, last, 1, 2, 3 };
    return rw_scale(l->b.t, f->side ? rw_permute(l->b.t, leaf, turn) : leaf, 0.5);
}

/* The norm of the form, of x[i]. */
static rw_tensor *norm(struct layers *l, const struct form *f, int i, int64_t c)
{
    const rw_dtype dtype = rw_tensor_dtype(l->x[i]), wide = dtype == RW_F64 ? RW_F64 : RW_F32;
    rw_tensor *const w = vector(&l->b, "w", i, dtype, c), *const bias = vector(&l->b, "b", i, dtype, c);
    rw_tensor *mean = RW_NONE, *var = RW_NONE;
    if (f->evaluates) {
        mean = rw_buffer(l->b.ctx, "mean", wide, RW_SHAPE(c)), var = rw_buffer(l->b.ctx, "var", wide, RW_SHAPE(c));
        rw_init_constant(mean, 0.4), rw_init_constant(var, 2);
    }
    rw_tensor *const more = f->adds ? piece(l, f, dtype, "more", i, c) : RW_NONE;
    ckpt_begin(l->b.t, "bn");
    if (f->raised) rw_recipe_begin(l->b.t, &(rw_recipe){ .kind = RW_RECIPE_BF16 });
    const rw_batchnorm_params params = { .relu = f->relu, .add = more, .evaluate = f->evaluates };
    rw_tensor *const y =
        f->groups > 0   ? rw_group_norm(l->b.t, l->x[i], f->groups, w, bias, 1e-5)
        : f->groups < 0 ? rw_instance_norm(l->b.t, l->x[i], w, bias, 1e-5)
                        : rw_batchnorm(l->b.t, l->x[i], w, bias, mean, var, &params);
    if (f->raised) rw_recipe_end(l->b.t);
    ckpt_end(l->b.t);
    cr_assert_not_null(y, "%s", rw_error_message(l->b.ctx));
    return y;
}

/* x0, x1 = concat(x0, .), x2 = concat(x1, .), and a batchnorm of each; for evaluations only of the last one. */
static struct layers layers_open(const struct form *f, rw_dtype dtype, int threads, const char *policy)
{
    struct layers l = { .b = fixture_open(21, threads) };
    int64_t c = 0;
    cr_assert_eq(ckpt_set_policy(l.b.t, policy), RW_OK, "%s", rw_error_message(l.b.ctx));
    for (int i = 0; i < PIECES; i++) {
        ckpt_begin(l.b.t, "block");
        rw_tensor *const made = piece(&l, f, dtype, "x", i, f->widths[i]);
        l.x[i] = i ? rw_concat(l.b.t, (rw_tensor *const[]){ l.x[i - 1], made }, 2, 1) : made;
        cr_assert_not_null(l.x[i], "%s", rw_error_message(l.b.ctx));
        if (i && f->whole) ckpt_name(l.b.t, l.x[i], "whole");
        ckpt_end(l.b.t);
        c += f->widths[i];
        ckpt_begin(l.b.t, "block");
        l.y[i] = !c || (f->evaluates && i < PIECES - 1) ? NULL : norm(&l, f, i, c);
        ckpt_end(l.b.t);
    }
    return l;
}

static rw_tensor *loss_of(struct layers *l)
{
    rw_tape *const t = l->b.t;
    rw_tensor *loss = NULL;
    for (int i = 0; i < PIECES; i++) {
        if (!l->y[i]) continue;
        rw_tensor *const each = rw_sum(t, rw_add(t, l->y[i], rw_mul(t, l->y[i], rw_tanh(t, l->y[i]))), RW_ALL_AXES,
                                       false);
        loss = loss ? rw_add(t, loss, each) : each;
    }
    return loss;
}

/* Number of inputs that the last norm reads. */
static int64_t pieces_read(const rw_tape *t)
{
    for (size_t i = t->n_nodes; i-- > 0;) {
        const char *const name = t->ctx->ops[t->nodes[i].op]->name;
        if (!strcmp(name, "batchnorm") || !strcmp(name, "batchnorm_eval") || !strcmp(name, "group_norm") ||
            !strcmp(name, "instance_norm"))
            return ((const struct rw_groups_attrs *)(const void *)(t->attrs + t->nodes[i].attrs))->more + 1;
    }
    return 0;
}

/* All gradients, and those of the concatenations themselves. */
static unsigned char *gradients_of(const struct form *f, rw_dtype dtype, int threads, const char *policy, size_t *ret)
{
    struct layers l = layers_open(f, dtype, threads, policy);
    cr_assert_eq(pieces_read(l.b.t), f->whole ? 1 : PIECES);
    for (int i = 1; i < PIECES; i++) rw_require_grad(l.b.t, l.x[i]);
    cr_assert_eq(rw_backward(l.b.t, loss_of(&l)), RW_OK, "%s, %s", policy, rw_error_message(l.b.ctx));
    size_t n;
    unsigned char *all = all_gradients(l.b.ctx, &n);
    for (int i = 1; i < PIECES; i++) {
        const size_t bytes = rw_tensor_bytes(l.x[i]);
        all = realloc(all, n + bytes + 1);
        cr_assert_not_null(rw_gradient(l.x[i]), "the gradient of x%d", i);
        cr_assert_eq(rw_read(l.b.t, rw_gradient(l.x[i]), all + n, bytes), RW_OK, "%s", rw_error_message(l.b.ctx));
        n += bytes;
    }
    fixture_close(&l.b);
    *ret = n;
    return all;
}

static const struct form forms[] = {
    { .n = 3, .side = 5, .widths = { 19, 8, 33 } },
    { .n = 2, .side = 40, .widths = { 64, 32, 32 }, .relu = true },
    { .n = 9, .widths = { 16, 1, 5 }, .relu = true, .adds = true },
    { .n = 2, .side = 3, .widths = { 7, 0, 2 }, .adds = true },
    { .n = 4, .side = 6, .widths = { 3, 40, 17 }, .relu = true, .evaluates = true },
    { .n = 4, .side = 6, .widths = { 0, 5, 16 }, .adds = true, .evaluates = true },
    { .n = 2, .side = 7, .widths = { 20, 4, 9 }, .relu = true, .raised = true },
    { .n = 2, .side = 9, .widths = { 4, 8, 36 }, .groups = 4 },
    { .n = 2, .side = 18, .widths = { 32, 64, 16 }, .groups = 16 },
    { .n = 2, .side = 6, .widths = { 8, 0, 16 }, .groups = 1, .raised = true },
    { .n = 3, .side = 5, .widths = { 5, 17, 1 }, .groups = -1 },
    { .n = 2, .side = 5, .widths = { 19, 8, 6 }, .relu = true, .adds = true, .volumes = true },
    { .n = 2, .side = 4, .widths = { 4, 20, 8 }, .groups = 4, .volumes = true },
};

Test(ops_joined, a_norm_of_pieces_has_the_bytes_of_that_of_the_whole)
{
    static const char *const policies[] = { "none", "full", "uniform:2", "discard:bn", "ops:scale" };
    const bool all = test_device() == RW_DEVICE_CPU || getenv("REWIND_TEST_LARGE");
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
            struct form f = forms[i];
            size_t n, more;
            f.whole = true;
            unsigned char *const want = gradients_of(&f, types[d], 1, "none", &n);
            f.whole = false;
            for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
                if (!all && p && p != 1 + (i + d) % 4) continue; /* simulated: besides "none" one in turn */
                unsigned char *const got = gradients_of(&f, types[d], (int)p % 3 + 1, policies[p], &more);
                cr_assert_eq(n, more);
                cr_expect_eq(first_difference(want, got, n), -1, "form %zu, %s, %s", i, rw_dtype_name(types[d]),
                             policies[p]);
                free(got);
            }
            free(want);
        }
}

Test(ops_joined, results_and_verification)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        unsigned char *y[2];
        size_t bytes = 0;
        for (int whole = 0; whole < 2; whole++) {
            struct form f = forms[i];
            f.whole = whole;
            struct layers l = layers_open(&f, RW_F32, 2, "full");
            rw_tensor *const last = l.y[PIECES - 1];
            bytes = rw_tensor_bytes(last);
            y[whole] = malloc(bytes);
            cr_expect_eq(ckpt_verify(l.b.t, loss_of(&l), NULL), RW_OK, "form %zu: %s", i, rw_error_message(l.b.ctx));
            cr_assert_eq(rw_read(l.b.t, last, y[whole], bytes), RW_OK, "%s", rw_error_message(l.b.ctx));
            fixture_close(&l.b);
        }
        cr_expect_eq(first_difference(y[0], y[1], bytes), -1, "form %zu", i);
        free(y[0]), free(y[1]);
    }
}

/* The gradient with respect to the first input of the squares of the gradients of x2 and of the inputs. */
static double *again(bool whole, int groups, size_t *ret)
{
    struct form f = { .n = 3, .side = 2, .widths = { 2, 4, 2 }, .relu = true, .whole = whole, .groups = groups };
    struct layers l = layers_open(&f, RW_F64, 1, "none");
    rw_tape *const t = l.b.t;
    rw_tensor *of[] = { l.x[PIECES - 1], l.leaf[0], l.leaf[2] }, *dx[3];
    cr_assert_eq(rw_grad(t, loss_of(&l), of, 3, dx), RW_OK, "%s", rw_error_message(l.b.ctx));
    rw_tensor *sum = rw_sum(t, rw_mul(t, dx[0], dx[0]), RW_ALL_AXES, false);
    for (int i = 1; i < 3; i++) sum = rw_add(t, sum, rw_sum(t, rw_mul(t, dx[i], dx[i]), RW_ALL_AXES, false));
    cr_assert_eq(rw_backward(t, sum), RW_OK, "%s", rw_error_message(l.b.ctx));
    double *const got = malloc(rw_tensor_bytes(l.leaf[0]));
    cr_assert_eq(rw_read(t, rw_gradient(l.leaf[0]), got, rw_tensor_bytes(l.leaf[0])), RW_OK);
    *ret = rw_tensor_bytes(l.leaf[0]) / sizeof *got;
    fixture_close(&l.b);
    return got;
}

Test(ops_joined, second_gradients)
{
    for (int groups = -1; groups < 3; groups++) {
        size_t n;
        double *const want = again(true, groups, &n), *const got = again(false, groups, &n);
        double most = 0;
        for (size_t i = 0; i < n; i++) {
            cr_expect_float_eq(got[i], want[i], 1e-10, "%d groups, element %zu: %g, not %g", groups, i, got[i],
                               want[i]);
            most = fmax(most, fabs(want[i]));
        }
        cr_expect_gt(most, 1e-3);
        free(want), free(got);
    }
}

/* Requested alone, a concatenation whose inputs are read by others has the same gradient as together with its
   inputs. */
Test(ops_joined, gradients_of_a_concatenation_alone)
{
    const struct form f = { .n = 3, .side = 2, .widths = { 2, 4, 2 }, .relu = true };
    for (int i = 1; i < PIECES; i++) {
        struct layers l = layers_open(&f, RW_F64, 1, "none");
        rw_tensor *const loss = loss_of(&l), *of[] = { l.x[i], l.leaf[0] }, *alone, *both[2];
        double got[3 * 8 * 2 * 3], want[sizeof got / sizeof *got];
        const size_t bytes = rw_tensor_bytes(l.x[i]);
        cr_assert_eq(rw_grad(l.b.t, loss, of, 1, &alone), RW_OK, "%s", rw_error_message(l.b.ctx));
        cr_assert_eq(rw_grad(l.b.t, loss, of, 2, both), RW_OK, "%s", rw_error_message(l.b.ctx));
        cr_assert(alone && bytes <= sizeof got, "concatenation %d", i);
        cr_assert_eq(rw_read(l.b.t, alone, got, bytes) | rw_read(l.b.t, both[0], want, bytes), RW_OK);
        cr_expect_eq(memcmp(got, want, bytes), 0, "concatenation %d", i);
        fixture_close(&l.b);
    }
}

/* ---- a value whose gradient bypasses it ---- */

/* The reader of the concatenation's inputs, and the view of concat(a, b) that is one of the inputs. */
enum reader { BATCHNORM, EVALUATED, GROUP_NORM, INSTANCE_NORM, CONVOLUTION, READERS };
enum view { STRAIGHT_THROUGH, CUSTOM_GRADIENT, DETACHED, PLAIN, VIEWS };
enum { A, B, C, Z, LEAVES };

struct elsewhere {
    struct fixture b;
    rw_tensor *leaf[LEAVES], *inner, *both, *loss;
};

static rw_status twice_to_z(rw_grad_call *g, const void *data)
{
    return rw_grad_set(g, 1, rw_scale(rw_grad_tape(g), rw_grad_upstream(g, 0), 2));
}

static rw_tensor *view_of(rw_tape *t, enum view view, rw_tensor *x, rw_tensor *z)
{
    switch (view) {
    case STRAIGHT_THROUGH: return rw_straight_through(t, x, z);
    case CUSTOM_GRADIENT: return rw_custom_grad(t, x, &z, 1, twice_to_z, NULL, 0);
    case DETACHED: return rw_detach(t, x);
    default: return x;
    }
}

/* Records the reader of x. */
static rw_tensor *read_by(struct fixture *b, enum reader reader, rw_tensor *x)
{
    enum { CHANNELS = 8 };
    rw_tensor *const mean = rw_buffer(b->ctx, "mean", RW_F64, RW_SHAPE(CHANNELS));
    rw_tensor *const var = rw_buffer(b->ctx, "var", RW_F64, RW_SHAPE(CHANNELS));
    rw_init_constant(var, 2);
    rw_tensor *const w = rw_param(b->ctx, "w", RW_F64, RW_SHAPE(4, CHANNELS, 1, 1));
    rw_init_normal(w, 0, 1);
    switch (reader) {
    case EVALUATED:
        return rw_batchnorm(b->t, x, RW_NONE, RW_NONE, mean, var, &(rw_batchnorm_params){ .evaluate = true });
    case GROUP_NORM: return rw_group_norm(b->t, x, 2, RW_NONE, RW_NONE, 0);
    case INSTANCE_NORM: return rw_instance_norm(b->t, x, RW_NONE, RW_NONE, 0);
    case CONVOLUTION: return rw_conv2d(b->t, x, w, RW_NONE, NULL);
    default: return rw_batchnorm(b->t, x, RW_NONE, RW_NONE, RW_NONE, RW_NONE, NULL);
    }
}

/* both = concat(view of concat(a, b), c), read by its inputs or, with a name, as a whole. */
static struct elsewhere elsewhere_open(enum reader reader, enum view view, bool whole)
{
    struct elsewhere e = { .b = fixture_open(5, 1) };
    static const int channels[] = { 2, 2, 4, 4 }, turn[] = { 0, 3, 1, 2 };
    rw_tape *const t = e.b.t;
    rw_tensor *x[LEAVES];
    for (int i = 0; i < LEAVES; i++) {
        const char name[] = { (char)('a' + i), 0 };
        e.leaf[i] = rw_param(e.b.ctx, name, RW_F64, RW_SHAPE(3, 2, 3, channels[i]));
        rw_init_normal(e.leaf[i], 0, 1);
        x[i] = rw_permute(t, e.leaf[i], turn);
    }
    e.inner = view_of(t, view, rw_concat(t, x, 2, 1), x[Z]);
    e.both = rw_concat(t, (rw_tensor *const[]){ e.inner, x[C] }, 2, 1);
    if (whole) ckpt_name(t, e.both, "whole");
    rw_tensor *const y = read_by(&e.b, reader, e.both);
    cr_assert_not_null(y, "%s", rw_error_message(e.b.ctx));
    e.loss = rw_sum(t, rw_mul(t, rw_mul(t, y, y), y), RW_ALL_AXES, false);
    return e;
}

/* Recorded gradients of that set of leaves: in the order of all leaves, NULL if the loss does not depend on one. */
static void gradients_alone(enum reader reader, enum view view, bool whole, unsigned set, double **ret)
{
    struct elsewhere e = elsewhere_open(reader, view, whole);
    rw_tensor *of[LEAVES], *dx[LEAVES];
    size_t n = 0, k = 0;
    for (int i = 0; i < LEAVES; i++)
        if (set & 1u << i) of[n++] = e.leaf[i];
    cr_assert_eq(rw_grad(e.b.t, e.loss, of, n, dx), RW_OK, "reader %d, view %d, %x: %s", reader, view, set,
                 rw_error_message(e.b.ctx));
    for (int i = 0; i < LEAVES; i++) {
        ret[i] = NULL;
        if (!(set & 1u << i) || !dx[k++]) continue;
        const size_t bytes = rw_tensor_bytes(e.leaf[i]);
        ret[i] = malloc(bytes);
        cr_assert_eq(rw_read(e.b.t, dx[k - 1], ret[i], bytes), RW_OK, "%s", rw_error_message(e.b.ctx));
    }
    fixture_close(&e.b);
}

static bool depends_on(enum view view, int leaf)
{
    if (leaf == C) return true;
    return leaf == Z ? view <= CUSTOM_GRADIENT : view == PLAIN;
}

/* Whichever gradients are requested, each exists and is the same as if the whole were read. */
static void same_for_each_set(enum reader reader, enum view view)
{
    double *all[LEAVES];
    gradients_alone(reader, view, true, (1u << LEAVES) - 1, all);
    for (unsigned set = 1; set < 1u << LEAVES; set++) {
        double *got[LEAVES];
        gradients_alone(reader, view, false, set, got);
        for (int i = 0; i < LEAVES; i++) {
            const size_t bytes = sizeof(double) * 3 * 2 * 3 * (i < C ? 2 : 4);
            const bool has = (set & 1u << i) && depends_on(view, i);
            cr_expect_eq(got[i] != NULL, has, "reader %d, view %d, set %x: leaf %d", reader, view, set, i);
            if (has && got[i])
                cr_expect(all[i] && !memcmp(all[i], got[i], bytes), "reader %d, view %d, set %x: leaf %d", reader, view,
                          set, i);
            free(got[i]);
        }
    }
    for (int i = 0; i < LEAVES; i++) free(all[i]);
}

Test(ops_joined, each_gradient_alone_after_a_view_with_a_gradient_of_its_own)
{
    for (int reader = 0; reader < READERS; reader++)
        for (int view = 0; view < VIEWS; view++) same_for_each_set(reader, view);
}

/* The same in a step: a gradient to which nothing flows stays clear. */
Test(ops_joined, a_step_after_a_view_with_a_gradient_of_its_own)
{
    for (int reader = 0; reader < READERS; reader++)
        for (int view = 0; view < VIEWS; view++) {
            unsigned char *of[2];
            size_t bytes;
            for (int whole = 0; whole < 2; whole++) {
                struct elsewhere e = elsewhere_open(reader, view, whole);
                cr_assert_eq(ckpt_set_policy(e.b.t, "full"), RW_OK);
                cr_expect_eq(ckpt_verify(e.b.t, e.loss, NULL), RW_OK, "%s", rw_error_message(e.b.ctx));
                cr_assert_eq(rw_backward(e.b.t, e.loss), RW_OK, "%s", rw_error_message(e.b.ctx));
                of[whole] = all_gradients(e.b.ctx, &bytes);
                fixture_close(&e.b);
            }
            cr_expect_eq(first_difference(of[0], of[1], bytes), -1, "reader %d, view %d", reader, view);
            free(of[0]), free(of[1]);
        }
}

/*
 * A stage of dense layers: each reads all earlier results, normalizes them and computes more channels. Kept are the
 * input of the stage and the result of each layer except the last; and for each the normalized whole, which the
 * weight's gradient reads, with two numbers for each channel. If batch norms are recomputed, these are not kept, and
 * the rest grows linearly with the number of layers. Dropout after a layer, whose mask is drawn again, does not change
 * that.
 */
static void kept_by_stage(int layers, bool drops, const char *policy)
{
    enum { N = 1, SIDE = 2, FIRST = 128, GROWTH = 128 }; /* buffers are multiples of 512 bytes */
    struct fixture b = fixture_open(3, 1);
    rw_memory memory;
    rw_tensor *const given = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(N, SIDE, SIDE, FIRST));
    rw_tensor *x = rw_scale(b.t, rw_permute(b.t, given, (const int[]){ 0, 3, 1, 2 }), 0.5);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    for (int i = 0; i < layers; i++) {
        const int64_t c = FIRST + GROWTH * i;
        char name[16];
        snprintf(name, sizeof name, "conv%d", i);
        rw_tensor *const w = rw_param(b.ctx, name, RW_F32, RW_SHAPE(GROWTH, c, 1, 1));
        rw_tensor *const scale = vector(&b, "w", i, RW_F32, c), *const bias = vector(&b, "b", i, RW_F32, c);
        rw_init_normal(w, 0, 0.05);
        ckpt_begin(b.t, "bn");
        rw_tensor *const y = rw_batchnorm(b.t, x, scale, bias, RW_NONE, RW_NONE,
                                          &(rw_batchnorm_params){ .relu = true });
        ckpt_end(b.t);
        rw_tensor *const more = rw_dropout(b.t, rw_conv2d(b.t, y, w, RW_NONE, NULL), drops ? 0.2 : 0);
        x = rw_concat(b.t, (rw_tensor *const[]){ x, more }, 2, 1);
    }
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, x, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_memory_stats(b.ctx, &memory), RW_OK);
    const size_t each = (size_t)N * SIDE * SIDE * 4;
    size_t want = each * FIRST;
    for (int i = 0; i < layers; i++) {
        const size_t c = FIRST + (size_t)GROWTH * (size_t)i;
        want += i + 1 < layers ? each * GROWTH : 0; /* the last one is not read again */
        if (!strcmp(policy, "none")) want += each * c + 2 * 4 * c;
    }
    cr_expect_eq(memory.kept, want, "%d layers%s, %s: %zu bytes, not %zu", layers, drops ? " with dropout" : "", policy,
                 memory.kept, want);
    fixture_close(&b);
}

Test(ops_joined, layers_of_a_stage_keep_their_growth)
{
    static const int layers[] = { 1, 2, 5, 24, 48 };
    const size_t n = test_device() == RW_DEVICE_CPU ? sizeof layers / sizeof *layers : 3;
    for (size_t i = 0; i < n; i++)
        for (int drops = 0; drops < 2; drops++) {
            kept_by_stage(layers[i], drops, "none");
            kept_by_stage(layers[i], drops, "discard:bn");
        }
}

/* Number of inputs that a batchnorm reads if `join` concatenates three tensors, of which one requires a gradient. */
static int64_t read_of(rw_tensor *join(rw_tape *t, rw_tensor **x), bool requires)
{
    struct fixture b = fixture_open(8, 1);
    rw_tensor *x[3];
    for (int i = 0; i < 3; i++) {
        x[i] = rw_input(b.t, RW_F32, RW_SHAPE(4, 6), NULL, 0);
        if (!i && requires) x[i] = rw_require_grad(b.t, x[i]);
    }
    rw_tensor *const whole = join(b.t, x);
    cr_assert_not_null(whole, "%s", rw_error_message(b.ctx));
    const int64_t c = rw_tensor_shape(whole).dim[1];
    rw_tensor *const v = rw_input(b.t, RW_F32, RW_SHAPE(c), NULL, 0);
    cr_assert_not_null(rw_batchnorm(b.t, whole, v, v, RW_NONE, RW_NONE, NULL), "%s", rw_error_message(b.ctx));
    const int64_t n = pieces_read(b.t);
    fixture_close(&b);
    return n;
}

static rw_tensor *side_by_side(rw_tape *t, rw_tensor **x)
{
    return rw_concat(t, x, 3, 1);
}

static rw_tensor *nested(rw_tape *t, rw_tensor **x)
{
    rw_tensor *const inner = rw_concat(t, x + 1, 2, -1);
    return rw_concat(t, (rw_tensor *const[]){ x[0], rw_concat(t, &inner, 1, 1) }, 2, 1);
}

static rw_tensor *with_a_name_inside(rw_tape *t, rw_tensor **x)
{
    rw_tensor *const inner = ckpt_name(t, rw_concat(t, x + 1, 2, 1), "kept");
    return rw_concat(t, (rw_tensor *const[]){ x[0], inner }, 2, 1);
}

static rw_tensor *with_a_name(rw_tape *t, rw_tensor **x)
{
    return ckpt_name(t, side_by_side(t, x), "kept");
}

static rw_tensor *saved(rw_tape *t, rw_tensor **x)
{
    return ckpt_keep(t, side_by_side(t, x));
}

static rw_tensor *remade(rw_tape *t, rw_tensor **x)
{
    return ckpt_recompute(t, side_by_side(t, x));
}

static rw_tensor *along_the_batch(rw_tape *t, rw_tensor **x)
{
    return rw_concat(t, x, 3, 0);
}

static rw_tensor *twice(rw_tape *t, rw_tensor **x)
{
    return rw_concat(t, (rw_tensor *const[]){ x[0], x[1], x[0] }, 3, 1);
}

static rw_tensor *of_columns(rw_tape *t, rw_tensor **x)
{
    return rw_concat(t, (rw_tensor *const[]){ x[0], rw_slice(t, x[1], 1, 2, 5) }, 2, 1);
}

static rw_tensor *of_columns_inside(rw_tape *t, rw_tensor **x)
{
    return rw_concat(t, (rw_tensor *const[]){ of_columns(t, x), x[2] }, 2, 1);
}

static rw_tensor *a_part(rw_tape *t, rw_tensor **x)
{
    return rw_slice(t, side_by_side(t, x), 0, 1, 4);
}

static rw_tensor *of_one(rw_tape *t, rw_tensor **x)
{
    return rw_concat(t, x, 1, 1);
}

static rw_tensor *detached(rw_tape *t, rw_tensor **x)
{
    return rw_detach(t, side_by_side(t, x));
}

static rw_tensor *of_many(rw_tape *t, rw_tensor **x, int n)
{
    rw_tensor *all = x[0];
    for (int i = 1; i < n; i++) all = rw_concat(t, (rw_tensor *const[]){ all, rw_scale(t, x[1], i) }, 2, 1);
    return all;
}

static rw_tensor *most(rw_tape *t, rw_tensor **x)
{
    return of_many(t, x, RW_PIECES_MAX);
}

static rw_tensor *too_many(rw_tape *t, rw_tensor **x)
{
    return of_many(t, x, RW_PIECES_MAX + 1);
}

Test(ops_joined, a_concatenation_read_by_its_inputs)
{
    cr_expect_eq(read_of(side_by_side, true), 3);
    cr_expect_eq(read_of(nested, true), 3);
    cr_expect_eq(read_of(with_a_name_inside, true), 2);
    cr_expect_eq(read_of(most, true), RW_PIECES_MAX);
    cr_expect_eq(read_of(too_many, true), 1);
    cr_expect_eq(read_of(side_by_side, false), 1);
    cr_expect_eq(read_of(with_a_name, true), 1);
    cr_expect_eq(read_of(saved, true), 1);
    cr_expect_eq(read_of(remade, true), 1);
    cr_expect_eq(read_of(along_the_batch, true), 1);
    cr_expect_eq(read_of(twice, true), 1);
    cr_expect_eq(read_of(of_columns, true), 1);
    cr_expect_eq(read_of(of_columns_inside, true), 2);
    cr_expect_eq(read_of(a_part, true), 1);
    cr_expect_eq(read_of(of_one, true), 1);
    cr_expect_eq(read_of(detached, true), 1);
}
