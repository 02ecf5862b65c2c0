/* A model with delayed scaling: two regions trained by micro-batches, and the results of the steps. */
#ifndef API_DELAYED_SCALING_FIXTURE_H
#define API_DELAYED_SCALING_FIXTURE_H

#include "support/support.h"

enum { TOKENS = 4, WIDTH = 8, BATCHES = 3, STEPS_MAX = 50 };

struct delayed_world {
    struct fixture b;
    rw_tensor *up, *down, *other;
    rw_delayed_scaling *d;
    rw_optimizer *opt;
    rw_scaler *s;
};

struct delayed_outcome {
    float loss[STEPS_MAX * BATCHES];
    unsigned char *bytes[STEPS_MAX]; /* of each step: gradients, parameters, scales and histories */
    size_t n;
    int steps;
};

rw_tensor *delayed_buffer(rw_context *ctx, const char *name);
void delayed_read(rw_context *ctx, const char *name, float *ret, int64_t n);
rw_delayed_scaling *delayed_open(rw_context *ctx, const rw_delayed_scaling_params *p);
struct delayed_world delayed_world_open(const char *policy, int threads, bool scales);
void delayed_world_close(struct delayed_world *x);
/* Both regions use both weights, so uses share a history. Micro-batches differ in magnitude. */
rw_tensor *delayed_loss(struct delayed_world *x, int number, float factor);
void delayed_backward(struct delayed_world *x, rw_tensor *loss);
void delayed_end_step(struct delayed_world *x);
void delayed_keep(struct delayed_outcome *o, rw_context *ctx);
/* One optimizer step. look: between its micro-batches a step is verified, and another only evaluated. */
void delayed_train_step(struct delayed_world *x, struct delayed_outcome *o, bool look);
struct delayed_outcome delayed_train(const char *policy, int threads, int steps, int looks_at);
/* -1 if equal, or the first step that differs. */
int delayed_differ(const struct delayed_outcome *a, const struct delayed_outcome *b);
void delayed_finish(struct delayed_outcome *o);

#endif
