#include "run/recorder_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

rw_optimizer *optimizer_without(rw_context *ctx, rw_tensor *left_out)
{
    rw_optimizer *opt = NULL;
    if (left_out) cr_assert_eq(rw_optimizer_exclude(left_out, true), RW_OK);
    cr_assert_eq(rw_adamw_create(&opt, ctx, &(rw_adamw_params){ .lr = 0.05 }), RW_OK, "%s", rw_error_message(ctx));
    if (left_out) cr_assert_eq(rw_optimizer_exclude(left_out, false), RW_OK);
    return opt;
}

struct world world_open(void)
{
    struct world x = { .b = fixture_open(3, 2) };
    x.w = rw_param(x.b.ctx, "w", RW_F32, RW_SHAPE(N, N));
    x.v = rw_param(x.b.ctx, "v", RW_BF16, RW_SHAPE(N));
    cr_assert_eq(rw_init_normal(x.w, 0, 1), RW_OK);
    cr_assert_eq(rw_init_normal(x.v, 0, 1), RW_OK);
    x.opt = optimizer_without(x.b.ctx, NULL);
    x.only[0] = optimizer_without(x.b.ctx, x.v);
    x.only[1] = optimizer_without(x.b.ctx, x.w);
    cr_assert_eq(rw_scaler_create(&x.s, x.b.ctx, &(rw_scaler_params){ .init_scale = 1024 }), RW_OK);
    cr_assert_eq(rw_delayed_scaling_create(&x.d, x.b.ctx, NULL), RW_OK, "%s", rw_error_message(x.b.ctx));
    return x;
}

void world_close(struct world *x)
{
    rw_delayed_scaling_destroy(&x->d);
    rw_scaler_destroy(&x->s);
    for (int i = 0; i < 2; i++) rw_optimizer_destroy(&x->only[i]);
    rw_optimizer_destroy(&x->opt);
    fixture_close(&x->b);
}

rw_tensor *loss_of(struct world *x, double factor)
{
    rw_tape *const t = x->b.t;
    rw_tensor *const v = rw_cast(t, x->v, RW_F32), *const y = rw_add(t, x->w, v);
    return rw_scale(t, rw_sum(t, rw_mul(t, y, y), RW_ALL_AXES, false), factor);
}

struct outcome outcome_of(struct world *x)
{
    struct outcome o;
    o.bytes = all_parameters(x->b.ctx, &o.n);
    world_close(x);
    return o;
}

void same(struct outcome *a, struct outcome *b, const char *what)
{
    cr_assert_eq(a->n, b->n);
    cr_expect_eq(first_difference(a->bytes, b->bytes, a->n), -1, "%s: byte %ld", what,
                 first_difference(a->bytes, b->bytes, a->n));
    free(a->bytes);
    free(b->bytes);
}

rw_status create_graph(struct world *x, rw_graph **g, const rw_recorder *list, size_t n)
{
    rw_graph_params params = { { rw_record_nothing() } };
    memcpy(params.recorders, list, n * sizeof *list);
    return rw_graph_create(g, x->b.t, loss_of(x, 1), &params);
}
