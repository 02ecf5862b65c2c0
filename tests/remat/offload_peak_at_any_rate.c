/*
 * A policy that offloads values by name never takes more of the arena than one that keeps them, however slow or fast
 * the offload store is; and at the peak, a value that was copied back counts as kept. Tested on the models of
 * bench/models, with nominal costs and given rates: nothing is measured.
 */
#include "support/support.h"
#include "models/model.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { TOKENS = 64, SIDE = 32 };

/* A policy that offloads by name, and the one that keeps the same values. */
static const struct pair {
    const char *offloads, *keeps;
} pairs[] = {
    { "offload:block", "none" },
    { "offload:ssd", "none" },
    { "offload:mlp,layernorm", "none" },
    { "offload:conv,relu", "none" },
    { "offload:core_attn,bn,pool,concat", "none" },
    { "full+offload:block,ssd", "full" },
    { "uniform:2+offload:block,ssd", "uniform:2" },
    { "ops:linear,conv2d+offload:block,ssd", "ops:linear,conv2d" },
};

static const double rates[] = { 1e6, 1e7, 1e8, 3e8, 1e9, 3e9, 1e10, 1e11 };

struct world {
    struct fixture b;
    rw_tensor *loss;
    enum model_kind kind;
};

static void plan(const struct world *w, const char *policy, rw_prediction *ret)
{
    cr_assert_eq(rw_tape_plan(w->b.t, w->loss, policy, ret), RW_OK, "%s, %s: %s", model_name(w->kind), policy,
                 rw_error_message(w->b.ctx));
}

/* Sets both rates of the store. */
static void set_rate(const struct world *w, double rate)
{
    const rw_offload o = { .out_bytes_per_s = rate, .in_bytes_per_s = rate };
    cr_assert_eq(rw_context_set_offload(w->b.ctx, &o), RW_OK, "%s", rw_error_message(w->b.ctx));
}

/* At every rate; counts the plans that offload something. */
static void check_rates(const struct world *w, const struct pair *p, size_t *n_offloaded)
{
    rw_prediction kept;
    plan(w, p->keeps, &kept);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        rw_prediction x;
        set_rate(w, rates[i]);
        plan(w, p->offloads, &x);
        cr_expect_leq(x.peak_bytes, kept.peak_bytes, "%s, %s at %.0e B/s: %zu bytes (%zu live), %s %zu (%zu live)",
                      model_name(w->kind), p->offloads, rates[i], x.peak_bytes, x.largest_live, p->keeps,
                      kept.peak_bytes, kept.largest_live);
        *n_offloaded += x.at_peak.host > 0;
    }
}

static void open_world(struct world *w, struct model *m, enum model_kind kind)
{
    static const int32_t tokens[4 * TOKENS];
    struct model_config c = { .kind = kind, .dtype = RW_F32 };
    const int size = model_is_of_images(kind) ? SIDE : TOKENS;
    *w = (struct world){ .b = fixture_open(1, 1), .kind = kind };
    cr_assert(model_preset(&c, "tiny"));
    if (c.max_seq < size) c.max_seq = size;
    cr_assert_eq(model_declare(m, w->b.ctx, &c), RW_OK, "%s", rw_error_message(w->b.ctx));
    w->loss = model_loss(m, w->b.t, 4, size, tokens, tokens);
    cr_assert(w->loss, "%s", rw_error_message(w->b.ctx));
}

Test(offload_peak_at_any_rate, offload_by_name_never_takes_more_than_keeping, .timeout = 300)
{
    static struct model m;
    for (enum model_kind kind = 0; kind < MODEL_KINDS; kind++) {
        struct world w;
        size_t n_offloaded = 0;
        open_world(&w, &m, kind);
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) check_rates(&w, &pairs[i], &n_offloaded);
        cr_assert_gt(n_offloaded, 8, "%s", model_name(kind));
        fixture_close(&w.b);
    }
}

/* A chain whose every value takes U bytes: at most two gradients are live. */
Test(offload_peak_at_any_rate, what_came_back_is_kept_and_no_gradient)
{
    enum { N = 24, U = 1 << 16 };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(U / 4));
    ckpt_begin(b.t, "block");
    for (int i = 0; i < N; i++) x = rw_exp(b.t, x);
    ckpt_end(b.t);
    rw_tensor *const loss = rw_sum(b.t, x, RW_ALL_AXES, false);
    const struct world w = { .b = b, .loss = loss };
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        rw_prediction p;
        set_rate(&w, rates[i]);
        plan(&w, "offload:block", &p);
        cr_expect_leq(p.at_peak.adjoint, 2 * U, "%.0e B/s: %zu bytes of gradients", rates[i], p.at_peak.adjoint);
    }
    fixture_close(&b);
}
