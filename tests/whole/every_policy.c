/*
 * Every model of bench/models under every kind of policy, with 1 to 5 threads: losses and gradients of each step,
 * parameters and buffers after twenty steps, and the generator, are compared with `none` in one thread, byte for byte.
 *
 * On the simulated device there are two steps instead of twenty, two policies, and no threads; under AddressSanitizer
 * two steps of all policies.
 */
#include "support/support.h"

#include "models/model.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 20, STEPS_AWAY = 2, BATCH = 2, SEQ = 21, SIDE = 16, LARGE_SIDE = 32, POLICIES_MAX = 12 };

struct world {
    struct fixture b;
    struct model m;
    rw_optimizer *opt;
};

static struct world open_world(const struct model_config *c, const char *spec, int threads)
{
    struct world w = { .b = fixture_open(5, threads) };
    const rw_offload fast = { .out_bytes_per_s = 1e12, .in_bytes_per_s = 1e12 }; /* budgets offload all they can */
    cr_assert_eq(rw_context_set_offload(w.b.ctx, &fast), RW_OK);
    cr_assert_eq(model_create(&w.m, w.b.ctx, c), RW_OK, "%s", rw_error_message(w.b.ctx));
    cr_assert_eq(ckpt_set_policy(w.b.t, spec), RW_OK, "%s", rw_error_message(w.b.ctx));
    cr_assert_eq(rw_adamw_create(&w.opt, w.b.ctx, &(rw_adamw_params){ .lr = 1e-3 }), RW_OK);
    return w;
}

static void close_world(struct world *w)
{
    rw_optimizer_destroy(&w->opt);
    fixture_close(&w->b);
}

/* Images as small as the network allows. */
static int length_of(enum model_kind kind)
{
    return kind < MODEL_RESNET50 ? SEQ : kind == MODEL_VGG16 || kind == MODEL_DENSENET121 ? LARGE_SIDE : SIDE;
}

static rw_tensor *loss_of(const struct world *w, int step)
{
    const struct model_config *const c = &w->m.config;
    const int seq = length_of(c->kind);
    int32_t tokens[BATCH * LARGE_SIDE], targets[BATCH * LARGE_SIDE];
    for (int i = 0; i < BATCH * seq; i++)
        tokens[i] = (i * 7 + step * 31) % c->vocab, targets[i] = (i * 5 + step) % c->vocab;
    return model_loss(&w->m, w->b.t, BATCH, seq, tokens, targets);
}

/* Names in a model's policies. */
struct names {
    const char *region, *op, *dropped, *tag; /* tag: NULL for a model that names no values */
    const char *megatron;                    /* NULL: regions of other names */
};

static struct names names_of(enum model_kind kind)
{
    if (kind == MODEL_MAMBA2) return (struct names){ "ssd", "linear", "ssd" };
    if (kind == MODEL_DEEPSEEK)
        return (struct names){ "core_attn,moe", "linear,attention", "mla_up_proj,moe_act", "qkv",
                               "mla_up_proj,moe_act,shared_experts,layernorm" };
    if (kind == MODEL_VGG16 || kind == MODEL_UNET) return (struct names){ "block", "conv2d", "relu,pool" };
    if (kind >= MODEL_RESNET50) return (struct names){ "block", "conv2d", "bn,relu" };
    return (struct names){ "core_attn,mlp", "linear", "layernorm", "qkv", "core_attn,mlp,layernorm" };
}

typedef char policy[96];

/* A budget a quarter of the way from the minimum to the memory of `none`. More threads need more workspace. */
static void budget_of(const struct model_config *c, const char *more, int threads, char *ret)
{
    struct world w = open_world(c, "none", threads);
    rw_tensor *const loss = loss_of(&w, 0);
    rw_prediction all = { 0 }, least = { 0 };
    snprintf(ret, sizeof(policy), "budget:1B%s", more);
    cr_assert_eq(rw_tape_plan(w.b.t, loss, "none", &all), RW_OK, "%s", rw_error_message(w.b.ctx));
    cr_assert_eq(rw_tape_plan(w.b.t, loss, ret, &least), RW_ERR_BUDGET);
    snprintf(ret, sizeof(policy), "budget:%zuB%s", (all.peak_bytes + 3 * least.least_bytes) / 4, more);
    rw_error_clear(w.b.ctx);
    close_world(&w);
}

/* Number of threads for policy i of a model, or the requested number. The next policy has another number, and so has
   policy i of the next model. */
static int threads_of(enum model_kind kind, int i, int asked)
{
    return asked ? asked : 1 + (i + (int)kind) % 5;
}

/* One policy of each kind; budgets are for this number of threads. Returns their number. */
static int policies_of(const struct model_config *c, int threads, policy *ret)
{
    const struct names a = names_of(c->kind);
    int n = 0;
    snprintf(ret[n++], sizeof *ret, "full");
    budget_of(c, "", threads_of(c->kind, n, threads), ret[n]), n++;
    budget_of(c, "+offload", threads_of(c->kind, n, threads), ret[n]), n++;
    snprintf(ret[n++], sizeof *ret, "uniform:2");
    snprintf(ret[n++], sizeof *ret, "block:%d", c->kind >= MODEL_RESNET50 ? 4 : 1); /* first a lone convolution */
    snprintf(ret[n++], sizeof *ret, "selective:%s", a.region);
    snprintf(ret[n++], sizeof *ret, "ops:%s", a.op);
    snprintf(ret[n++], sizeof *ret, "discard:%s", a.dropped);
    snprintf(ret[n++], sizeof *ret, "offload:block");
    snprintf(ret[n++], sizeof *ret, "full+offload:block");
    if (a.tag) snprintf(ret[n++], sizeof *ret, "names:keep=%s", a.tag);
    if (a.megatron) snprintf(ret[n++], sizeof *ret, "megatron:%s", a.megatron);
    return n;
}

struct outcome {
    double loss[STEPS];
    unsigned char *gradients, *parameters; /* gradients: of every step */
    size_t bytes, parameter_bytes;         /* bytes: of the gradients of one step */
    rw_generator_state generator;
    size_t replayed, outside;
};

static int steps_of_a_run(void)
{
    return test_steps(STEPS, STEPS_AWAY);
}

/* Runs one step and appends its loss and gradients. */
static void train_step(struct outcome *o, const struct world *w, int step, const char *spec)
{
    rw_context *const ctx = w->b.ctx;
    const char *const name = model_name(w->m.config.kind);
    size_t bytes;
    rw_zero_grad(ctx);
    rw_tensor *const loss = loss_of(w, step);
    cr_assert_eq(rw_backward(w->b.t, loss), RW_OK, "%s, %s: %s", name, spec, rw_error_message(ctx));
    o->loss[step] = rw_item(w->b.t, loss);
    rw_memory memory;
    rw_cost cost;
    rw_memory_stats(ctx, &memory);
    cr_assert_eq(rw_tape_cost(w->b.t, loss, &cost), RW_OK);
    cr_assert_eq(memory.predicted_peak, memory.measured_peak, "%s, %s", name, spec);
    o->replayed = cost.replayed_nodes;
    o->outside = memory.host;
    unsigned char *const g = all_gradients(ctx, &bytes);
    if (!step) o->gradients = malloc(bytes * STEPS), o->bytes = bytes;
    memcpy(o->gradients + bytes * (size_t)step, g, bytes);
    free(g);
}

static struct outcome train(const struct model_config *c, const char *spec, int threads)
{
    struct world w = open_world(c, spec, threads);
    struct outcome o = { 0 };
    for (int step = 0; step < steps_of_a_run(); step++) {
        train_step(&o, &w, step, spec);
        cr_assert_eq(rw_optimizer_step(w.opt), RW_OK);
        rw_tape_reset(w.b.t);
        cr_assert_eq(model_end_step(&w.m, w.b.t), RW_OK, "%s", rw_error_message(w.b.ctx));
    }
    o.parameters = all_parameters(w.b.ctx, &o.parameter_bytes);
    o.generator = rw_generator_get(w.b.ctx);
    close_world(&w);
    return o;
}

static void release(struct outcome *o)
{
    free(o->gradients), free(o->parameters);
}

static void same(const struct outcome *none, const struct outcome *o, const char *what)
{
    cr_assert(none->bytes == o->bytes && none->parameter_bytes == o->parameter_bytes);
    cr_expect_eq(memcmp(none->loss, o->loss, sizeof o->loss), 0, "%s: losses", what);
    for (int s = 0; s < steps_of_a_run(); s++) {
        const size_t at = o->bytes * (size_t)s;
        const long byte = first_difference(none->gradients + at, o->gradients + at, o->bytes);
        cr_assert_eq(byte, -1, "%s: gradients of step %d", what, s);
    }
    cr_expect_eq(first_difference(none->parameters, o->parameters, o->parameter_bytes), -1, "%s: parameters", what);
    cr_expect_eq(none->generator.offset, o->generator.offset, "%s: generator", what);
}

static void run(const struct model_config *c, const struct outcome *none, const char *spec, int threads)
{
    char what[160];
    struct outcome o = train(c, spec, threads);
    snprintf(what, sizeof what, "%s, %s, %s, %d threads", model_name(c->kind), rw_dtype_name(c->dtype), spec, threads);
    same(none, &o, what);
    /* In 16 bits a small network of images has values too small to offload, and its minimum is hardly less than the
       memory of `none`: other offsets of values suffice there. */
    const bool small = c->dtype == RW_BF16 && (!strncmp(spec, "budget:", 7) || !strncmp(spec, "offload:", 8));
    const bool may_keep_all = small || !strcmp(spec, "none");
    cr_expect(may_keep_all || o.replayed + o.outside > 0, "%s: nothing is replayed or moved", what);
    release(&o);
}

static struct model_config config_of(enum model_kind kind, rw_dtype dtype)
{
    struct model_config c = { .kind = kind, .layers = 2, .width = 32, .heads = 4, .kv_heads = 4, .groups = 2,
                              .state = 8, .chunk = 8, .vocab = 61, .max_seq = SEQ, .dropout = 0.1f, .dtype = dtype };
    if (kind == MODEL_LLAMA) c.kv_heads = 2;
    if (kind != MODEL_MAMBA2) c.groups = c.state = c.chunk = 0;
    if (kind >= MODEL_RESNET50) cr_assert(model_preset(&c, "tiny"));
    return c;
}

/* Compares the first of a model's policies, at most `most`, with the result of `none`. threads: of each; 0: each has
   another number than the one before. */
static void run_policies(const struct model_config *c, const struct outcome *none, int threads, int most)
{
    policy list[POLICIES_MAX];
    const int n = policies_of(c, threads, list);
    for (int i = 0; i < n && i < most; i++) run(c, none, list[i], threads_of(c->kind, i, threads));
}

/* All policies in float32 and some in bfloat16. REWIND_EVERY_THREADS: all in both, with each number of threads. */
static void every_policy(enum model_kind kind)
{
    const bool host = test_device() == RW_DEVICE_CPU, all = host && getenv("REWIND_EVERY_THREADS");
    for (int half = 0; half < (host ? 2 : 1); half++) {
        const struct model_config c = config_of(kind, half ? RW_BF16 : RW_F32);
        struct outcome none = train(&c, "none", 1);
        if (host) run(&c, &none, "none", half ? 3 : 5);
        for (int threads = all; threads <= (all ? 5 : 0); threads++)
            run_policies(&c, &none, threads, all || (host && !half) ? test_steps(POLICIES_MAX, 5) : 2);
        release(&none);
    }
}

Test(every_policy, gpt) { every_policy(MODEL_GPT); }
Test(every_policy, llama) { every_policy(MODEL_LLAMA); }
Test(every_policy, deepseek) { every_policy(MODEL_DEEPSEEK); }
Test(every_policy, mamba2) { every_policy(MODEL_MAMBA2); }
Test(every_policy, t5) { every_policy(MODEL_T5); }
Test(every_policy, vit) { every_policy(MODEL_VIT); }
Test(every_policy, resnet50) { every_policy(MODEL_RESNET50); }
Test(every_policy, vgg16) { every_policy(MODEL_VGG16); }
Test(every_policy, mobilenet) { every_policy(MODEL_MOBILENET); }
Test(every_policy, densenet121) { every_policy(MODEL_DENSENET121); }
Test(every_policy, unet) { every_policy(MODEL_UNET); }
