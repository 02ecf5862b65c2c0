/* Runs the small models of step_graph_fixture.h, recorded or launched. */
#include "run/step_graph_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

void graph_release(struct graph_outcome *o)
{
    free(o->gradients);
    free(o->parameters);
}

void graph_same(const struct graph_outcome *a, const struct graph_outcome *b, const char *what)
{
    cr_assert_eq(memcmp(a->loss, b->loss, sizeof a->loss), 0, "%s: losses", what);
    cr_assert_eq(a->bytes, b->bytes);
    cr_assert_eq(first_difference(a->gradients, b->gradients, a->bytes), -1, "%s: gradients", what);
    cr_assert_eq(a->parameter_bytes, b->parameter_bytes);
    cr_assert_eq(first_difference(a->parameters, b->parameters, a->parameter_bytes), -1, "%s: parameters", what);
    cr_assert_eq(a->generator.seed, b->generator.seed, "%s: generator", what);
    cr_assert_eq(a->generator.offset, b->generator.offset, "%s: generator", what);
}

/* Other tokens in each step. */
static void fill(int32_t *tokens, int32_t *targets, int vocab, int step)
{
    for (int i = 0; i < GRAPH_BATCH * GRAPH_SEQ; i++) {
        tokens[i] = (i * 7 + step * 3) % vocab;
        targets[i] = (i * 5 + step) % vocab;
    }
}

static void finish(struct fixture *b, rw_optimizer **opt, struct graph_outcome *o)
{
    o->gradients = all_gradients(b->ctx, &o->bytes);
    o->parameters = all_parameters(b->ctx, &o->parameter_bytes);
    o->generator = rw_generator_get(b->ctx);
    rw_optimizer_destroy(opt);
    fixture_close(b);
}

static struct fixture begin(const struct model_config *c, const char *policy, struct model *m, rw_optimizer **opt)
{
    struct fixture b = fixture_open(5, 2);
    cr_assert_eq(model_create(m, b.ctx, c), RW_OK, "%s", rw_error_message(b.ctx));
    const rw_offload fast = { .out_bytes_per_s = 1e12, .in_bytes_per_s = 1e12 }; /* budgets offload all they can */
    cr_assert_eq(rw_context_set_offload(b.ctx, &fast), RW_OK);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    cr_assert_eq(rw_adamw_create(opt, b.ctx, &(rw_adamw_params){ .lr = 1e-2 }), RW_OK);
    return b;
}

struct graph_outcome graph_record(const struct model_config *c, const char *policy, double max_norm)
{
    struct model m;
    rw_optimizer *opt = NULL;
    struct graph_outcome o = { 0 };
    struct fixture b = begin(c, policy, &m, &opt);
    int32_t tokens[GRAPH_BATCH * GRAPH_SEQ], targets[GRAPH_BATCH * GRAPH_SEQ];
    size_t plans = 0;
    for (int s = 0; s < GRAPH_STEPS; s++) {
        fill(tokens, targets, c->vocab, s);
        rw_optimizer_set_lr(opt, 1e-2 / (s + 1));
        rw_zero_grad(b.ctx);
        rw_tensor *const loss = model_loss(&m, b.t, GRAPH_BATCH, GRAPH_SEQ, tokens, targets);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        o.loss[s] = rw_item(b.t, loss);
        rw_memory_stats(b.ctx, &o.memory);
        if (s == 1) plans = o.memory.plans; /* includes the optimizer's */
        if (s > 1) cr_expect_eq(o.memory.plans, plans, "%s: planned anew for other tokens", policy);
        if (max_norm > 0) cr_assert_eq(rw_clip_grad_norm(b.ctx, max_norm, NULL), RW_OK);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
        rw_tape_reset(b.t);
    }
    finish(&b, &opt, &o);
    return o;
}

struct graph_outcome graph_launch(const struct model_config *c, const char *policy, const rw_graph_params *how,
                                  bool inside, bool read_losses)
{
    struct model m;
    rw_optimizer *opt = NULL;
    rw_graph *g = NULL;
    struct graph_outcome o = { 0 };
    struct fixture b = begin(c, policy, &m, &opt);
    int32_t tokens[GRAPH_BATCH * GRAPH_SEQ], targets[GRAPH_BATCH * GRAPH_SEQ];
    fill(tokens, targets, c->vocab, 0);
    rw_tensor *const x = rw_input(b.t, RW_I32, RW_SHAPE(GRAPH_BATCH, GRAPH_SEQ), tokens, sizeof tokens);
    rw_tensor *const y = rw_input(b.t, RW_I32, RW_SHAPE(GRAPH_BATCH, GRAPH_SEQ), targets, sizeof targets);
    rw_tensor *const loss = model_loss_of(&m, b.t, x, y);
    rw_graph_params params = *how;
    params.recorders[RW_RECORDERS_MAX - 1] = inside ? rw_record_update_inside(opt) : rw_record_update(opt);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, &params), RW_OK, "%s", rw_error_message(b.ctx));
    for (int s = 0; s < GRAPH_STEPS; s++) {
        fill(tokens, targets, c->vocab, s);
        cr_assert_eq(rw_input_write(x, tokens, sizeof tokens), RW_OK);
        cr_assert_eq(rw_input_write(y, targets, sizeof targets), RW_OK);
        rw_optimizer_set_lr(opt, 1e-2 / (s + 1));
        cr_assert_eq(audited_launch(g, b.t), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
        if (read_losses || s == GRAPH_STEPS - 1) o.loss[s] = rw_item(b.t, loss);
        rw_memory_stats(b.ctx, &o.memory);
        cr_assert_eq(o.memory.predicted_peak, o.memory.measured_peak);
    }
    rw_graph_destroy(&g);
    finish(&b, &opt, &o);
    return o;
}

struct model_config graph_config(enum model_kind kind, rw_dtype dtype)
{
    return (struct model_config){ .kind = kind,
                                  .layers = 2,
                                  .width = 16,
                                  .heads = 4,
                                  .kv_heads = kind == MODEL_GPT ? 4 : 2,
                                  .vocab = 61,
                                  .max_seq = GRAPH_SEQ,
                                  .dropout = 0.1f,
                                  .dtype = dtype };
}
