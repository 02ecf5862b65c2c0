/*
 * A layer of 64 experts, 8 per token, compared with a dense one with the same arithmetic: forward and backward of 4,096
 * tokens. Sizes: width 512 with experts of inner width 256, and a dense layer 8 times as wide; and OLMoE's (Muennighoff
 * et al., arXiv 2409.02060), 2,048 and 1,024. The layer of experts also has a router, eight times the weights, and
 * moves each token's row eight times: with fewer tokens, or narrower experts, these take more of the time.
 *
 *   moe_layer [ROUNDS] [TOKENS] [WIDTH] [INNER] [EXPERTS] [CHOSEN]     only one layer, if its sizes are given
 */
#include "figure.h"

#include <rewind/rewind.h>

#include <string.h>

struct sizes {
    int64_t tokens, width, inner, experts, chosen;
};

struct layer {
    rw_context *ctx;
    rw_tape *t;
    rw_tensor *x, *router, *up, *down, *dense_up, *dense_down;
};

static rw_tensor *param(struct layer *l, const char *name, rw_dtype dtype, rw_shape shape, double spread)
{
    rw_tensor *const p = rw_param(l->ctx, name, dtype, shape);
    rw_init_normal(p, 0, spread);
    return p;
}

static void layer_open(struct layer *l, const struct sizes *s, rw_dtype dtype)
{
    figure_must(NULL, rw_context_create(&l->ctx, &(rw_context_params){ .seed = 1 }));
    figure_must(l->ctx, rw_tape_create(&l->t, l->ctx));
    l->x = param(l, "x", dtype, RW_SHAPE(s->tokens, s->width), 1);
    l->router = param(l, "router", dtype, RW_SHAPE(s->experts, s->width), 0.05);
    l->up = param(l, "up", dtype, RW_SHAPE(s->experts, s->inner, s->width), 0.05);
    l->down = param(l, "down", dtype, RW_SHAPE(s->experts, s->width, s->inner), 0.05);
    l->dense_up = param(l, "dense_up", dtype, RW_SHAPE(s->chosen * s->inner, s->width), 0.05);
    l->dense_down = param(l, "dense_down", dtype, RW_SHAPE(s->width, s->chosen * s->inner), 0.05);
}

static rw_tensor *dense(struct layer *l)
{
    return rw_linear(l->t, rw_silu(l->t, rw_linear(l->t, l->x, l->dense_up, RW_NONE)), l->dense_down, RW_NONE);
}

static rw_tensor *experts(struct layer *l, const struct sizes *s)
{
    rw_tape *const t = l->t;
    const rw_moe_router_params params = { .choice = { .k = s->chosen } };
    rw_moe_routes routes;
    rw_tensor *index;
    rw_tensor *const logits = rw_cast(t, rw_linear(t, l->x, l->router, RW_NONE), RW_F32);
    rw_tensor *const weights = rw_moe_router(t, logits, &params, &index, NULL);
    if (rw_moe_route(t, index, s->experts, &routes)) return NULL;
    rw_tensor *const h = rw_moe_silu_weigh(t, rw_moe_linear_of_tokens(t, l->x, l->up, &routes), weights, &routes);
    return rw_moe_combine(t, rw_moe_linear(t, h, l->down, &routes), &routes);
}

/* Milliseconds of a step. */
static double step(struct layer *l, const struct sizes *s, bool of_experts)
{
    rw_zero_grad(l->ctx);
    const double begin = now_s();
    rw_tensor *const y = of_experts ? experts(l, s) : dense(l);
    figure_must(l->ctx, rw_backward(l->t, rw_mean(l->t, rw_mul(l->t, y, y), RW_ALL_AXES, false)));
    const double ms = 1e3 * (now_s() - begin);
    rw_tape_reset(l->t);
    return ms;
}

/* Prints the step time of a layer of experts over that of a dense layer of the same arithmetic. */
static void compare(const struct sizes *s, rw_dtype dtype, int rounds)
{
    struct layer l;
    double ms[2][64];
    char name[160];
    layer_open(&l, s, dtype);
    for (int i = 0; i < rounds + 1; i++) /* the first of each makes plans */
        for (int k = 0; k < 2; k++) ms[k][i ? i - 1 : 0] = step(&l, s, k);
    const double plain = median_of(ms[0], rounds), mixed = median_of(ms[1], rounds);
    snprintf(name, sizeof name,
             "step time of %lld experts, %lld of them a token's, %lld to %lld, over a dense layer of the same "
             "arithmetic, %s (%.4g and %.4g ms)", (long long)s->experts, (long long)s->chosen, (long long)s->width,
             (long long)s->inner, rw_dtype_name(dtype), mixed, plain);
    figure(name, mixed / plain, "times", 1.25);
    rw_tape_destroy(&l.t);
    rw_context_destroy(&l.ctx);
}

static void compare_both_types(const struct sizes *s, int rounds)
{
    compare(s, RW_F32, rounds);
    compare(s, RW_BF16, rounds);
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? figure_integer(argv[1], 1, 64) : 5;
    int64_t given[] = { 4096, 512, 256, 64, 8 };
    for (int i = 0; i < 5 && i + 2 < argc; i++) given[i] = figure_integer(argv[i + 2], 1, 1 << 20);
    const struct sizes s = { given[0], given[1], given[2], given[3], given[4] };
    const struct sizes olmoe = { .tokens = 4096, .width = 2048, .inner = 1024, .experts = 64, .chosen = 8 };
    if (s.experts < s.chosen) {
        fprintf(stderr, "moe_layer: expected at least %lld experts, the number per token, got %lld\n",
                (long long)s.chosen, (long long)s.experts);
        return 2;
    }
    compare_both_types(&s, rounds);
    if (argc < 3) compare_both_types(&olmoe, rounds);
    return answer_end("moe_layer", 0);
}
