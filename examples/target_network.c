/*
 * A slowly following target network, as in DQN and DDPG (Polyak averaging, arXiv 1509.02971) and in self-distillation
 * (BYOL, arXiv 2006.07733): an rw_weight_average of the parameters whose decay grows during the first steps. The
 * average has no gradient; the loss reads it to compute the target.
 *
 *   target_network [--quick]
 *
 * The program learns values by temporal differences: states 0, 1 ... S-1 in a row, a reward of 1 at the end, discount
 * g. The value of state s is g^(S-1-s).
 */
#include <rewind/rewind.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATES = 6 };

static const double discount = 0.8;

static void check(rw_context *ctx, rw_status status)
{
    if (!status && !rw_error_status(ctx)) return;
    fprintf(stderr, "target_network: %s\n", rw_error_message(ctx));
    exit(1);
}

/* Values of the states: from a table here, usually from a network. `from` is the parameter, or its average. */
static rw_tensor *values(rw_tape *t, rw_tensor *from, const int32_t *state)
{
    return rw_reshape(t, rw_embedding(t, from, rw_input(t, RW_I32, RW_SHAPE(STATES), state, STATES * sizeof *state)),
                      RW_SHAPE(STATES));
}

/* Squared difference from reward + discount * (the target network's value of the next state). */
static rw_tensor *loss_of(rw_tape *t, rw_tensor *w, rw_tensor *target)
{
    int32_t state[STATES], next[STATES];
    float reward[STATES], goes_on[STATES];
    for (int s = 0; s < STATES; s++) {
        state[s] = s;
        next[s] = s + 1 < STATES ? s + 1 : s;
        reward[s] = s + 1 == STATES;
        goes_on[s] = s + 1 < STATES ? (float)discount : 0;
    }
    rw_tensor *const later = rw_mul(t, values(t, target, next),
                                    rw_input(t, RW_F32, RW_SHAPE(STATES), goes_on, sizeof goes_on));
    rw_tensor *const wanted = rw_add(t, later, rw_input(t, RW_F32, RW_SHAPE(STATES), reward, sizeof reward));
    return rw_mse_loss(t, values(t, w, state), wanted);
}

int main(int argc, char **argv)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_optimizer *opt = NULL;
    rw_weight_average *target = NULL;
    float got[STATES];
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--quick") != 0)) {
        fprintf(stderr, "usage: target_network [--quick]\n");
        return 2;
    }
    check(NULL, rw_context_create(&ctx, NULL));
    check(ctx, rw_tape_create(&t, ctx));
    rw_tensor *const w = rw_param(ctx, "values", RW_F32, RW_SHAPE(STATES, 1));
    check(ctx, rw_init_normal(w, 0, 0.1));
    check(ctx, rw_sgd_create(&opt, ctx, &(rw_sgd_params){ .lr = 1 }));
    check(ctx, rw_weight_average_create(&target, ctx, 0));
    for (int step = 0; step < 1500; step++) {
        const double decay = fmin(0.95, (1.0 + step) / (10.0 + step)); /* short memory first: the start is far off */
        check(ctx, rw_backward(t, loss_of(t, w, rw_weight_average_of(target, w))));
        check(ctx, rw_optimizer_step(opt));
        check(ctx, rw_weight_average_set_decay(target, decay));
        check(ctx, rw_weight_average_step(target));
        rw_zero_grad(ctx);
        rw_tape_reset(t);
    }
    check(ctx, rw_read(NULL, w, got, sizeof got));
    double off = 0;
    for (int s = 0; s < STATES; s++) {
        const double value = pow(discount, STATES - 1 - s);
        printf("state %d: value %.4f, expected %.4f\n", s, (double)got[s], value);
        off = fmax(off, fabs((double)got[s] - value));
    }
    rw_weight_average_destroy(&target);
    rw_optimizer_destroy(&opt);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return off < 1e-3 ? 0 : 1;
}
