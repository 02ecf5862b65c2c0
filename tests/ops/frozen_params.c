/*
 * Frozen parameters - an lr_factor of RW_ZERO, or a learning rate of 0 - keep their bytes, their states and their
 * counts for every gradient, whatever performs the update: a call, a scaler, a graph, or backward itself.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <rewind/ops.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind { ADAMW, ADAM, SGD, MOMENTUM, LION, KINDS };
enum way { CALL, SCALED, GRAPH, INSIDE, GRAPH_SCALED, INSIDE_SCALED, IN_FILE, WAYS };
enum freeze { BY_FACTOR, BY_RATE, FREEZES };
enum { N = 6 };

static const rw_dtype dtypes[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };

/* Two parameters; the first is frozen. */
struct run {
    struct fixture b;
    rw_tensor *w[2];
    rw_optimizer *opt;
    rw_scaler *scaler;
    rw_graph *graph;
    rw_tensor *factor; /* an input that determines the gradients */
    enum way way;
};

/* An optimizer of the given kind that decays all parameters where it has decay. */
static rw_status create(struct run *r, enum kind kind, bool by_chance, rw_state_offload states)
{
    rw_context *const ctx = r->b.ctx;
    switch (kind) {
    case ADAMW:
        return rw_adamw_create(&r->opt, ctx, &(rw_adamw_params){ .lr = 0.1, .decay_all = true, .states = states,
                                                                 .stochastic_rounding = by_chance });
    case ADAM:
        return rw_adam_create(&r->opt, ctx, &(rw_adam_params){ .lr = 0.1, .weight_decay = 0.1, .decay_all = true,
                                                               .states = states, .stochastic_rounding = by_chance });
    case MOMENTUM:
        return rw_sgd_create(&r->opt, ctx, &(rw_sgd_params){ .lr = 0.1, .momentum = 0.9, .states = states,
                                                             .stochastic_rounding = by_chance });
    case LION:
        return rw_lion_create(&r->opt, ctx, &(rw_lion_params){ .lr = 0.1, .weight_decay = 0.1, .decay_all = true,
                                                               .states = states, .stochastic_rounding = by_chance });
    default:
        return rw_sgd_create(&r->opt, ctx, &(rw_sgd_params){ .lr = 0.1, .states = states,
                                                             .stochastic_rounding = by_chance });
    }
}

static const double start[N] = { 1.5, -0.0, 0.0, -2, 0.5, 1 };

static void put_start(rw_tensor *w, rw_dtype dtype)
{
    double d[N];
    float f[N];
    uint16_t h[N];
    for (int i = 0; i < N; i++) {
        d[i] = start[i];
        f[i] = (float)d[i];
        uint32_t bits;
        memcpy(&bits, &f[i], sizeof bits);
        h[i] = (uint16_t)(bits >> 16);
    }
    const void *const from = dtype == RW_F64 ? (const void *)d : dtype == RW_F32 ? (const void *)f : (const void *)h;
    cr_assert_eq(rw_write(w, from, rw_tensor_bytes(w)), RW_OK); /* for float16 other numbers, including -0 */
}

static struct run run_open(enum kind kind, rw_dtype dtype, enum way way, bool by_chance)
{
    struct run r = { .b = fixture_open(3, 2), .way = way };
    const char *const tmp = getenv("TMPDIR");
    const rw_state_offload in_file = { .place = RW_STATE_FILE, .path = tmp ? tmp : P_tmpdir };
    for (int i = 0; i < 2; i++) {
        r.w[i] = rw_param(r.b.ctx, i ? "free" : "frozen", dtype, RW_SHAPE(N));
        put_start(r.w[i], dtype);
    }
    cr_assert_eq(create(&r, kind, by_chance, way == IN_FILE ? in_file : (rw_state_offload){ 0 }), RW_OK, "%s",
                 rw_error_message(r.b.ctx));
    if (way == SCALED || way == GRAPH_SCALED || way == INSIDE_SCALED)
        cr_assert_eq(rw_scaler_create(&r.scaler, r.b.ctx, &(rw_scaler_params){ .init_scale = 2 }), RW_OK);
    return r;
}

static void run_close(struct run *r)
{
    rw_graph_destroy(&r->graph);
    rw_scaler_destroy(&r->scaler);
    rw_optimizer_destroy(&r->opt);
    fixture_close(&r->b);
}

static rw_tensor *loss_of(struct run *r, const double *first)
{
    rw_tape *const t = r->b.t;
    double both[2][N];
    for (int i = 0; i < N; i++) both[0][i] = first[i], both[1][i] = 0.25 * (i + 1);
    rw_tensor *sum = NULL;
    r->factor = rw_input(t, RW_F64, RW_SHAPE(2, N), both, sizeof both);
    for (int k = 0; k < 2; k++) {
        rw_tensor *const x = rw_reshape(t, rw_slice(t, r->factor, 0, k, k + 1), RW_SHAPE(N));
        rw_tensor *const y = rw_sum(t, rw_mul(t, rw_cast(t, r->w[k], RW_F64), x), RW_ALL_AXES, false);
        sum = sum ? rw_add(t, sum, y) : y;
    }
    return rw_cast(t, sum, RW_F32);
}

/* One step with this gradient of the first parameter. */
static void step(struct run *r, const double *first)
{
    rw_context *const ctx = r->b.ctx;
    rw_graph_destroy(&r->graph);
    rw_tape_reset(r->b.t);
    rw_zero_grad(ctx);
    rw_tensor *const loss = loss_of(r, first);
    rw_status status;
    if (r->way == CALL || r->way == IN_FILE) {
        cr_assert_eq(rw_backward(r->b.t, loss), RW_OK, "%s", rw_error_message(ctx));
        status = rw_optimizer_step(r->opt);
    } else if (r->way == SCALED) {
        cr_assert_eq(rw_scaler_backward(r->scaler, r->b.t, loss), RW_OK, "%s", rw_error_message(ctx));
        cr_assert_eq(rw_scaler_step(r->scaler, r->opt), RW_OK, "%s", rw_error_message(ctx));
        status = rw_scaler_update(r->scaler);
    } else {
        const rw_graph_params p = { { recorded_scaler(r->scaler),
                                      recorded_update(r->opt, r->way == INSIDE || r->way == INSIDE_SCALED) } };
        cr_assert_eq(rw_graph_create(&r->graph, r->b.t, loss, &p), RW_OK, "%s", rw_error_message(ctx));
        status = rw_graph_launch(r->graph);
    }
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(ctx));
}

static void freeze(struct run *r, enum freeze how, bool on)
{
    const rw_optimizer_settings frozen = { .lr_factor = RW_ZERO };
    if (how == BY_RATE) rw_optimizer_set_lr(r->opt, on ? 0 : 0.1);
    else cr_assert_eq(rw_optimizer_set(r->opt, r->w[0], on ? &frozen : NULL), RW_OK);
}

static void bytes_of(const struct run *r, int k, unsigned char *to)
{
    memset(to, 0, 8 * N);
    cr_assert_eq(rw_read(NULL, r->w[k], to, rw_tensor_bytes(r->w[k])), RW_OK, "%s", rw_error_message(r->b.ctx));
}

static const double usual[N] = { 1, -1, 0.5, 2, -0.5, 3 };
static const double wild[N] = { 1, NAN, INFINITY, -INFINITY, -1, 0 };

/* A step, frozen steps, a step: the same result as without the frozen ones. */
static void expect_frozen(enum kind kind, rw_dtype dtype, enum way way, enum freeze how, bool by_chance)
{
    struct run r = run_open(kind, dtype, way, by_chance), plain = run_open(kind, dtype, way, by_chance);
    unsigned char before[8 * N], now[8 * N];
    const bool scaled = r.scaler; /* skips the whole step if a gradient is not finite */
    step(&r, usual);
    step(&plain, usual);
    put_start(r.w[0], dtype);
    put_start(plain.w[0], dtype);
    bytes_of(&r, 0, before);
    freeze(&r, how, true);
    step(&r, wild);
    bytes_of(&r, 0, now);
    cr_assert_eq(memcmp(before, now, sizeof now), 0, "optimizer %d, %s, way %d, freeze %d", kind, rw_dtype_name(dtype),
                 way, how);
    if (!scaled || test_device() == RW_DEVICE_CPU) step(&r, usual);
    bytes_of(&r, 0, now);
    cr_assert_eq(memcmp(before, now, sizeof now), 0, "optimizer %d, %s, way %d, freeze %d: finite gradients", kind,
                 rw_dtype_name(dtype), way, how);
    freeze(&r, how, false);
    step(&r, usual);
    step(&plain, usual);
    bytes_of(&r, 0, now);
    bytes_of(&plain, 0, before);
    cr_assert_eq(memcmp(before, now, sizeof now), 0, "optimizer %d, %s, way %d, freeze %d: its states", kind,
                 rw_dtype_name(dtype), way, how);
    cr_assert_eq(rw_error_status(r.b.ctx), RW_OK);
    run_close(&r);
    run_close(&plain);
}

Test(frozen_params, parameters_keep_their_bytes_and_states)
{
    const bool fast = test_device() == RW_DEVICE_CPU;
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            for (int way = 0; way < WAYS; way++)
                if (fast || (kind + (int)d + way) % 4 == 0)
                    for (int how = 0; how < FREEZES; how++)
                        expect_frozen((enum kind)kind, dtypes[d], (enum way)way, (enum freeze)how, false);
}

Test(frozen_params, parameters_that_are_rounded_stochastically_are_not_rounded)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int how = 0; how < FREEZES; how++) expect_frozen((enum kind)kind, RW_BF16, CALL, (enum freeze)how, true);
}

/* An op that has read a frozen parameter may still be replayed: the parameter has not changed. */
Test(frozen_params, parameters_do_not_count_as_changed)
{
    struct run r = run_open(ADAMW, RW_F32, CALL, false);
    rw_tape *late = NULL;
    cr_assert_eq(rw_tape_create(&late, r.b.ctx), RW_OK);
    freeze(&r, BY_FACTOR, true);
    rw_tensor *const y = rw_mul(late, r.w[0], r.w[0]);
    rw_tensor *const loss = rw_sum(late, rw_mul(late, y, y), RW_ALL_AXES, false);
    cr_assert_eq(rw_forward(late, &loss, 1), RW_OK);
    step(&r, wild);
    rw_zero_grad(r.b.ctx);
    cr_assert_eq(rw_backward(late, loss), RW_OK, "%s", rw_error_message(r.b.ctx));
    rw_tape_destroy(&late);
    run_close(&r);
}
