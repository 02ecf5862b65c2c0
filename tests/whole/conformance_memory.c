/* Conformance: which memory is held, for how long, and that nothing grows. The list of behaviors is in
   conformance_common.h. */
#include "whole/conformance_common.h"

#include "plan/cache.h"
#include "run/run_advance.h"
#include "api/eval_and_backward.h"
#include "base/alloc.h"

#include <malloc.h>

/*
 * The lifetime of every buffer in the arena, derived from a plan: an output begins one, the last read of it ends it.
 * Running the plan with everything else poisoned proves that the lifetimes are right.
 */
struct life {
    uint32_t first, last; /* steps */
    uint64_t at;          /* byte of the arena */
    size_t bytes;
};

struct lives {
    const rw_plan *plan;
    struct life *life;
    size_t n;
};

static size_t value_bytes(const rw_tape *t, const rw_plan *p, uint32_t v)
{
    const uint32_t layout = v < p->mark_values ? rw_tape_value(t, v)->layout : p->values[v - p->mark_values].layout;
    const uint8_t dtype = v < p->mark_values ? rw_tape_value(t, v)->dtype : p->values[v - p->mark_values].dtype;
    return (size_t)rw_layout_get(&t->ctx->layouts, layout)->numel * rw_dtype_size((rw_dtype)dtype);
}

static void read_at(struct lives *l, uint32_t word, uint32_t step)
{
    if (rw_word_is_source(word)) return;
    for (size_t i = l->n; i-- > 0;) {
        if (l->life[i].at != rw_word_offset(l->plan, word)) continue;
        l->life[i].last = step;
        return;
    }
    cr_assert_fail("step %u reads what no step wrote", step);
}

static struct lives lives_of(const rw_tape *t, const rw_plan *p)
{
    struct lives l = { .plan = p, .life = calloc(p->n_words + 1, sizeof *l.life) };
    for (uint32_t i = 0; i < p->n_actions; i++) {
        const struct rw_node *const node = rw_plan_node(t, p, p->actions[i].node);
        const uint32_t *const word = p->words + p->actions[i].word;
        for (int k = 0; k < node->n_inputs; k++) read_at(&l, word[k], i);
        for (int k = 0; k < node->n_outputs; k++)
            if (!rw_word_is_source(word[node->n_inputs + k]))
                l.life[l.n++] = (struct life){ i, i, rw_word_offset(p, word[node->n_inputs + k]),
                                               value_bytes(t, p, node->first_output + (uint32_t)k) };
    }
    return l;
}

/* Bytes that some later action still reads. */
static size_t held_after(const struct lives *l, size_t step)
{
    size_t bytes = 0;
    for (size_t i = 0; i < l->n; i++)
        if (l->life[i].first <= step && l->life[i].last > step) bytes += l->life[i].bytes;
    return bytes;
}

/* After each action, overwrites all of the arena that is not held. */
struct poison {
    struct rw_observer observer;
    const struct lives *lives;
    bool *keep; /* per byte */
};

static rw_status poison_after(struct rw_observer *o, const struct rw_at *at)
{
    struct poison *const p = (struct poison *)o;
    const rw_plan *const plan = at->run->plan;
    memset(p->keep, 0, plan->arena_bytes);
    for (size_t i = 0; i < p->lives->n; i++) {
        const struct life *const l = &p->lives->life[i];
        if (l->first <= at->action && l->last > at->action) memset(p->keep + l->at, 1, l->bytes);
    }
    for (size_t i = 0; i < plan->arena_bytes; i++)
        if (!p->keep[i]) ((unsigned char *)at->run->arena->data)[i] = 0xff; /* a NaN in every type */
    return RW_OK;
}

static rw_plan *step_plan(struct fixture *b, rw_tensor *loss)
{
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss->id, .n_values = 1,
                                        .policy = &b->t->policy };
    rw_plan *plan = NULL;
    cr_assert_eq(rw_plan_get(b->t, &request, &plan), RW_OK, "%s", rw_error_message(b->ctx));
    return plan;
}

static void run_poisoned(struct fixture *b, rw_plan *plan, const struct lives *lives)
{
    struct poison p = { .observer.after = poison_after, .lives = lives, .keep = malloc(plan->arena_bytes + 1) };
    struct rw_run *r = NULL;
    cr_assert_eq(rw_run_make(b->t, plan, 0, &r), RW_OK);
    cr_assert_eq(rw_run_watch(r, &p.observer), RW_OK);
    cr_assert_eq(rw_run_through(r, plan->n_actions), RW_OK, "%s", rw_error_message(b->ctx));
    free(p.keep);
}

#define LAYERS 6
static const char *const held_policies[] = { "none", "full", "uniform:1", "block:3", "ops:linear" };

static rw_tensor *layers(struct fixture *b)
{
    rw_tensor *x = rw_randn(b->t, RW_F32, RW_SHAPE(16, 32));
    for (int l = 0; l < LAYERS; l++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", l);
        rw_tensor *const w = normal(b, name, RW_F32, RW_SHAPE(32, 32), 0.2);
        ckpt_begin(b->t, "layer");
        for (int i = 0; i < 3; i++) x = rw_tanh(b->t, rw_linear(b->t, x, w, RW_NONE));
        ckpt_end(b->t);
    }
    return rw_mean(b->t, x, RW_ALL_AXES, false);
}

/* The last action of backward that belongs to each layer. */
static void last_steps(const rw_tape *t, const rw_plan *p, size_t *last)
{
    for (size_t i = 0; i < p->n_actions; i++) {
        const struct rw_node *const node = rw_plan_node(t, p, p->actions[i].node);
        const uint32_t region = rw_node_region(t, node);
        if (p->actions[i].kind == RW_ACTION_BACKWARD && region != RW_NONE_ID) last[region] = i;
    }
}

/* 4 */
Test(conformance_memory, bytes_held_drop_at_every_layer_of_backward_and_nothing_is_held_when_it_ends)
{
    NEEDS_HOST_MEMORY();
    for (size_t k = 0; k < sizeof held_policies / sizeof *held_policies; k++) {
        struct fixture b = fixture_open(3, 2);
        ckpt_set_policy(b.t, held_policies[k]);
        rw_plan *const plan = step_plan(&b, layers(&b));
        struct lives lives = lives_of(b.t, plan);
        size_t last[LAYERS] = { 0 };
        last_steps(b.t, plan, last);
        size_t before = SIZE_MAX; /* after the last layer: kept values and the one gradient that is propagated */
        for (int l = LAYERS; l-- > 0;) {
            const size_t now = held_after(&lives, last[l]);
            cr_assert_lt(now, before, "%s, layer %d: %zu bytes held, %zu before it", held_policies[k], l, now, before);
            before = now;
        }
        cr_assert_eq(held_after(&lives, plan->n_actions - 1), 0, "%s", held_policies[k]);
        free(lives.life);
        fixture_close(&b);
    }
}

/* 4. If anything outside of the held bytes were read, the gradients would be NaN. */
Test(conformance_memory, bytes_that_are_not_held_are_never_read)
{
    NEEDS_HOST_MEMORY();
#ifdef __SANITIZE_ADDRESS__
    cr_skip_test("such bytes are poisoned: a read of one is reported, and so is this test's own writing");
#endif
    for (size_t k = 0; k < sizeof held_policies / sizeof *held_policies; k++) {
        struct fixture b = fixture_open(3, 2);
        ckpt_set_policy(b.t, held_policies[k]);
        size_t bytes;
        rw_plan *plan = step_plan(&b, layers(&b));
        struct lives lives = lives_of(b.t, plan);
        run_poisoned(&b, plan, &lives);
        unsigned char *const poisoned = all_gradients(b.ctx, &bytes);
        free(lives.life);
        fixture_close(&b);

        b = fixture_open(3, 2);
        ckpt_set_policy(b.t, held_policies[k]);
        cr_assert_eq(rw_backward(b.t, layers(&b)), RW_OK);
        unsigned char *const plain = all_gradients(b.ctx, &bytes);
        cr_assert_eq(first_difference(plain, poisoned, bytes), -1, "%s", held_policies[k]);
        free(plain);
        free(poisoned);
        fixture_close(&b);
    }
}

/* 4 */
Test(conformance_memory, backward_leaves_only_what_the_caller_can_read)
{
    struct fixture b = fixture_open(3, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const loss = layers(&b);
    rw_item(b.t, loss);
    rw_memory m;
    rw_memory_stats(b.ctx, &m);
    cr_assert_eq(m.runs, 1, "the forward part waits for its backward");
    cr_assert_eq(rw_backward(b.t, loss), RW_OK);
    rw_memory_stats(b.ctx, &m);
    cr_assert_eq(m.runs, 0);
    cr_assert_eq(m.arenas, m.predicted_peak, "one arena, and what it takes");
    cr_assert_null(rw_runs_of(b.t)->first);
    cr_assert_eq(b.t->n_held, 1, "the loss and nothing else: %zu", b.t->n_held);
    rw_tape_reset(b.t);
    cr_assert_eq(b.t->n_held, 0);
    rw_memory_stats(b.ctx, &m);
    cr_assert_eq(m.tape, 0, "%zu", m.tape);
    fixture_close(&b);
}

/* 4 */
Test(conformance_memory, several_backward_passes_over_one_tape)
{
    struct fixture b = fixture_open(1, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const p = ramp(&b, "p", 8, 0.5f);
    ckpt_begin(b.t, "r");
    rw_tensor *const y = rw_tanh(b.t, rw_mul(b.t, p, p));
    ckpt_end(b.t);
    rw_tensor *const loss = total(&b, y);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK);
    float once[8], more[8], expected[8];
    rw_read(NULL, rw_gradient(p), once, sizeof once);
    memcpy(expected, once, sizeof expected);
    for (int pass = 2; pass <= 3; pass++) {
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        rw_read(NULL, rw_gradient(p), more, sizeof more);
        /* p is both operands of the product: each adds its half, which is exact, to the existing gradient. */
        for (int i = 0; i < 8; i++) expected[i] = expected[i] + once[i] / 2 + once[i] / 2;
        cr_assert_eq(first_difference(more, expected, sizeof more), -1, "pass %d", pass);
    }
    fixture_close(&b);
}

/* 5 */
Test(conformance_memory, peak_with_recompute_is_below_peak_without_and_equals_the_prediction)
{
    size_t peak[2], kept[2];
    for (int policy = 0; policy < 2; policy++) {
        struct fixture b = fixture_open(1, 2);
        ckpt_set_policy(b.t, policy ? "full" : "none");
        rw_tensor *x = rw_randn(b.t, RW_F32, RW_SHAPE(512, 256));
        for (int block = 0; block < 8; block++) {
            ckpt_begin(b.t, "block");
            for (int i = 0; i < 3; i++) {
                char name[16];
                snprintf(name, sizeof name, "w%d", block * 3 + i);
                x = rw_tanh(b.t, rw_linear(b.t, x, normal(&b, name, RW_F32, RW_SHAPE(256, 256), 0.06), RW_NONE));
            }
            ckpt_end(b.t);
        }
        cr_assert_eq(rw_backward(b.t, rw_mean(b.t, x, RW_ALL_AXES, false)), RW_OK);
        rw_memory m;
        rw_memory_stats(b.ctx, &m);
        cr_assert_eq(m.predicted_peak, m.measured_peak);
        peak[policy] = m.measured_peak;
        kept[policy] = m.kept;
        fixture_close(&b);
    }
    cr_assert_lt(peak[1], peak[0]);
    cr_assert_lt(kept[1], kept[0]);
}

/*
 * 7. Memory of one region's replays is reused by the next region's: more regions cost only their inputs, 4096 floats
 *    each.
 */
Test(conformance_memory, a_replayed_value_is_dropped_after_its_last_use)
{
    size_t peak[2];
    for (int more = 0; more < 2; more++) {
        struct fixture b = fixture_open(1, 1);
        ckpt_set_policy(b.t, "full");
        rw_tensor *x = normal(&b, "p", RW_F32, RW_SHAPE(4096), 0.3);
        for (int r = 0; r < (more ? 8 : 4); r++) {
            ckpt_begin(b.t, "r");
            for (int i = 0; i < 6; i++) x = rw_tanh(b.t, x);
            ckpt_end(b.t);
        }
        cr_assert_eq(rw_backward(b.t, total(&b, x)), RW_OK);
        rw_memory m;
        rw_memory_stats(b.ctx, &m);
        peak[more] = m.measured_peak;
        fixture_close(&b);
    }
    cr_assert_eq(peak[1] - peak[0], 4 * 4096 * sizeof(float), "%zu bytes for four more", peak[1] - peak[0]);
}

/* 9 */
Test(conformance_memory, nested_regions_take_less_memory_than_flat_ones)
{
    size_t peak[2];
    for (int nested = 0; nested < 2; nested++) {
        struct fixture b = fixture_open(4, 1);
        ckpt_set_policy(b.t, "full");
        rw_tensor *x = normal(&b, "p", RW_F32, RW_SHAPE(4096), 0.3);
        ckpt_begin(b.t, "all");
        for (int part = 0; part < 8; part++) {
            if (nested) ckpt_begin(b.t, "part");
            for (int i = 0; i < 8; i++) x = rw_tanh(b.t, x);
            if (nested) ckpt_end(b.t);
        }
        ckpt_end(b.t);
        rw_tensor *const loss = total(&b, x);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK);
        cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK);
        rw_memory m;
        rw_memory_stats(b.ctx, &m);
        peak[nested] = m.measured_peak;
        fixture_close(&b);
    }
    cr_assert_lt(peak[1] * 2, peak[0], "nested %zu, flat %zu", peak[1], peak[0]);
}

/* 26 */
#define WARM 50

/* 16 bytes, the minimum of malloc(), leaked in every step would be twice the allowed growth of the heap. The simulator
   runs kernels by fibers: fewer steps there. */
static int many_steps(void)
{
    return test_device() == RW_DEVICE_CPU ? 10000 : 2000;
}

/* Everything that could grow over many steps: every category of memory, every allocation of the library, and the
   heap. */
struct held {
    rw_memory memory;
    int64_t allocations;
    size_t heap; /* of the whole process, including oneDNN and libgomp; 0 under a sanitizer, which replaces the heap */
};

/* One training step, and the memory that is in use after it. */
static struct held trained_step(struct fixture *b, const struct net *n, rw_optimizer *opt, int step)
{
    struct held h = { 0 };
    float gain[8];
    rw_zero_grad(b->ctx);
    rw_tensor *const loss = net_loss(n, b->t, 4, step);
    if (step % 2) rw_item(b->t, loss);
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    cr_assert_eq(rw_read(NULL, n->gain[0], gain, sizeof gain), RW_OK); /* waits for the queued work */
    rw_memory_stats(b->ctx, &h.memory);
    rw_tape_reset(b->t);
    h.allocations = rw_alloc_live();
    h.heap = mallinfo2().uordblks;
    return h;
}

Test(conformance_memory, no_category_of_memory_grows_over_thousands_of_steps)
{
    struct fixture b = fixture_open(4, 1);
    struct net n;
    rw_optimizer *opt = NULL;
    struct held warm = { 0 };
    net_init(&n, b.ctx, 2, 8, RW_F32, 1);
    ckpt_set_policy(b.t, "full");
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
    for (int step = 0; step < many_steps(); step++) {
        const struct held h = trained_step(&b, &n, opt, step);
        if (step < WARM) warm = h;
        cr_assert_eq(memcmp(&h.memory, &warm.memory, sizeof h.memory), 0, "step %d: some category of rw_memory differs",
                     step);
        cr_assert_eq(h.allocations, warm.allocations, "step %d: %d allocations more", step,
                     (int)(h.allocations - warm.allocations));
        cr_assert_leq(h.heap, warm.heap + 16384, "step %d: the heap grew by %zu bytes", step, h.heap - warm.heap);
    }
    cr_assert_eq(rw_tape_nodes(b.t), 0);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* 26. Each way in which a step can fail, in turn; afterwards everything is as before. */
static void fail_a_step(struct fixture *b, const struct net *n, int how)
{
    rw_tensor *loss = NULL;
    rw_status status = RW_OK;
    switch (how) {
    case 0: /* an invalid call during recording */
        loss = rw_matmul(b->t, net_loss(n, b->t, 4, 1), n->table);
        status = rw_backward(b->t, loss);
        break;
    case 1: /* a region left open */
        ckpt_begin(b->t, "open");
        status = rw_backward(b->t, net_loss(n, b->t, 4, 1));
        break;
    case 2: { /* an index out of range, during execution */
        const int32_t index[4] = { 1, 2, 3, 4000 };
        ckpt_begin(b->t, "r");
        loss = total(
            b, rw_tanh(b->t, rw_embedding(b->t, n->table, rw_input(b->t, RW_I32, RW_SHAPE(4), index, sizeof index))));
        ckpt_end(b->t);
        status = rw_backward(b->t, loss);
        break;
    }
    case 3: /* a parameter that changes during the step */
        loss = net_loss(n, b->t, 4, 1);
        rw_item(b->t, loss);
        rw_init_constant(n->gain[0], 1);
        status = rw_backward(b->t, loss);
        break;
    default: /* an allocation fails */
        rw_alloc_fail_at((uint64_t)how);
        loss = net_loss(n, b->t, 4 + how % 3, 1);
        if (loss) status = rw_backward(b->t, loss);
        if (!status && loss) rw_item(b->t, loss);
        rw_alloc_fail_at(0);
        return; /* it may also have succeeded: a later step has fewer allocations */
    }
    cr_assert_neq(status, RW_OK, "case %d", how);
}

Test(conformance_memory, nothing_leaks_after_a_failed_step)
{
    enum { WAYS = 24 };
    struct fixture b = fixture_open(4, 1);
    struct net n;
    int64_t allocations = 0;
    rw_memory memory = { 0 };
    net_init(&n, b.ctx, 2, 8, RW_F32, 1);
    ckpt_set_policy(b.t, "full");
    for (int round = 0; round < 40; round++) {
        for (int how = 0; how < WAYS; how++) {
            fail_a_step(&b, &n, how);
            rw_error_clear(b.ctx);
            rw_tape_reset(b.t);
        }
        rw_memory now;
        rw_memory_stats(b.ctx, &now);
        if (round < 20) { /* until every structure has a plan */
            allocations = rw_alloc_live();
            memory = now;
        }
        cr_assert_eq(rw_alloc_live(), allocations, "round %d: %d allocations more", round,
                     (int)(rw_alloc_live() - allocations));
        cr_assert_eq(memcmp(&now, &memory, sizeof now), 0, "round %d: some category of rw_memory differs", round);
    }
    fixture_close(&b);
}
