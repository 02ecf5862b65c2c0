/* Parameters of every type under an optimizer and a scaler, and gradients that a scaler is to find fault with. */
#ifndef RW_TESTS_API_SCALED_H
#define RW_TESTS_API_SCALED_H

#include "support/support.h"

enum optimizer_kind { ADAMW, SGD, LION, KINDS };
enum { PARAMS = 5 };

struct zoo {
    struct fixture b;
    rw_tensor *w[PARAMS];
    rw_optimizer *opt;
    rw_scaler *s; /* NULL where it does not scale */
};

struct zoo zoo_open(enum optimizer_kind kind, bool scales, const rw_scaler_params *params);
void zoo_close(struct zoo *z);

/* factor: an input, which is infinite where the step is to be left out. */
rw_tensor *zoo_loss(struct zoo *z, rw_tape *t, rw_tensor *factor);

/* All of them, one after the other. The caller frees. */
unsigned char *zoo_parameters(struct zoo *z, size_t *bytes);

/* Of all parameters of the context. step: 'x' where one element of one of them is to be not finite; number: which. */
void write_gradients(rw_context *ctx, char step, int number);

rw_scaler_state state_of(rw_scaler *s);

#endif
