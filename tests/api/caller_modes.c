/*
 * Law 1 outside of kernels: results do not depend on the floating-point mode of the threads that call the library. One
 * program uses everything that computes numbers outside of kernels: initializers, averages, each optimizer, schedules,
 * thresholds of dropout, constants of ops, quantized weights, clipping, the scaler, routers, plans and their times,
 * texts and files. It must give the same bytes under each mode, whether the mode is set before the first context,
 * between any two calls, or by a caller's kernel and rule. Each call must leave the mode unchanged.
 */
#include "support/cases/functions.h"
#include "support/mode_register.h"
#include "support/support.h"

#include <rewind/rewind.h>

#include <criterion/criterion.h>
#include <dirent.h>
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- modes ---- */

enum { MODES = 20 }; /* four roundings, each with: nothing, results or operands flushed, both, all exceptions trapped */

static void set_mode(int mode)
{
    static const int rounding[] = { FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO };
    mode_reset();
    if (mode < 0) return;
    fesetround(rounding[mode % 4]);
    static const unsigned bits[] = MODE_REGISTER_BITS;
    if (mode / 4 < 4) mode_register_add(bits[mode / 4]);
    if (mode / 4 == 4) feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT);
}

/* The part of the mode that a caller can observe. */
struct seen {
    int rounding, trapped, raised;
    unsigned mode_register;
};

static struct seen seen(void)
{
    return (struct seen){ fegetround(), fegetexcept(), fetestexcept(FE_ALL_EXCEPT), mode_register() };
}

static int mode = -1; /* mode of the calls; -1: the default of C */
static int inside = -1; /* mode that the caller's kernels and rules set */
static bool changing; /* each call uses the next mode */
static int n_changed; /* calls that changed the mode */
static const char *first_changed;

/* Calls that are nested as arguments of each other. */
static int open_calls[8], n_open;

static struct seen enter(void)
{
    if (changing) mode = (mode + 1) % MODES;
    open_calls[n_open++] = mode;
    set_mode(mode);
    return seen();
}

static void leave(const struct seen *before, const char *call)
{
    const struct seen now = seen();
    n_open--;
    set_mode(n_open ? open_calls[n_open - 1] : -1);
    if (!memcmp(&now, before, sizeof now)) return;
    if (!n_changed++) first_changed = call;
}

/* Calls the library under the mode; all other code runs under C's default. */
#define IN(call)                               \
    ({                                         \
        const struct seen before_ = enter();   \
        const __typeof__(call) result_ = call; \
        leave(&before_, #call);                \
        result_;                               \
    })
#define DO(call) ((void)IN(((call), 0)))
#define OK(call) cr_assert_eq(IN(call), RW_OK, "%s: %s", #call, rw_error_message(ctx))

/* ---- results of the program ---- */

struct record {
    FILE *to;
    char *bytes;
    size_t size;
    struct {
        const char *name;
        long end;
    } part[512];
    int n;
};
static struct record *out;

static void note(const char *name, const void *data, size_t bytes)
{
    fwrite(data, 1, bytes, out->to);
    cr_assert_lt(out->n, 512);
    out->part[out->n].name = name;
    out->part[out->n++].end = ftell(out->to);
}

static void note_tensor(rw_context *ctx, const char *name, rw_tape *t, rw_tensor *x)
{
    const size_t bytes = rw_tensor_bytes(x);
    void *const data = calloc(bytes + 1, 1);
    cr_assert(x, "%s: %s", name, rw_error_message(ctx));
    OK(rw_read(t, x, data, bytes));
    note(name, data, bytes);
    free(data);
}

/* ---- a caller's op, which sets a mode and leaves it ---- */

static rw_status third_check(rw_op_call *call)
{
    const rw_status status = rw_op_output_like(call, 0, 0);
    if (inside >= 0) set_mode(inside % 16); /* not trapped: an exception later in the kernel would be the test's own */
    return status;
}

static rw_status third_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    float *const y = k->out[0].data;
    cr_assert(mode_is_default(), "a kernel begins in the mode %#x", mode_register());
    for (int64_t i = 0; i < k->in[0].layout->numel; i++) y[i] = x[i] / 3 * 0x1p-125f * 0x1p125f;
    if (inside >= 0) set_mode(inside);
    return RW_OK;
}

HOST_KERNEL_OF(third_kernel)
static rw_status third_rule(rw_grad_call *g);
static rw_op_cost third_cost(const rw_op_call *call)
{
    if (inside >= 0) set_mode(inside % 16);
    return (rw_op_cost){ .flops = 1e5 / 3, .bytes = 1e6 / 7 };
}

static const rw_op_def third = { .name = "third", .n_inputs = 1, .n_outputs = 1, .check = third_check,
                                 .kernel = HOST_KERNEL(third_kernel), .grad = third_rule, .cost = third_cost };

static rw_status third_rule(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    rw_tensor *const dx = rw_apply(rw_grad_tape(g), &third, &dy, 1, NULL, 0, NULL);
    const rw_status status = rw_grad_set(g, 0, dx);
    if (inside >= 0) set_mode(inside);
    return status;
}

/* ---- the parts of the program ---- */

/* Parameters of each type by each initializer, some with subnormal numbers. */
static void initialize(rw_context *ctx)
{
    static const struct {
        const char *name;
        rw_dtype dtype;
    } kinds[] = { { "f32", RW_F32 }, { "f64", RW_F64 }, { "bf16", RW_BF16 }, { "f16", RW_F16 } };
    for (int i = 0; i < 4; i++) {
        rw_tensor *const x = IN(rw_param(ctx, kinds[i].name, kinds[i].dtype, RW_SHAPE(7, 33)));
        OK(rw_init_normal(x, 0.1, 0.02));
        note_tensor(ctx, "rw_init_normal", NULL, x);
        OK(rw_init_uniform(x, -1.0 / 3, 0.7));
        note_tensor(ctx, "rw_init_uniform", NULL, x);
        OK(rw_init_constant(x, 0.1));
        note_tensor(ctx, "rw_init_constant", NULL, x);
        OK(rw_init_normal(x, 0, i == 3 ? 1e-6 : 1e-39)); /* subnormal numbers */
        note_tensor(ctx, "rw_init_normal, subnormal", NULL, x);
        OK(rw_init_normal(x, 0, 0.3));
    }
}

static void schedule(rw_context *ctx)
{
    double lr[4][16];
    for (int kind = 0; kind < 4; kind++)
        for (uint64_t step = 0; step < 16; step++) {
            const rw_lr_schedule s = { .kind = (rw_lr_schedule_kind)kind, .lr = 0.1, .min_lr = 1e-3, .warmup = 3,
                                       .total = 14, .every = 2, .factor = 0.7 };
            lr[kind][step] = IN(rw_lr_schedule_rate(&s, step));
        }
    note("rw_lr_schedule_rate", lr, sizeof lr);
}

/* Ops whose constants or thresholds are computed outside of kernels. */
static void ops(rw_context *ctx, rw_tape *t)
{
    rw_tensor *const x = rw_param_find(ctx, "f32"), *const wide = rw_param_find(ctx, "f64");
    rw_tensor *const d = IN(rw_dropout(t, x, 0.1)), *const d2 = IN(rw_dropout_add(t, x, x, 1.0 / 3));
    note_tensor(ctx, "rw_dropout", t, d);
    note_tensor(ctx, "rw_dropout_add", t, d2);
    static const int32_t at[16] = { 0, 1, 5, 100, 1000, 9, 77, 3, 2, 1, 4, 5, 8, 31, 62, 4000 };
    rw_tensor *const heads = IN(rw_randn(t, RW_F32, RW_SHAPE(1, 2, 16, 8)));
    rw_tensor *const positions = IN(rw_input(t, RW_I32, RW_SHAPE(16), at, sizeof at));
    note_tensor(ctx, "rw_randn", t, heads);
    note_tensor(ctx, "rw_rope", t, IN(rw_rope(t, heads, positions, 10000.1)));
    note_tensor(ctx, "rw_rope_with", t,
                IN(rw_rope_with(t, heads, positions, &(rw_rope_params){ .base = 500000.7, .interleaved = true })));
    note_tensor(ctx, "rw_attention", t,
                IN(rw_attention(t, heads, heads, heads, &(rw_attention_params){ .causal = true, .dropout = 0.1f })));
    note_tensor(ctx, "rw_layernorm", t, IN(rw_layernorm(t, x, RW_NONE, RW_NONE, 1e-5f)));
    note_tensor(ctx, "rw_rmsnorm", t, IN(rw_rmsnorm(t, wide, RW_NONE, 1e-5f)));
    note_tensor(ctx, "rw_scale, subnormal", t, IN(rw_scale(t, x, 1e-42)));
    note_tensor(ctx, "rw_pow_scalar", t, IN(rw_pow_scalar(t, IN(rw_abs(t, x)), 1.1)));
    size_t n;
    const struct op_function *const functions = op_functions(&n);
    for (size_t i = 0; i < n; i++) {
        rw_tensor *in = x;
        const struct op_case of = { .n = 1, .value = functions[i].value / 3 };
        if (functions[i].value != 0) note_tensor(ctx, functions[i].name, t, IN(functions[i].build(t, &in, &of)));
    }
    note_tensor(ctx, "rw_clamp", t, IN(rw_clamp(t, x, -0.1, 0.1)));
    note_tensor(ctx, "rw_full", t, IN(rw_full(t, RW_BF16, RW_SHAPE(3), 0.1)));
    note_tensor(ctx, "rw_full, subnormal", t, IN(rw_full(t, RW_F32, RW_SHAPE(3), 1e-42)));
    note_tensor(ctx, "rw_arange", t, IN(rw_arange(t, RW_F32, 0, 1, 0.1)));
    note_tensor(ctx, "rw_lt_scalar", t, IN(rw_lt_scalar(t, x, 0.1)));
    note_tensor(ctx, "rw_masked_fill", t, IN(rw_masked_fill(t, x, IN(rw_gt_scalar(t, x, 1.0 / 7)), 0.1)));
    note_tensor(ctx, "rw_norm", t, IN(rw_norm(t, x, 2, RW_ALL_AXES, false)));
    note_tensor(ctx, "rw_var", t, IN(rw_var(t, x, RW_AXES(1), true, false)));
    note_tensor(ctx, "rw_mean", t, IN(rw_mean(t, x, RW_ALL_AXES, false)));
    note_tensor(ctx, "rw_huber_loss", t, IN(rw_huber_loss(t, x, d, 0.1, RW_REDUCTION_MEAN)));
    note_tensor(ctx, "rw_normalize", t, IN(rw_normalize(t, x, 2, -1, 1e-12)));
    const double item = IN(rw_item(t, IN(rw_mean(t, wide, RW_ALL_AXES, false))));
    note("rw_item", &item, sizeof item);
}

static void quantize(rw_context *ctx)
{
    static float data[64 * 64], back[64 * 64];
    for (int i = 0; i < 64 * 64; i++) data[i] = (float)((i * 7919) % 1009 - 504) / 997;
    for (int kind = 0; kind < RW_QUANTIZED_KIND_COUNT; kind++) {
        rw_quantized w;
        OK(rw_quantized_create(ctx, kind ? "int8" : "nf4", (rw_quantized_kind)kind, RW_SHAPE(64, 64), &w));
        OK(rw_quantized_write(&w, RW_F32, data, sizeof data));
        OK(rw_quantized_read(&w, back, sizeof back));
        note("rw_quantized_read", back, sizeof back);
        note_tensor(ctx, "rw_quantized_write", NULL, w.words);
    }
}

/* A loss over parameters of each type, with an op of the test's own, a dropout and a checkpointed region. */
static rw_tensor *loss_of(rw_context *ctx, rw_tape *t)
{
    rw_tensor *sum = NULL;
    static const char *const names[] = { "f32", "bf16", "f16" };
    for (int i = 0; i < 3; i++) {
        DO(ckpt_begin(t, "part"));
        rw_tensor *const x = IN(rw_cast(t, rw_param_find(ctx, names[i]), RW_F32));
        rw_tensor *const y = IN(rw_apply(t, &third, &x, 1, NULL, 0, NULL));
        rw_tensor *const z = IN(rw_dropout(t, IN(rw_gelu(t, IN(rw_scale(t, y, 1.1)))), 0.1));
        rw_tensor *const part = IN(rw_mean(t, IN(rw_mul(t, z, z)), RW_ALL_AXES, false));
        DO(ckpt_end(t));
        sum = sum ? IN(rw_add(t, sum, part)) : part;
    }
    rw_tensor *const wide = IN(rw_mean(t, rw_param_find(ctx, "f64"), RW_ALL_AXES, false));
    return IN(rw_add(t, sum, IN(rw_cast(t, wide, RW_F32))));
}

static void note_params(rw_context *ctx, const char *name)
{
    static const char *const names[] = { "f32", "f64", "bf16", "f16" };
    for (int i = 0; i < 4; i++) note_tensor(ctx, name, NULL, rw_param_find(ctx, names[i]));
}

/* Plans and predictions under several policies, and the text of the explanation. */
static void plan(rw_context *ctx, rw_tape *t)
{
    rw_prediction p[4];
    char *text = NULL;
    size_t size = 0;
    FILE *const to = open_memstream(&text, &size);
    static const char *const policies[] = { "none", "full", "budget:70.3%", "selective:part" };
    memset(p, 0, sizeof p);
    rw_tensor *const loss = loss_of(ctx, t);
    for (int i = 0; i < 4; i++) OK(rw_tape_plan(t, loss, policies[i], &p[i]));
    for (int i = 0; i < 4; i++) note("rw_tape_plan", &p[i].ms, sizeof p[i].ms);
    for (int i = 0; i < 4; i++) note("rw_tape_plan, bytes", &p[i].peak_bytes, sizeof p[i].peak_bytes);
    OK(rw_backward(t, loss));
    OK(ckpt_explain(t, to));
    fclose(to);
    note("ckpt_explain", text, size);
    free(text);
    DO(rw_tape_reset(t));
    DO(rw_zero_grad(ctx));
}

/* One training step with scaler, clipping, optimizer and average. */
static void step(rw_context *ctx, rw_tape *t, rw_optimizer *opt, rw_weight_average *average, rw_scaler *scaler, int i)
{
    rw_tensor *const loss = loss_of(ctx, t);
    double norm = 0;
    if (scaler) OK(rw_scaler_backward(scaler, t, loss));
    else OK(rw_backward(t, loss));
    if (scaler) OK(rw_scaler_unscale(scaler));
    OK(rw_clip_grad_norm(ctx, 0.01, &norm));
    note("rw_clip_grad_norm", &norm, sizeof norm);
    DO(rw_optimizer_set_lr(opt, IN(rw_lr_schedule_rate(&(rw_lr_schedule){ .kind = RW_LR_COSINE, .lr = 0.1,
                                                                          .min_lr = 0.01,
                                                                         .total = 7 }, (uint64_t)i))));
    if (scaler) OK(rw_scaler_step(scaler, opt));
    else OK(rw_optimizer_step(opt));
    if (scaler) OK(rw_scaler_update(scaler));
    if (average) OK(rw_weight_average_step(average));
    note_params(ctx, "a step");
    DO(rw_tape_reset(t));
    DO(rw_zero_grad(ctx));
}

static rw_status create(rw_optimizer **opt, rw_context *ctx, int kind)
{
    if (kind == 0)
        return rw_sgd_create(opt, ctx, &(rw_sgd_params){ .lr = 0.1, .momentum = 0.9, .weight_decay = 0.1,
                                                         .stochastic_rounding = true });
    if (kind == 1) return rw_adam_create(opt, ctx, &(rw_adam_params){ .lr = 0.1, .eps = 1e-8, .moments = RW_BF16 });
    if (kind == 2) return rw_lion_create(opt, ctx, &(rw_lion_params){ .lr = 0.1, .weight_decay = 0.1 });
    return rw_adamw_create(opt, ctx, &(rw_adamw_params){ .lr = 0.1, .beta2 = 0.95, .weight_decay = 0.1 });
}

static void note_file(const char *name, const char *path)
{
    static char data[1 << 20];
    FILE *const f = fopen(path, "r");
    cr_assert(f, "%s", path);
    note(name, data, fread(data, 1, sizeof data, f));
    fclose(f);
}

/* A short training with each optimizer and policy, with files. */
static void train(rw_context *ctx, rw_tape *t, const char *folder)
{
    static const char *const policies[] = { "none", "full", "budget:80.1%", "selective:part" };
    char path[256];
    for (int kind = 0; kind < 4; kind++) {
        rw_optimizer *opt = NULL;
        rw_weight_average *average = NULL;
        rw_scaler *scaler = NULL;
        char name[16];
        snprintf(name, sizeof name, "scale%d", kind);
        OK(ckpt_set_policy(t, policies[kind]));
        OK(create(&opt, ctx, kind));
        OK(rw_weight_average_create(&average, ctx, 0.999));
        if (kind % 2) OK(rw_scaler_create(&scaler, ctx, &(rw_scaler_params){ .init_scale = 1000.1, .growth_factor = 1.7,
                                                                             .growth_interval = 1, .name = name }));
        for (int i = 0; i < 3; i++) step(ctx, t, opt, average, scaler, i);
        note_tensor(ctx, "rw_weight_average_of", NULL, IN(rw_weight_average_of(average, rw_param_find(ctx, "bf16"))));
        if (scaler) {
            rw_scaler_state s;
            OK(rw_scaler_get(scaler, &s));
            note("rw_scaler_get", &s.scale, sizeof s.scale);
        }
        if (kind == 3) {
            rw_checkpoint *c = NULL;
            OK(rw_checkpoint_create(&c, ctx, &(rw_checkpoint_params){ .folder = folder, .optimizer = opt,
                                                                      .average = average }));
            OK(rw_checkpoint_save(c, 3, NULL, 0));
            OK(rw_checkpoint_wait(c));
            step(ctx, t, opt, average, scaler, 3);
            OK(rw_checkpoint_load(c, NULL));
            note_params(ctx, "rw_checkpoint_load");
            step(ctx, t, opt, average, scaler, 3);
            DO(rw_checkpoint_destroy(&c));
        }
        DO(rw_scaler_destroy(&scaler));
        DO(rw_weight_average_destroy(&average));
        DO(rw_optimizer_destroy(&opt));
    }
    snprintf(path, sizeof path, "%s/weights.safetensors", folder);
    OK(rw_save(ctx, path));
    note_file("rw_save", path);
    OK(rw_load(ctx, path));
    note_params(ctx, "rw_load");
}

/* Writes three steps to a monitor's log, one with a subnormal norm, and notes the numbers and the file. */
static void monitor(rw_context *ctx, const char *folder)
{
    char path[256];
    rw_monitor *m = NULL;
    snprintf(path, sizeof path, "%s/log", folder);
    OK(rw_monitor_create(&m, ctx, path));
    for (int i = 0; i < 3; i++) {
        const rw_monitor_values v = { .step = (uint64_t)i, .loss = 1.0 / (3 + i), .lr = 0.1 / 3,
                                      .grad_norm = 1e-310, .seconds = 0.7 };
        OK(rw_monitor_step(m, &v, NULL));
    }
    const rw_monitor_numbers n = IN(rw_monitor_get_numbers(m));
    note("rw_monitor_get_numbers", &n, sizeof n);
    DO(rw_monitor_destroy(&m));
    note_file("rw_monitor_step", path);
}

/* Runs all parts and records their results in *to. */
static void run(struct record *to)
{
    char folder[128];
    struct fixture b;
    snprintf(folder, sizeof folder, "%s/rewind-modes-XXXXXX", P_tmpdir);
    cr_assert(mkdtemp(folder));
    to->to = open_memstream(&to->bytes, &to->size);
    to->n = 0;
    out = to;
    n_changed = 0;
    b = IN(fixture_open(7, 1));
    rw_context *const ctx = b.ctx;
    initialize(ctx);
    schedule(ctx);
    ops(ctx, b.t);
    DO(rw_tape_reset(b.t));
    plan(ctx, b.t);
    train(ctx, b.t, folder);
    quantize(ctx);
    monitor(ctx, folder);
    DO(fixture_close(&b));
    fclose(to->to);
    cr_expect_eq(n_changed, 0, "%d calls leave another mode, the first: %s", n_changed, first_changed);
    char command[192];
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_expect_eq(system(command), 0);
}

static void expect_same(const struct record *a, const struct record *b, const char *how, int which)
{
    long begin = 0;
    cr_assert_eq(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        const size_t bytes = (size_t)(a->part[i].end - begin);
        if (a->part[i].end != b->part[i].end || memcmp(a->bytes + begin, b->bytes + begin, bytes) != 0) {
            cr_expect_fail("%s %d: part %d, %s, has other bytes", how, which, i, a->part[i].name);
            return;
        }
        begin = a->part[i].end;
    }
}

static struct record plain, other;

static void compare(const char *how, int which)
{
    run(&other);
    expect_same(&plain, &other, how, which);
    free(other.bytes);
}

Test(caller_modes, of_all_calls)
{
    run(&plain);
    for (int m = 0; m < MODES; m++) {
        mode = m;
        compare("in mode", m);
    }
}

Test(caller_modes, another_one_for_each_call)
{
    run(&plain);
    changing = true;
    for (int first = 0; first < 7; first++) {
        mode = first;
        compare("modes that change, from", first);
    }
}

Test(caller_modes, set_by_a_callers_functions)
{
    run(&plain);
    for (int m = 0; m < MODES; m++) {
        inside = m;
        compare("its functions set mode", m);
    }
}
