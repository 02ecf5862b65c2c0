/* A small model that is trained under any precision recipe: micro-batches, an optimizer, and the recipe's scales. */
#ifndef API_PRECISION_RECIPE_FIXTURE_H
#define API_PRECISION_RECIPE_FIXTURE_H

#include "support/support.h"

enum { RECIPE_BATCHES = 3, RECIPE_STEPS_MAX = 50 };

/* How the model is trained. Zero: in the types of its parameters. */
struct recipe_way {
    const char *name;
    rw_recipe recipe;        /* without .delayed */
    rw_delayed_scaling_params delayed; /* .history 0: current scaling */
    bool scaler;
};

struct recipe_world {
    struct fixture b;
    rw_tensor *first, *up, *bias, *down, *last;
    rw_recipe recipe;
    rw_delayed_scaling *d;
    rw_scaler *s;
    rw_optimizer *opt;
};

/* The results of each step: losses, and digests of gradients, parameters, scales and histories. */
struct recipe_outcome {
    float loss[RECIPE_STEPS_MAX * RECIPE_BATCHES];
    uint64_t digest[RECIPE_STEPS_MAX];
    int steps;
};

struct recipe_world recipe_world_open(const struct recipe_way *way, const char *policy, int threads);
void recipe_world_close(struct recipe_world *x);

/* Two regions under the recipe, a first and a last layer in bfloat16; extents are odd. */
rw_tensor *recipe_loss(struct recipe_world *x, rw_tape *t, int number);
void recipe_backward(struct recipe_world *x, rw_tape *t, rw_tensor *loss);
void recipe_end_step(struct recipe_world *x);
uint64_t recipe_digest(rw_context *ctx);

/* Trains steps of three micro-batches. verified: the step of which each micro-batch is verified first, -1 for none. */
struct recipe_outcome recipe_train(const struct recipe_way *way, const char *policy, int threads, int steps,
                                   int verified);

/* -1 if equal, or the first step that differs. */
int recipe_differ(const struct recipe_outcome *a, const struct recipe_outcome *b);

#endif
