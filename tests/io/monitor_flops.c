/* A monitor's counts of work per step: that of the model and that of the hardware, from the costs of ops. */
#include "io/monitor_fixture.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

Test(monitor_flops, knows_the_work_of_steps_from_the_costs_of_their_ops)
{
    struct fixture b = fixture_open(1, 1);
    rw_monitor *m = NULL;
    struct net net = { .ctx = b.ctx };
    rw_cost cost;
    snprintf(zoo_path, sizeof zoo_path, "%s/rewind-work-%ld.jsonl", P_tmpdir, (long)getpid());
    remove(zoo_path);
    net_init(&net, b.ctx, 2, 16, RW_F32, 1);
    cr_assert_eq(ckpt_set_policy(b.t, "full"), RW_OK);
    cr_assert_eq(rw_monitor_create(&m, b.ctx, zoo_path), RW_OK);
    cr_assert_eq(rw_monitor_watch(m, &(rw_monitor_sources){ .peak_flops = 1e6 }), RW_OK);
    for (int i = 0; i < 3; i++) { /* micro-batches */
        rw_tensor *const loss = net_loss(&net, b.t, 8, 0);
        cr_assert_eq(rw_tape_cost(b.t, loss, &cost), RW_OK);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK);
        rw_tape_reset(b.t);
    }
    const float some[64] = { 1 };
    float out[64];
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(8, 8), some,
                                  sizeof some); /* what is only evaluated is no step */
    cr_assert_eq(rw_read(b.t, rw_matmul(b.t, x, x), out, sizeof out), RW_OK);
    cr_assert_eq(rw_clip_grad_norm(b.ctx, 1, NULL), RW_OK); /* nor is work on gradients */
    monitor_step(m, 1);
    const double model = 3 * cost.model_flops;
    const double all = 3 * (cost.forward_flops + cost.backward_flops + cost.replayed_flops);
    cJSON *line = line_last();
    cr_assert(cost.replayed_flops > 0);
    line_expect(line, "model_flops_per_s", model / 2);
    line_expect(line, "hardware_flops_per_s", all / 2);
    line_expect(line, "mfu", model / 2 / 1e6);
    line_expect(line, "hfu", all / 2 / 1e6);
    cJSON_Delete(line);
    monitor_step(m, 1);
    line = line_last();
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(line, "model_flops_per_s"), "nothing has run");
    cJSON_Delete(line);
    rw_monitor_destroy(&m);
    fixture_close(&b);
    remove(zoo_path);
}

static void expect_model_flops(struct fixture *b, rw_tensor *y, double wanted)
{
    rw_cost cost;
    cr_assert_eq(rw_tape_cost(b->t, rw_mean(b->t, y, RW_ALL_AXES, false), &cost), RW_OK, "%s",
                 rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    cr_expect_leq(cost.model_flops, cost.forward_flops + cost.backward_flops);
    cr_expect_float_eq(cost.model_flops, wanted, 0.5, "%g, not %g", cost.model_flops, wanted);
}

static rw_tensor *some_param(struct fixture *b, const char *name, rw_shape shape)
{
    rw_tensor *const p = rw_param(b->ctx, name, RW_F32, shape);
    cr_assert_eq(rw_init_normal(p, 0, 1), RW_OK);
    return p;
}

/* Backward has twice forward's products. Re-executions by a rule - the scores of attention, the logits of chunks - and
   ops other than products count for the hardware only. */
Test(monitor_flops, model_flops_are_three_times_the_products_of_forward)
{
    struct fixture b = fixture_open(1, 1);
    enum { ROWS = 24, IN = 8, OUT = 12, HEADS = 2, SEQ = 16, D = 4 };
    rw_tensor *const x = some_param(&b, "x", RW_SHAPE(ROWS, IN)), *const w = some_param(&b, "w", RW_SHAPE(OUT, IN));
    const double product = 2.0 * ROWS * IN * OUT;
    expect_model_flops(&b, rw_gelu(b.t, rw_linear(b.t, x, w, RW_NONE)), 3 * product);
    expect_model_flops(&b, rw_linear_gelu(b.t, x, w, RW_NONE), 3 * product);
    expect_model_flops(&b, rw_exp(b.t, x), 0);
    int32_t targets[ROWS] = { 0 };
    const rw_cross_entropy_params chunks = { .chunk = 8 };
    rw_tensor *const target = rw_input(b.t, RW_I32, RW_SHAPE(ROWS), targets, sizeof targets);
    expect_model_flops(&b, rw_linear_cross_entropy(b.t, x, w, target, &chunks), 3 * product);
    const rw_shape heads = RW_SHAPE(1, HEADS, SEQ, D);
    rw_tensor *const q = some_param(&b, "q", heads), *const k = some_param(&b, "k", heads);
    rw_tensor *const v = some_param(&b, "v", heads);
    const double square = 2 * 2.0 * HEADS * SEQ * SEQ * D;
    for (int causal = 0; causal < 2; causal++) {
        const rw_attention_params params = { .causal = causal };
        expect_model_flops(&b, rw_attention(b.t, q, k, v, &params), 3 * square / (1 + causal));
    }
    fixture_close(&b);
}
