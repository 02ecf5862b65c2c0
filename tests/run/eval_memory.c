/*
 * Evaluating takes the memory of forward alone: for each model of bench/models, under each policy, the arena of
 * rw_eval(), of rw_read() and of rw_item() in a no-grad scope is at most 1.02 times the largest set of values that are
 * live together when each is freed after its last reader. That set is computed here, from the nodes of the tape; the
 * loss is the same in each way.
 */
#include "support/support.h"
#include "base/round_up.h"
#include "models/model.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define OK(ctx, call) cr_assert_eq((call), RW_OK, "%s: %s", #call, rw_error_message(ctx))

enum { TOKENS = 64, SIDE = 32, BATCH = 4 };

enum way { EVAL, READ, NO_GRAD, WAYS };
static const char *const ways[WAYS] = { "rw_eval()", "rw_read()", "rw_item() without gradients" };

/* ---- the largest live set ---- */

struct live {
    const rw_tape *t;
    bool *needed; /* by node */
    size_t *end;  /* by value: its last reader; SIZE_MAX for one that is read after the run */
};

static bool commits(const rw_tape *t, const struct rw_node *node)
{
    return t->ctx->ops[node->op]->flags & RW_OP_COMMIT;
}

static uint32_t input_of(const rw_tape *t, const struct rw_node *node, uint32_t i)
{
    return rw_tape_base(t, t->operands[node->first_input + i]);
}

/* Marks what the loss depends on, and with effects also what commits write. */
static void find_needed(const struct live *l, uint32_t loss, bool effects)
{
    const rw_tape *const t = l->t;
    l->end[loss] = l->end[rw_tape_base(t, loss)] = SIZE_MAX;
    for (size_t n = t->n_nodes; n-- > 0;) {
        const struct rw_node *const node = &t->nodes[n];
        l->needed[n] = effects && commits(t, node);
        for (uint32_t i = 0; i < node->n_outputs; i++) l->needed[n] |= l->end[node->first_output + i] > 0;
        for (uint32_t i = 0; l->needed[n] && i < node->n_inputs; i++) {
            size_t *const end = &l->end[input_of(t, node, i)], last = commits(t, node) ? SIZE_MAX : n + 1;
            if (*end < last) *end = last;
            l->end[t->operands[node->first_input + i]] = *end; /* of a view: its node is needed */
        }
    }
}

static size_t bytes_of(const rw_tape *t, uint32_t v)
{
    const size_t bytes = rw_tensor_bytes(rw_tape_value(t, v));
    return rw_round_up(bytes, t->ctx->device->alignment);
}

/* The bytes that are live while node n runs: its outputs, its workspace, and what it or a later node reads. */
static size_t live_at(const struct live *l, size_t n)
{
    const rw_tape *const t = l->t;
    const rw_op_call call = rw_call_of(t, &t->nodes[n]);
    size_t bytes = rw_round_up(rw_call_workspace(&call), t->ctx->device->alignment);
    for (uint32_t v = 0; v < t->n_values; v++) {
        const rw_tensor *const x = rw_tape_value(t, v);
        if (x->producer == RW_NONE_ID || x->base != v || x->producer > n || !l->needed[x->producer]) continue;
        if (x->producer == n || l->end[v] > n) bytes += bytes_of(t, v);
    }
    return bytes;
}

static size_t largest_live(const rw_tape *t, uint32_t loss, bool effects)
{
    struct live l = { .t = t };
    size_t most = 0;
    l.needed = calloc(t->n_nodes, sizeof *l.needed);
    l.end = calloc(t->n_values, sizeof *l.end);
    cr_assert(l.needed && l.end);
    find_needed(&l, loss, effects);
    for (size_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        const bool views = node->n_outputs && rw_tape_base(t, node->first_output) != node->first_output;
        const size_t bytes = l.needed[n] && !views && !commits(t, node) ? live_at(&l, n) : 0;
        if (bytes > most) most = bytes;
    }
    free(l.needed);
    free(l.end);
    return most;
}

/* ---- evaluations ---- */

/* Evaluates the model's loss, and compares the arena with that set. */
static double evaluate(enum model_kind kind, const char *policy, enum way way)
{
    static struct model m;
    static int32_t tokens[BATCH * TOKENS];
    const int size = model_is_of_images(kind) ? SIDE : TOKENS;
    struct model_config c = { .kind = kind, .dtype = RW_F32 };
    struct fixture b = fixture_open(1, 1);
    rw_memory memory;
    float value = 0;
    for (int i = 0; i < BATCH * TOKENS; i++) tokens[i] = i * 7 % 61;
    cr_assert(model_preset(&c, "tiny"));
    if (c.max_seq < size) c.max_seq = size;
    OK(b.ctx, model_create(&m, b.ctx, &c));
    OK(b.ctx, ckpt_set_policy(b.t, policy));
    if (way == NO_GRAD) OK(b.ctx, rw_no_grad_begin(b.t));
    rw_tensor *const loss = model_loss(&m, b.t, BATCH, size, tokens, tokens);
    if (way == NO_GRAD) OK(b.ctx, rw_no_grad_end(b.t));
    cr_assert(loss, "%s: %s", model_name(kind), rw_error_message(b.ctx));
    const size_t live = largest_live(b.t, loss->id, way == NO_GRAD);
    if (way == EVAL) OK(b.ctx, rw_eval(b.t, &loss, 1));
    if (way == NO_GRAD) value = (float)rw_item(b.t, loss);
    else OK(b.ctx, rw_read(b.t, loss, &value, sizeof value));
    cr_assert_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
    OK(b.ctx, rw_memory_stats(b.ctx, &memory));
    cr_expect_leq((double)memory.arenas, 1.02 * (double)live, "%s, %s, %s: %zu bytes, %zu live", model_name(kind),
                  policy, ways[way], memory.arenas, live);
    fixture_close(&b);
    return value;
}

static void each_way(enum model_kind first, enum model_kind last)
{
    static const char *const policies[] = { "none", "full", "uniform:2", "block:2", "ops:linear",
                                            "selective:core_attn,bn,ssd", "names:keep=qkv", "discard:relu",
                                            "offload:block", "budget:70%", "total:64MiB" };
    for (enum model_kind kind = first; kind <= last; kind++) {
        const double expected = evaluate(kind, "none", READ);
        for (size_t p = 0; p < sizeof policies / sizeof *policies; p++)
            for (enum way way = 0; way < WAYS; way++)
                cr_expect_eq(evaluate(kind, policies[p], way), expected, "%s, %s, %s", model_name(kind), policies[p],
                             ways[way]);
    }
}

Test(eval_memory, of_models_of_text, .timeout = 120) { each_way(MODEL_GPT, MODEL_T5); }
Test(eval_memory, of_models_of_images, .timeout = 120) { each_way(MODEL_VIT, MODEL_UNET); }

/* The comparison can fail: the arena of a step with gradients keeps what backward reads. */
Test(eval_memory, of_a_step_is_more)
{
    static struct model m;
    static const int32_t tokens[BATCH * TOKENS];
    struct model_config c = { .kind = MODEL_GPT, .dtype = RW_F32 };
    struct fixture b = fixture_open(1, 1);
    rw_memory memory;
    cr_assert(model_preset(&c, "tiny"));
    if (c.max_seq < TOKENS) c.max_seq = TOKENS;
    OK(b.ctx, model_create(&m, b.ctx, &c));
    rw_tensor *const loss = model_loss(&m, b.t, BATCH, TOKENS, tokens, tokens);
    cr_assert(loss, "%s", rw_error_message(b.ctx));
    const size_t live = largest_live(b.t, loss->id, false);
    cr_assert_gt(live, 0);
    rw_item(b.t, loss);
    OK(b.ctx, rw_memory_stats(b.ctx, &memory));
    cr_expect_gt(memory.arenas, 2 * live);
    fixture_close(&b);
}
