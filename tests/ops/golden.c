/*
 * Every op compared with PyTorch: values and gradients in float64 for inputs that all types hold exactly (the files of
 * golden/, written by the scripts there). All four types are compared with them.
 *
 * Every element has its own bound: the roundings of the op (op_roundings.h) times the magnitude of the element's terms,
 * which is in the file (compare.h derives the bound), times the measured share of measured_tolerances.c.
 *
 * REWIND_GOLDEN_FILE=conv.golden compares only that file; REWIND_GOLDEN_SHOW=1 prints the share of its bound that each
 * case uses (without --tap, which hides it).
 */
#include "golden/op_table.h"
#include "ops/common/pass_ops.h"
#include "record/context.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS_MAX 2048
#define ROWS_MAX 256
#define BYTES_MAX (3 << 19)
#define OTHERS_MAX 64
#define OPS_MAX 256

struct golden {
    char name[64];
    uint32_t code; /* 0 float32, 1 float64, 2 int32 */
    rw_shape shape;
    const unsigned char *data;
};

/* The largest share of its bound that an op uses. */
struct share {
    char name[64];
    double used;
};

static struct golden tensors[TENSORS_MAX];
static size_t n_tensors;
static bool is_compared[OPS_MAX]; /* whether a case has recorded the op rw_builtin_name(i) */

/* ---- the file ---- */

static const unsigned char *take(void *to, const unsigned char *from, const unsigned char *end, size_t bytes)
{
    cr_assert_leq(bytes, (size_t)(end - from), "the file ends too early");
    memcpy(to, from, bytes);
    return from + bytes;
}

/* Reads the tensors of a file. */
static void load(const char *name)
{
    static unsigned char file[BYTES_MAX];
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", REWIND_GOLDEN, name);
    FILE *const f = fopen(path, "rb");
    cr_assert(f, "cannot open %s", path);
    n_tensors = 0;
    const unsigned char *p = file, *const end = file + fread(file, 1, sizeof file, f);
    cr_assert_lt((size_t)(end - p), sizeof file, "the file is too long");
    fclose(f);
    cr_assert(end - p >= 8 && memcmp(p, "RWGOLD01", 8) == 0, "not a file of golden values");
    for (p += 8; p < end; n_tensors++) {
        cr_assert_lt(n_tensors, TENSORS_MAX);
        struct golden *const g = &tensors[n_tensors];
        uint32_t length, rank;
        *g = (struct golden){ .code = 0 }; /* possibly of another set */
        p = take(&length, p, end, sizeof length);
        cr_assert_lt(length, sizeof g->name);
        p = take(g->name, p, end, length);
        g->name[length] = '\0'; /* clears the rest of a longer name from the file before */
        p = take(&g->code, p, end, sizeof g->code);
        p = take(&rank, p, end, sizeof rank);
        cr_assert_leq(rank, RW_MAX_RANK);
        g->shape.rank = (int32_t)rank;
        p = take(g->shape.dim, p, end, rank * sizeof *g->shape.dim);
        g->data = p;
        const size_t bytes = (size_t)rw_shape_numel(g->shape) * (g->code == 1 ? 8 : 4);
        cr_assert_leq(bytes, (size_t)(end - p), "the file ends too early");
        p += bytes;
    }
}

static const struct golden *find(const char *name, const char *key, const char *suffix)
{
    char full[128];
    snprintf(full, sizeof full, "%s/%s%s", name, key, suffix);
    for (size_t i = 0; i < n_tensors; i++)
        if (strcmp(tensors[i].name, full) == 0) return &tensors[i];
    return NULL;
}

static rw_tensor *input(rw_tape *t, const struct golden *g, rw_dtype dtype)
{
    const int64_t n = rw_shape_numel(g->shape);
    unsigned char *const p = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++)
        cr_assert(number_put(p, dtype, i, number_get(g->data, RW_F32, i)), "%s: %s does not hold element %lld", g->name,
                  rw_dtype_name(dtype), (long long)i);
    rw_tensor *const x = rw_input(t, dtype, g->shape, p, (size_t)n * rw_dtype_size(dtype));
    free(p);
    return x;
}

/* ---- one case ---- */

extern size_t cudasim_live_allocations(void) __attribute__((weak)); /* of the simulated device */

/* Whether shares were measured on this device. Translated PTX uses other math functions. */
static bool is_measured(void)
{
    return test_device() == RW_DEVICE_CPU || (cudasim_live_allocations && !getenv("CUDASIM_PTX"));
}

static double share_of(const char *name, rw_dtype dtype)
{
    return is_measured() ? golden_share(name, dtype) : 1;
}

/*
 * Additional error of a cast of float16 to bfloat16. PyTorch's number was also rounded, from one that was not float16
 * before. Each may be off by half of bfloat16's spacing, and the unrounded values by float16's rounding u, which is
 * counted twice for terms of second order: bfloat16's v has 8 bits, so v^2 is far below u, which has 11.
 */
static double of_cast(rw_dtype dtype, rw_dtype stored, double size)
{
    if (dtype != RW_F16 || stored != RW_BF16) return 0;
    return (unit_roundoff(RW_BF16) + 2 * unit_roundoff(RW_F16)) * size;
}

/* Returns the worst ratio of error to bound. */
static double compare(const struct op_case *c, rw_dtype dtype, rw_tape *t, rw_tensor *x, const char *key,
                      struct roundings r)
{
    const struct golden *const want = find(c->name, key, ""), *const size = find(c->name, key, ".m");
    cr_assert(want && size, "%s: no %s in the file", c->name, key);
    cr_assert(x, "%s in %s: no %s: %s", c->name, rw_dtype_name(dtype), key, rw_error_message(rw_tape_context(t)));
    cr_assert(rw_shape_equal(rw_tensor_shape(x), want->shape), "%s in %s: shape of %s", c->name, rw_dtype_name(dtype),
              key);
    const rw_dtype stored = rw_tensor_dtype(x);
    void *const p = malloc(rw_tensor_bytes(x) + 8);
    cr_assert_eq(rw_read(t, x, p, rw_tensor_bytes(x)), RW_OK, "%s: %s", c->name, rw_error_message(rw_tape_context(t)));
    const double share = share_of(c->name, dtype);
    double worst = 0;
    for (int64_t i = 0; i < rw_shape_numel(want->shape); i++) {
        const double a = number_get(p, stored, i), b = number_get(want->data, RW_F64, i);
        const double m = number_get(size->data, RW_F32, i);
        const double bound = tolerance(dtype, stored, r, b, m) + of_cast(dtype, stored, m);
        const double error = fabs(a - b), most = share * bound;
        cr_expect(error <= most, "%s in %s, %s, element %lld: %.17g, PyTorch %.17g, off by %g, allowed %g", c->name,
                  rw_dtype_name(dtype), key, (long long)i, a, b, error, most);
        if (most > 0) worst = fmax(worst, error / most);
        if (!(error <= most)) break; /* one element suffices */
    }
    free(p);
    return worst;
}

/* Notes which built-in ops the context has recorded. */
static void note_recorded(const rw_context *ctx)
{
    for (size_t i = 0; rw_builtin_name(i); i++)
        for (size_t k = 0; k < ctx->n_ops; k++) is_compared[i] |= !strcmp(ctx->ops[k]->name, rw_builtin_name(i));
}

/* Returns the share of its bound that the case uses. */
static double check(struct op_case *c, void (*count)(struct op_case *c), rw_dtype dtype)
{
    static const char *const xs[] = { "x0", "x1", "x2", "x3" }, *const gs[] = { "g0", "g1", "g2", "g3" };
    struct fixture b = fixture_open(1, 2);
    rw_tensor *base[OP_INPUTS] = { NULL }, *x[OP_INPUTS];
    rw_generator_set(b.ctx, (rw_generator_state){ 5, 11 });
    for (const struct golden *g; c->n < OP_INPUTS && (g = find(c->name, xs[c->n], "")); c->n++) {
        struct op_operand *const o = &c->in[c->n];
        o->shape = g->shape;
        o->shape = op_base_shape(o); /* transposing is its own inverse */
        base[c->n] = rw_require_grad(b.t, input(b.t, g, dtype));
        x[c->n] = op_operand_of(b.t, o, base[c->n]);
    }
    cr_assert(c->n, "%s is not in the file", c->name);
    const struct golden *const i0 = find(c->name, "i0", ""), *const weight = find(c->name, "w", "");
    int32_t *const indexes = i0 ? malloc((size_t)rw_shape_numel(i0->shape) * sizeof *indexes) : NULL;
    if (i0) memcpy(indexes, i0->data, (size_t)rw_shape_numel(i0->shape) * sizeof *indexes);
    if (i0) c->shape = i0->shape;
    c->indexes = indexes;
    if (count) count(c);
    rw_tensor *const y = c->build(b.t, x, c);
    cr_assert(y, "%s in %s: %s", c->name, rw_dtype_name(dtype), rw_error_message(b.ctx));
    rw_tensor *loss = y;
    if (!c->no_sum) loss = rw_sum(b.t, rw_mul(b.t, y, input(b.t, weight, rw_tensor_dtype(y))), RW_ALL_AXES, false);
    rw_require_grad(b.t, y); /* keeps y readable */
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s in %s: %s", c->name, rw_dtype_name(dtype), rw_error_message(b.ctx));
    double worst = compare(c, dtype, b.t, y, "y", c->r[0]);
    for (int i = 0; i < c->n; i++)
        worst = fmax(worst, compare(c, dtype, b.t, rw_gradient(base[i]), gs[i], c->r[1 + i]));
    if (getenv("REWIND_GOLDEN_SHOW"))
        fprintf(stderr, "# %-5s %-26s %.4g of the bound\n", rw_dtype_name(dtype), c->name, worst);
    free(indexes);
    note_recorded(b.ctx);
    fixture_close(&b);
    return worst;
}

/* The used share of an op without a row, over its cases in the file. */
static double *used_of(struct share *shares, const char *name)
{
    const size_t length = strcspn(name, "./");
    struct share *s = shares;
    while (s < shares + OTHERS_MAX && *s->name && (strlen(s->name) != length || memcmp(s->name, name, length))) s++;
    cr_assert_lt(s, shares + OTHERS_MAX);
    snprintf(s->name, sizeof s->name, "%.*s", (int)length, name);
    return &s->used;
}

/* What the table of op_cases.h says about an op without a row: how to record it, and its roundings. */
static bool find_in_cases(const char *name, struct op_case *ret)
{
    const struct op_case *const c = op_case_named(name, strcspn(name, "./"));
    if (!c) return false;
    *ret = *c;
    ret->n = 0;
    for (int i = 0; i < OP_INPUTS; i++) ret->in[i] = (struct op_operand){ .layout = OP_DENSE };
    return true;
}

/* The row of a tensor's case; n_rows if it has none. */
static size_t row_of(const struct golden_set *set, const struct golden *g)
{
    const size_t length = strcspn(g->name, "./");
    size_t i = 0;
    while (i < set->n_rows && (strlen(set->rows[i].name) != length || memcmp(set->rows[i].name, g->name, length))) i++;
    return i;
}

/* Whether a number of the result exceeds the range of float16. */
static bool is_beyond(const char *name, rw_dtype dtype)
{
    const struct golden *const y = find(name, "y", "");
    for (int64_t i = 0; dtype == RW_F16 && i < rw_shape_numel(y->shape); i++)
        if (fabs(number_get(y->data, RW_F64, i)) > 65504) return true;
    return false;
}

/*
 * Checks the used share over the cases of one row. On a machine other than that of measured_tolerances.c it may be less
 * than a tenth of the recorded one. A share far below that means that the bound would detect nothing.
 */
static void expect_used(const char *name, rw_dtype dtype, double used)
{
    if (!is_measured()) return;
    cr_expect(used == 0 || used > 0.001,
              "%s in %s: %.2g of its bound is used: a smaller M, or a share (measured_tolerances.c)", name,
              rw_dtype_name(dtype), used);
}

/* Checks every case of the file that the type holds, and that every row occurs. */
static void check_set(const struct golden_set *set, rw_dtype dtype)
{
    bool ran[ROWS_MAX] = { false };
    double used[ROWS_MAX] = { 0 };
    struct share others[OTHERS_MAX] = { { "", 0 } };
    cr_assert_leq(set->n_rows, ROWS_MAX);
    load(set->file);
    for (size_t i = 0; i < n_tensors; i++) {
        const char *const key = strchr(tensors[i].name, '/');
        if (!key || strcmp(key, "/x0") != 0) continue;
        const size_t r = row_of(set, &tensors[i]);
        const bool has_row = r < set->n_rows;
        struct op_case c;
        if (has_row) c = set->rows[r].c;
        else cr_assert(find_in_cases(tensors[i].name, &c), "%s has neither a row nor a case", tensors[i].name);
        snprintf(c.name, sizeof c.name, "%.*s", (int)(key - tensors[i].name), tensors[i].name);
        if (is_beyond(c.name, dtype)) continue;
        double *const most = has_row ? &used[r] : used_of(others, tensors[i].name);
        *most = fmax(*most, check(&c, has_row ? set->rows[r].count : c.count, dtype));
        if (has_row) ran[r] = true;
    }
    for (size_t i = 0; i < set->n_rows; i++) {
        cr_assert(ran[i], "%s is not in the file", set->rows[i].name);
        expect_used(set->rows[i].name, dtype, used[i]);
    }
    for (size_t i = 0; i < OTHERS_MAX && *others[i].name; i++) expect_used(others[i].name, dtype, others[i].used);
}

/* The rows of a file: none if its cases are those of op_cases.h. */
static struct golden_set set_of(const char *file)
{
    static const struct golden_set *const sets[] = {
#define GOLDEN_ROWS(set) &set,
#include "test_tables.h"
    };
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (!strcmp(sets[i]->file, file)) return *sets[i];
    return (struct golden_set){ .file = file };
}

/* Ops that no case records, and the reason. */
static const char *const without_numbers[][2] = {
    { "argmax", "indexes, exact: ops/definitions" },
    { "argmin", "indexes, exact: ops/definitions" },
    { "assign", "an effect: run/effects" },
    { "batchnorm_average", "an effect: ops/batchnorm, ops/norm_statistics_accuracy" },
    { "batchnorm_update", "an effect: ops/batchnorm, ops/norm_statistics_accuracy" },
    { "custom_grad", "the caller's rule: autodiff/custom_grad" },
    { "dequantize", "exact: ops/float8, ops/definitions" },
    { "moe_balance", "an effect: ops/moe" },
    { "moe_count", "an effect: ops/moe" },
    { "moe_silu_weigh", "moe_swiglu_weigh without up: ops/moe, ops/definitions" },
    { "quantize", "every code: ops/float8, ops/definitions" },
    { "straight_through", "the caller's forward: autodiff/custom_grad, ops/definitions" },
};

static void expect_every_op(void)
{
    for (size_t i = 0; rw_builtin_name(i); i++) {
        const char *const name = rw_builtin_name(i), *reason = NULL;
        for (size_t k = 0; k < sizeof without_numbers / sizeof *without_numbers; k++)
            if (!strcmp(without_numbers[k][0], name)) reason = without_numbers[k][1];
        cr_expect(is_compared[i] != (reason != NULL), "%s: %s", name,
                  reason ? "has golden values and a reason to have none"
                         : "needs golden values (tests/golden/make_NAME.py), or a reason");
    }
}

/* Checks every file of golden values of ops, or the one that REWIND_GOLDEN_FILE names, and that every op has some. */
static void check_all(rw_dtype dtype)
{
    const char *const only = getenv("REWIND_GOLDEN_FILE");
    DIR *const folder = opendir(REWIND_GOLDEN);
    bool checked = false;
    cr_assert(folder, "cannot open %s", REWIND_GOLDEN);
    for (const struct dirent *e; (e = readdir(folder));) {
        const char *const end = strstr(e->d_name, ".golden");
        if (!end || strlen(end) != 7 || !strcmp(e->d_name, "models.golden") || (only && strcmp(e->d_name, only)))
            continue;
        const struct golden_set set = set_of(e->d_name);
        check_set(&set, dtype);
        checked = true;
    }
    closedir(folder);
    cr_assert(checked, "no file %s", only);
    if (!only && dtype == RW_F64) expect_every_op();
}

Test(golden, float64)
{
    check_all(RW_F64);
}

Test(golden, float32)
{
    check_all(RW_F32);
}

Test(golden, bfloat16)
{
    check_all(RW_BF16);
}

Test(golden, float16)
{
    check_all(RW_F16);
}
