/*
 * rw_costs_calibrate(): measures what the machine reaches, without running anything of the caller's. A small fixed
 * decoder layer and a small fixed convolution network are timed forward and backward, as rw_profile_begin() times the
 * caller's steps, in a separate context per type. The results are costs like any others: of products and passes over
 * memory in each type, and of each op of the two.
 */
#include "api/context.h"
#include "api/profile_ops.h"
#include "base/alloc.h"
#include "record/tape.h"

#include <rewind/recompute.h>
#include <rewind/conv.h>
#include <rewind/norm.h>
#include <rewind/plan.h>

enum { WIDTH = 512, HEADS = 8, SEQ = 256, CLASSES = 1024, IMAGES = 2, SIDE = 56, CHANNELS = 64, STEPS = 4 };

/* Convolutions of the other types are slow, and training does not use them. */
static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };
static bool has_convolutions(rw_dtype dtype)
{
    return dtype == RW_F32 || dtype == RW_BF16;
}

struct probe {
    rw_context *ctx;
    rw_tape *t;
    rw_dtype dtype;
    int32_t tokens[SEQ];
};

/* ---- the steps that are timed ---- */

/* A parameter of the context, created at its first use. */
static rw_tensor *weight(const struct probe *p, const char *name, rw_shape shape)
{
    rw_tensor *const known = rw_param_find(p->ctx, name), *const w = known ? known
                                                                           : rw_param(p->ctx, name, p->dtype, shape);
    return known || (w && !rw_init_normal(w, 0, 0.02)) ? w : NULL;
}

static rw_tensor *attention(const struct probe *p, rw_tensor *x)
{
    rw_tape *const t = p->t;
    const int64_t counts[3] = { HEADS, HEADS, HEADS };
    rw_tensor *part[3], *const qkv = rw_linear(t, x, weight(p, "qkv", RW_SHAPE(3 * WIDTH, WIDTH)), RW_NONE);
    if (rw_split(t, rw_reshape(t, qkv, RW_SHAPE(1, SEQ, 3 * HEADS, WIDTH / HEADS)), 2, counts, 3, part)) return NULL;
    for (int i = 0; i < 3; i++) part[i] = rw_transpose(t, part[i], 1, 2);
    rw_tensor *const y = rw_attention(t, part[0], part[1], part[2], &(rw_attention_params){ .causal = true });
    return rw_reshape(t, rw_transpose(t, y, 1, 2), RW_SHAPE(1, SEQ, WIDTH));
}

/* One decoder layer, with every op that transformers use often. */
static rw_tensor *decoder_loss(const struct probe *p)
{
    rw_tape *const t = p->t;
    rw_tensor *const tokens = rw_input(t, RW_I32, RW_SHAPE(1, SEQ), p->tokens, sizeof p->tokens);
    rw_tensor *const table = weight(p, "table", RW_SHAPE(CLASSES, WIDTH)), *const gain = weight(p, "gain",
                                                                                               RW_SHAPE(WIDTH));
    rw_tensor *const bias = weight(p, "bias", RW_SHAPE(WIDTH)), *const wide_bias = weight(p, "wide_bias",
                                                                                         RW_SHAPE(4 * WIDTH));
    rw_tensor *const up = weight(p, "up", RW_SHAPE(4 * WIDTH, WIDTH)), *const down = weight(p, "down",
                                                                                           RW_SHAPE(WIDTH, 4 * WIDTH));
    rw_tensor *x = rw_embedding(t, table, tokens), *h = attention(p, rw_layernorm(t, x, gain, bias, 1e-5));
    h = rw_linear(t, h, weight(p, "proj", RW_SHAPE(WIDTH, WIDTH)), bias);
    x = rw_dropout_add(t, rw_mul(t, h, rw_softmax(t, x, -1)), x, 0.1);
    h = rw_rmsnorm(t, x, gain, 1e-5);
    x = rw_linear_add(t, rw_linear_gelu(t, h, up, wide_bias), down, bias, x);
    h = rw_swiglu(t, rw_linear(t, h, up, wide_bias), rw_gelu(t, rw_linear(t, h, up, RW_NONE)));
    x = rw_add(t, rw_dropout(t, rw_linear(t, h, down, RW_NONE), 0.1), rw_relu(t, x));
    return rw_cross_entropy(t, rw_linear(t, x, table, RW_NONE), tokens);
}

/* One convolution block. */
static rw_tensor *network_loss(const struct probe *p)
{
    rw_tape *const t = p->t;
    rw_tensor *const scale = weight(p, "scale", RW_SHAPE(CHANNELS)), *const shift = weight(p, "shift",
                                                                                          RW_SHAPE(CHANNELS));
    rw_tensor *x = weight(p, "image", RW_SHAPE(IMAGES, SIDE, SIDE, CHANNELS));
    x = rw_permute(t, x, (const int[]){ 0, 3, 1, 2 });
    x = rw_conv2d(t, x, weight(p, "filters", RW_SHAPE(CHANNELS, CHANNELS, 3, 3)), RW_NONE,
                  &(rw_conv2d_params){ .padding = { 1, 1 } });
    x = rw_batchnorm(t, x, scale, shift, RW_NONE, RW_NONE, &(rw_batchnorm_params){ .relu = true });
    x = rw_max_pool2d(t, x, &(rw_pool2d_params){ .kernel = { 2, 2 } });
    return rw_mean(t, rw_mul(t, x, x), RW_ALL_AXES, false);
}

static rw_status step(const struct probe *p)
{
    rw_status status = rw_backward(p->t, decoder_loss(p));
    rw_tape_reset(p->t);
    if (!status && has_convolutions(p->dtype)) status = rw_backward(p->t, network_loss(p));
    rw_tape_reset(p->t);
    rw_zero_grad(p->ctx);
    return status;
}

/* ---- costs ---- */

/* The first step makes plans and touches pages, so it is not timed. */
static rw_status time_steps(const struct probe *p)
{
    rw_status status = step(p);
    if (!status) status = rw_profile_begin(p->ctx);
    for (int i = 0; !status && i < STEPS; i++) status = step(p);
    return status ? status : rw_profile_end(p->ctx);
}

/* Does not use the caller's policy for all tapes. */
static rw_status open_tape(struct probe *p)
{
    const rw_status status = rw_tape_create(&p->t, p->ctx);
    if (status) return status;
    p->t->policy_pinned = false;
    return ckpt_set_policy(p->t, "none");
}

/* Memory costs are measured once for all types. */
static rw_status tell_memory(struct probe *p, const struct rw_costs *costs)
{
    struct rw_costs *const own = rw_calloc(1, sizeof *own);
    if (!own) return RW_ERR_MEMORY;
    own->memory = costs->memory;
    own->threads = p->ctx->threads;
    rw_costs_replace(p->ctx, own);
    return RW_OK;
}

/* Times the steps of one type in a new context, and adds their costs. */
static rw_status probe_type(rw_context *ctx, rw_dtype dtype, struct rw_costs *costs)
{
    struct probe p = { .dtype = dtype };
    for (int i = 0; i < SEQ; i++) p.tokens[i] = i * 7 % CLASSES;
    rw_status status = rw_context_create_bare(&p.ctx, &(rw_context_params){ .device = ctx->kind,
                                                                            .threads = ctx->threads });
    if (status) return rw_fail(ctx, status, "rw_costs_calibrate: %s", rw_status_name(status));
    status = tell_memory(&p, costs);
    if (!status) status = open_tape(&p);
    if (!status) status = time_steps(&p);
    if (!status) status = rw_costs_add_missing(costs, rw_costs_of(p.ctx));
    if (status)
        rw_fail(ctx, status, "rw_costs_calibrate, %s: %s", rw_dtype_name(dtype),
                *rw_error_message(p.ctx) ? rw_error_message(p.ctx) : rw_status_name(status));
    rw_tape_destroy(&p.t);
    rw_context_destroy(&p.ctx);
    return status;
}

static rw_status probe_types(rw_context *ctx, struct rw_costs *costs)
{
    rw_status status = RW_OK;
    const struct rw_costs *const had = rw_costs_of(ctx);
    if (had && had->threads == ctx->threads) status = rw_costs_add_missing(costs, had);
    if (status) return rw_fail(ctx, status, "rw_costs_calibrate: out of memory");
    costs->memory = rw_costs_known_memory(ctx);
    if (!costs->memory.picoseconds) costs->memory = rw_costs_measure_memory(ctx);
    for (size_t i = 0; !status && i < sizeof types / sizeof *types; i++) status = probe_type(ctx, types[i], costs);
    if (status) return status;
    return rw_costs_seal(costs) ? RW_OK : rw_fail(ctx, RW_ERR_MEMORY, "rw_costs_calibrate: out of memory");
}

/* Replaces the context's costs only if everything was measured. */
rw_status rw_costs_calibrate(rw_context *ctx)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ctx) return rw_fail_null(NULL, "rw_costs_calibrate", "ctx");
    if (ctx->status) return ctx->status;
    struct rw_costs *const costs = rw_calloc(1, sizeof *costs);
    const rw_status status = costs ? probe_types(ctx, costs)
                                   : rw_fail(ctx, RW_ERR_MEMORY, "rw_costs_calibrate: out of memory");
    if (status) {
        rw_costs_free(costs);
        return status;
    }
    costs->threads = ctx->threads;
    rw_costs_replace(ctx, costs);
    return RW_OK;
}
