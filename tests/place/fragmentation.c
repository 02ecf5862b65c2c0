/*
 * Placement of tapes with unusual lifetimes, and of the models of bench/models: the arena is within 2 % of the live
 * bytes. With offload the live bytes are close to the budget at almost every action, and within a tenth must suffice.
 */
#include "plan/build.h"
#include "support/support.h"
#include "models/model.h"
#include "irregular_models.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

Test(fragmentation, arenas_are_close_to_the_live_bytes)
{
    for (int i = 0; i < zoo_entries; i++)
        for (int p = 0; p < zoo_n_policies; p++) {
            struct fixture b = fixture_open(1, 2);
            rw_prediction x;
            rw_tensor *const loss = zoo[i].loss(&zoo[i], b.ctx, b.t);
            cr_assert_eq(rw_tape_plan(b.t, loss, zoo_policies[p], &x), RW_OK, "%s: %s", zoo[i].name,
                         rw_error_message(b.ctx));
            cr_expect(x.peak_bytes >= x.largest_live && (double)x.peak_bytes <= 1.02 * (double)x.largest_live,
                      "%s, %s: %zu bytes, %zu live", zoo[i].name, zoo_policies[p], x.peak_bytes, x.largest_live);
            fixture_close(&b);
        }
}

enum { TOKENS = 96, SIDE = 32 };

/* Only forward, as executed by rw_eval(), rw_read() and rw_item() outside a training step, under any policy. */
static void check_evaluation(rw_tape *t, const rw_tensor *loss, const char *name)
{
    const struct rw_request request = { .kind = RW_PLAN_EVAL, .values = &loss->id, .n_values = 1,
                                        .policy = &rw_policy_none };
    rw_plan *plan;
    cr_assert_eq(rw_plan_build(t, &request, &plan), RW_OK, "%s", rw_error_message(t->ctx));
    const bool is_close = (double)plan->arena_bytes <= 1.02 * (double)plan->largest_live;
    cr_expect(plan->arena_bytes >= plan->largest_live && is_close, "%s, evaluated: %llu bytes, %llu live", name,
              (unsigned long long)plan->arena_bytes, (unsigned long long)plan->largest_live);
    rw_plan_release(plan);
}

/* Places the model's plans under every policy, and compares the arena with the live bytes. */
static void check_model(const struct model_config *c, int batch, int size)
{
    static const char *const policies[] = { "none",
                                            "full",
                                            "uniform:2",
                                            "uniform:3",
                                            "block:2",
                                            "ops:linear,conv2d",
                                            "ops:linear,attention",
                                            "selective:block,mlp",
                                            "selective:core_attn",
                                            "discard:bn,relu",
                                            "names:keep=qkv,attn_out",
                                            "budget:80%",
                                            "budget:60%",
                                            "budget:30%",
                                            "full+offload:block",
                                            "budget:70%+offload" };
    struct fixture b = fixture_open(1, 2);
    struct model *const m = malloc(sizeof *m);
    int32_t *const tokens = calloc((size_t)(batch * size), sizeof *tokens);
    cr_assert(m && tokens);
    cr_assert_eq(model_declare(m, b.ctx, c), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const loss = model_loss(m, b.t, batch, size, tokens, tokens);
    cr_assert(loss, "%s", rw_error_message(b.ctx));
    check_evaluation(b.t, loss, model_name(c->kind));
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        rw_prediction x;
        const rw_status status = rw_tape_plan(b.t, loss, policies[i], &x);
        rw_error_clear(b.ctx);
        if (status == RW_ERR_BUDGET || status == RW_ERR_POLICY) continue; /* an op that the model does not have */
        cr_assert_eq(status, RW_OK, "%s, %s", model_name(c->kind), policies[i]);
        const double most = (strstr(policies[i], "offload") ? 1.1 : 1.02) * (double)x.largest_live;
        cr_expect(x.peak_bytes >= x.largest_live && (double)x.peak_bytes <= most, "%s %s, %s: %zu bytes, %zu live",
                  model_name(c->kind), rw_dtype_name(c->dtype), policies[i], x.peak_bytes, x.largest_live);
    }
    fixture_close(&b);
    free(m);
    free(tokens);
}

/* A text of one sequence or of four. */
static void check_models(rw_dtype dtype, enum model_kind first, enum model_kind last)
{
    static const char *const presets[] = { "tiny", "small" };
#ifdef __SANITIZE_ADDRESS__
    const int sizes = 1; /* the same code on longer tapes */
#else
    const int sizes = 2;
#endif
    for (enum model_kind kind = first; kind <= last; kind++)
        for (int i = 0; i < sizes; i++) {
            const int size = kind >= MODEL_VIT ? SIDE : TOKENS, batch = kind >= MODEL_VIT || !i ? 4 : 1;
            struct model_config c = { .kind = kind, .dtype = dtype, .dropout = 0.1f };
            cr_assert(model_preset(&c, presets[i]));
            if (c.max_seq < size) c.max_seq = size;
            check_model(&c, batch, size);
        }
}

Test(fragmentation, so_are_those_of_models_in_float32, .timeout = 900)
{
    check_models(RW_F32, 0, MODEL_KINDS - 1);
}
Test(fragmentation, so_are_those_of_models_in_bfloat16, .timeout = 900)
{
    check_models(RW_BF16, 0, MODEL_KINDS - 1);
}
Test(fragmentation, so_are_those_of_densenet_in_float64)
{
    check_models(RW_F64, MODEL_DENSENET121, MODEL_DENSENET121);
}

Test(fragmentation, so_are_those_of_llama_in_float64)
{
    check_models(RW_F64, MODEL_LLAMA, MODEL_LLAMA);
}
