/*
 * A plan depends only on tape, policy, costs and threads. It is identical in a new context and in one that has had
 * other ops, names, shapes and tapes, for any memory addresses; for the same tape it is the same whenever it is made.
 */
#include "remat/random_tape.h"
#include "support/support.h"

#include "base/digest.h"
#include "models/model.h"
#include "plan/build.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Everything that a run executes: which nodes in which order, in which lane, where each operand is, and all waits. */
static struct rw_digest digest_of(const rw_plan *p)
{
    const size_t n = 4 * p->n_actions + p->n_words + 2 * p->n_waits + 2 * p->n_slots + 2 * p->n_workspaces + 8;
    uint64_t *const all = calloc(n, sizeof *all);
    size_t k = 0;
    cr_assert_not_null(all);
    for (size_t i = 0; i < p->n_actions; i++) {
        const struct rw_action *const a = &p->actions[i];
        all[k++] = a->node;
        all[k++] = a->word;
        all[k++] = a->n_words;
        all[k++] = (uint64_t)a->kind << 16 | (uint64_t)a->lane << 8 | a->flags;
    }
    for (size_t i = 0; i < p->n_words; i++) all[k++] = p->words[i];
    for (size_t i = 0; i < p->n_waits; i++) all[k++] = p->waits[i].action, all[k++] = p->waits[i].on;
    for (size_t i = 0; i < p->n_slots; i++) all[k++] = p->slots[i].offset, all[k++] = p->slots[i].value;
    for (size_t i = 0; i < p->n_workspaces; i++) all[k++] = p->workspaces[i].action, all[k++] = p->workspaces[i].bytes;
    all[k++] = p->n_actions, all[k++] = p->n_words, all[k++] = p->n_waits, all[k++] = p->n_slots;
    all[k++] = p->arena_bytes, all[k++] = p->store_bytes, all[k++] = p->largest_live, all[k++] = p->kept_bytes;
    cr_assert_eq(k, n);
    const struct rw_digest d = rw_digest_bytes(all, n * sizeof *all, 1);
    free(all);
    return d;
}

/* Other ops, regions, tags, shapes and steps than the program's, all of which the context remembers. */
static void live_a_little(struct fixture *b)
{
    cr_assert_eq(ckpt_set_policy(b->t, "full"), RW_OK);
    for (int step = 0; step < 3; step++) {
        rw_tensor *x = rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(7 + step, 5), NULL, 0));
        ckpt_begin(b->t, step ? "mlp" : "another");
        for (int i = 0; i < 4 + step; i++)
            x = ckpt_name(b->t, rw_sigmoid(b->t, counted_square(b->t, rw_exp(b->t, x), i)), "tag");
        ckpt_end(b->t);
        cr_assert_eq(rw_tape_cost(b->t, rw_mean(b->t, x, RW_ALL_AXES, false), &(rw_cost){ 0 }), RW_OK, "%s",
                     rw_error_message(b->ctx));
        rw_tape_reset(b->t);
    }
}

/* Tapes that are placed by a randomized search, because the simple heuristics are not good enough (remat/budgets.c). */
static const uint64_t searched[] = { 8, 58, 72 };
#define SEARCHED (sizeof searched / sizeof *searched)

/* A model's step, or one of the random tapes, which are numbered after the models. */
static rw_tensor *record(struct fixture *b, struct model *m, int program)
{
    if (program >= MODEL_KINDS)
        return random_tape(b->t, rw_param(b->ctx, "p", RW_F32, RW_SHAPE(SYNTH_UNIT / 4)),
                           30 + (int)searched[program - MODEL_KINDS] % 34, searched[program - MODEL_KINDS]);
    const enum model_kind kind = (enum model_kind)program;
    static const int32_t tokens[2 * 48] = { 5, 3, 200, 17, 90 };
    struct model_config config = { .kind = kind };
    cr_assert(model_preset(&config, "tiny"));
    config.dropout = kind == MODEL_GPT ? 0.1f : 0;
    config.max_seq = 48;
    cr_assert_eq(model_create(m, b->ctx, &config), RW_OK, "%s", rw_error_message(b->ctx));
    return model_loss(m, b->t, 2, 48, tokens, tokens);
}

/* The digest of the plan under a policy, and its number of offload slots. */
static struct rw_digest plan_under(struct fixture *b, const rw_tensor *loss, const char *policy, size_t *ret_slots)
{
    rw_plan *plan = NULL;
    const uint32_t value = loss->id;
    cr_assert_eq(ckpt_set_policy(b->t, policy), RW_OK, "%s", rw_error_message(b->ctx));
    const struct rw_request request = rw_step_request(b->t, &value, 1);
    const rw_status status = rw_plan_build(b->t, &request, &plan);
    *ret_slots = 0;
    if (status == RW_ERR_BUDGET) { /* the same each time, too */
        const struct rw_digest said = rw_digest_bytes(rw_error_message(b->ctx), strlen(rw_error_message(b->ctx)), 1);
        rw_error_clear(b->ctx);
        return said;
    }
    cr_assert_eq(status, RW_OK, "%s: %s", policy, rw_error_message(b->ctx));
    const struct rw_digest d = digest_of(plan);
    *ret_slots = plan->n_slots;
    rw_plan_release(plan);
    return d;
}

static const char *const policies[] = { "none", "full", "uniform:2", "ops:linear,attention", "budget:80%", "budget:55%",
                                        "budget:30%", "budget:60%+offload", "selective:mlp+offload:block" };
#define POLICIES (sizeof policies / sizeof *policies)

/* Plans one program in new and used contexts, with other memory addresses, and compares digests. */
static void check(int program)
{
    struct rw_digest first[POLICIES];
    for (int way = 0; way < 3; way++) {
        const rw_offload o = { .out_bytes_per_s = 4e9, .in_bytes_per_s = 3e9 };
        struct model m;
        void *noise[64];
        size_t moved = 0, slots;
        for (int i = 0; i < 64; i++) noise[i] = malloc((size_t)(way * 4099 * (i % 7 + 1) + 1));
        struct fixture b = fixture_open(3, 2);
        cr_assert_eq(rw_context_set_offload(b.ctx, &o), RW_OK);
        if (way == 2) live_a_little(&b);
        for (int i = 0; i < 64; i += 2) free(noise[i]);
        const rw_tensor *const loss = record(&b, &m, program);
        for (size_t n = 0; n < POLICIES; n++) {
            const size_t i = way == 1 ? POLICIES - 1 - n : n; /* and in another order */
            const struct rw_digest d = plan_under(&b, loss, policies[i], &slots);
            if (!way) first[i] = d;
            cr_expect(rw_digest_equal(d, first[i]), "%d, %s: another plan, way %d", program, policies[i], way);
            moved += slots;
        }
        cr_expect(moved || program >= MODEL_KINDS);
        fixture_close(&b);
        for (int i = 1; i < 64; i += 2) free(noise[i]);
    }
    for (size_t i = 1; i < POLICIES && program < MODEL_KINDS; i++)
        cr_expect_not(rw_digest_equal(first[i - 1], first[i]), "%s is like the one before", policies[i]);
}

Test(determinism, whatever_the_context_has_known)
{
    check(MODEL_GPT);
    check(MODEL_DEEPSEEK);
    for (int i = 0; i < (int)SEARCHED; i++) check(MODEL_KINDS + i);
}
