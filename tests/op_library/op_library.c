/*
 * Loads families of built-in ops as a library of their own (meson.build), and runs an op of each: their values and
 * gradients have the bytes of the ops in librewind, without recompute and with. One line per op; the exit status is 1
 * if one differs.
 */
#include <rewind/rewind.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 24, CHOSEN = 2, EXPERTS = 4, WIDTH = 40, MAX = 1 << 16 };

/* Functions of one library or of the other. */
struct ops {
    rw_tensor *(*moe_linear)(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, const rw_moe_routes *routes);
    rw_tensor *(*causal_conv1d)(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias);
    rw_tensor *(*quantize)(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *scale, const rw_quantize_params *params,
                           rw_tensor **ret_scale, rw_tensor **ret_amax);
    rw_tensor *(*dequantize)(rw_site at, rw_tape *t, rw_tensor *codes, rw_tensor *scale, rw_scaling scaling,
                             rw_dtype dtype);
    rw_tensor *(*linear_quantized)(rw_site at, rw_tape *t, rw_tensor *x, const rw_quantized *weight, rw_tensor *bias);
};

static const struct ops built_in = { rw_moe_linear_at, rw_causal_conv1d_at, rw_quantize_at, rw_dequantize_at,
                                     rw_linear_quantized_at };

static bool load(struct ops *ret)
{
    void *const library = dlopen(OP_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    static const char *const names[] = { "rw_moe_linear_at", "rw_causal_conv1d_at", "rw_quantize_at",
                                         "rw_dequantize_at", "rw_linear_quantized_at" };
    void *found[5];
    _Static_assert(sizeof found == sizeof *ret, "one name for each function");
    if (!library) {
        printf("%s\n", dlerror());
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(found[i] = dlsym(library, names[i]))) printf("no %s\n", names[i]);
    memcpy(ret, found, sizeof found);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!found[i]) return false;
    return ret->moe_linear != built_in.moe_linear;
}

struct step {
    rw_context *ctx;
    rw_tape *t;
    const struct ops *ops;
    rw_tensor *x, *w, *bias, *y; /* y: the op's result */
};

static rw_tensor *param(struct step *s, const char *name, rw_shape shape)
{
    rw_tensor *const p = rw_param(s->ctx, name, RW_F32, shape);
    rw_init_normal(p, 0, 1);
    return p;
}

static rw_tensor *of_moe(struct step *s)
{
    static int32_t index[TOKENS * CHOSEN];
    for (int i = 0; i < TOKENS * CHOSEN; i++) index[i] = (i * 7 + i / 5) % EXPERTS;
    rw_moe_routes routes;
    s->x = param(s, "x", RW_SHAPE(TOKENS * CHOSEN, WIDTH));
    s->w = param(s, "w", RW_SHAPE(EXPERTS, WIDTH, WIDTH));
    rw_moe_route(s->t, rw_input(s->t, RW_I32, RW_SHAPE(TOKENS, CHOSEN), index, sizeof index), EXPERTS, &routes);
    return s->ops->moe_linear(RW_HERE, s->t, rw_tanh(s->t, s->x), s->w, &routes);
}

static rw_tensor *of_recurrent(struct step *s)
{
    s->x = param(s, "x", RW_SHAPE(2, TOKENS, WIDTH));
    s->w = param(s, "w", RW_SHAPE(WIDTH, 4));
    s->bias = param(s, "bias", RW_SHAPE(WIDTH));
    return s->ops->causal_conv1d(RW_HERE, s->t, rw_tanh(s->t, s->x), s->w, s->bias);
}

static rw_tensor *of_float8(struct step *s)
{
    s->x = param(s, "x", RW_SHAPE(TOKENS, 256));
    rw_tensor *scale, *const h = rw_tanh(s->t, s->x);
    const rw_quantize_params p = { .scaling = RW_SCALING_1X128 };
    rw_tensor *const codes = s->ops->quantize(RW_HERE, s->t, h, RW_NONE, &p, &scale, NULL);
    s->y = codes ? s->ops->dequantize(RW_HERE, s->t, codes, scale, p.scaling, RW_F32) : NULL;
    return rw_straight_through(s->t, s->y, h);
}

static rw_tensor *of_quantized(struct step *s)
{
    static float data[WIDTH * WIDTH];
    for (int i = 0; i < WIDTH * WIDTH; i++) data[i] = (float)(i % 37) / 16 - 1;
    rw_quantized weight;
    rw_quantized_create(s->ctx, "weight", RW_INT8, RW_SHAPE(WIDTH, WIDTH), &weight);
    rw_quantized_write(&weight, RW_F32, data, sizeof data);
    s->x = param(s, "x", RW_SHAPE(TOKENS, WIDTH));
    s->bias = param(s, "bias", RW_SHAPE(WIDTH));
    return s->ops->linear_quantized(RW_HERE, s->t, rw_tanh(s->t, s->x), &weight, s->bias);
}

static size_t append(struct step *s, rw_tensor *x, char *bytes, size_t n)
{
    if (x && n + rw_tensor_bytes(x) <= MAX && !rw_read(s->t, x, bytes + n, rw_tensor_bytes(x)))
        return n + rw_tensor_bytes(x);
    return n;
}

/* Did the library that was loaded record the result? Its ops have names of their own. */
static bool is_apart(const struct step *s)
{
    rw_producer producer;
    return rw_tensor_producer(s->y, &producer) && !strncmp(producer.op->name, "apart_", 6);
}

/* The bytes of the result and of the gradients; 0, with a message, if the step fails. */
static size_t run(const struct ops *ops, rw_tensor *(*op)(struct step *), const char *policy, char *bytes)
{
    struct step s = { .ops = ops };
    if (rw_context_create(&s.ctx, &(rw_context_params){ .seed = 5, .threads = 2 }) || rw_tape_create(&s.t, s.ctx))
        return 0;
    ckpt_set_policy(s.t, policy);
    ckpt_begin(s.t, "layer");
    rw_tensor *y = op(&s);
    ckpt_end(s.t);
    if (!s.y) s.y = y;
    if (is_apart(&s) != (ops != &built_in)) printf("the wrong library recorded the op\n"), y = NULL;
    rw_tensor *const loss = y ? rw_sum_all(s.t, rw_mul(s.t, y, y)) : NULL;
    size_t n = 0;
    if (!rw_backward(s.t, loss)) {
        n = append(&s, y, bytes, n);
        rw_tensor *const of[] = { s.x, s.w, s.bias };
        for (int i = 0; i < 3; i++) n = of[i] ? append(&s, rw_gradient(of[i]), bytes, n) : n;
    }
    if (rw_error_status(s.ctx)) {
        printf("%s\n", rw_error_message(s.ctx));
        n = 0;
    }
    rw_tape_destroy(&s.t);
    rw_context_destroy(&s.ctx);
    return n;
}

int main(void)
{
    static const struct {
        const char *name;
        rw_tensor *(*op)(struct step *);
    } ops[] = { { "moe_linear", of_moe }, { "causal_conv1d", of_recurrent }, { "quantize", of_float8 },
                { "linear_quantized", of_quantized } };
    static const char *const policies[] = { "none", "full" };
    static char a[MAX], b[MAX];
    struct ops apart;
    if (!load(&apart)) return 1;
    int differ = 0;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (size_t p = 0; p < 2; p++) {
            const size_t n = run(&built_in, ops[i].op, policies[p], a), m = run(&apart, ops[i].op, policies[p], b);
            const bool is_same = n && n == m && !memcmp(a, b, n);
            printf("%s %s, %s: %zu bytes\n", is_same ? "ok    " : "FAILED", ops[i].name, policies[p], n);
            differ += !is_same;
        }
    return differ != 0;
}
