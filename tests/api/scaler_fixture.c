/* Trains parameters of every type under an optimizer and a scaler. */
#include "api/scaler_fixture.h"

#include "support/compare.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static rw_status make_optimizer(rw_optimizer **ret, rw_context *ctx, enum optimizer_kind kind)
{
    switch (kind) {
    case SGD: return rw_sgd_create(ret, ctx, &(rw_sgd_params){ .lr = 0.03, .momentum = 0.9, .dampening = 0.5 });
    case LION: return rw_lion_create(ret, ctx, &(rw_lion_params){ .lr = 0.03, .weight_decay = 0.1 });
    default: return rw_adamw_create(ret, ctx, &(rw_adamw_params){ .lr = 0.03, .weight_decay = 0.1 });
    }
}

struct zoo zoo_open(enum optimizer_kind kind, bool scales, const rw_scaler_params *params)
{
    static const rw_dtype dtypes[PARAMS] = { RW_F32, RW_BF16, RW_F16, RW_F64, RW_F32 };
    struct zoo z = { .b = fixture_open(3, 2) };
    for (int k = 0; k < PARAMS; k++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", k);
        z.w[k] = rw_param(z.b.ctx, name, dtypes[k], k < 4 ? RW_SHAPE(7, 5 + k) : RW_SHAPE(9001));
        cr_assert_eq(rw_init_normal(z.w[k], 0, 1), RW_OK);
    }
    cr_assert_eq(make_optimizer(&z.opt, z.b.ctx, kind), RW_OK);
    if (scales) cr_assert_eq(rw_scaler_create(&z.s, z.b.ctx, params), RW_OK, "%s", rw_error_message(z.b.ctx));
    return z;
}

void zoo_close(struct zoo *z)
{
    rw_scaler_destroy(&z->s);
    rw_optimizer_destroy(&z->opt);
    fixture_close(&z->b);
}

rw_tensor *zoo_loss(struct zoo *z, rw_tape *t, rw_tensor *factor)
{
    rw_tensor *sum = NULL;
    for (int k = 0; k < PARAMS; k++) {
        rw_tensor *const x = rw_cast(t, z->w[k], RW_F32);
        rw_tensor *const y = rw_sum(t, rw_mul(t, rw_mul(t, x, factor), rw_mul(t, x, x)), RW_ALL_AXES, false);
        sum = sum ? rw_add(t, sum, y) : y;
    }
    return sum;
}

unsigned char *zoo_parameters(struct zoo *z, size_t *bytes)
{
    unsigned char *const all = malloc(1 << 20);
    *bytes = 0;
    for (int k = 0; k < PARAMS; k++) {
        cr_assert_eq(rw_read(NULL, z->w[k], all + *bytes, rw_tensor_bytes(z->w[k])), RW_OK, "%s",
                     rw_error_message(z->b.ctx));
        *bytes += rw_tensor_bytes(z->w[k]);
    }
    return all;
}

void write_gradients(rw_context *ctx, char step, int number)
{
    static const double bad[] = { INFINITY, NAN, -INFINITY };
    for (int k = 0; rw_param_get(ctx, (size_t)k); k++) {
        rw_tensor *const g = rw_gradient(rw_param_get(ctx, (size_t)k));
        if (!g) continue;
        const int64_t n = rw_shape_numel(rw_tensor_shape(g));
        char *const data = calloc((size_t)n, 8);
        for (int64_t i = 0; i < n; i++) number_put(data, rw_tensor_dtype(g), i, (double)((i * 7 + number) % 5) - 2);
        if (step == 'x' && number % 3 == k)
            number_put(data, rw_tensor_dtype(g), (number * 13 + 5) % n, bad[number % 3]);
        cr_assert_eq(rw_write(g, data, rw_tensor_bytes(g)), RW_OK);
        free(data);
    }
}

rw_scaler_state state_of(rw_scaler *s)
{
    rw_scaler_state state;
    cr_assert_eq(rw_scaler_get(s, &state), RW_OK);
    return state;
}
