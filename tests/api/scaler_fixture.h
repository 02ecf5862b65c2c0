/* Parameters of every type under an optimizer and a scaler, and gradients that are not finite, for the scaler to
   find. */
#ifndef RW_TESTS_API_SCALER_FIXTURE_H
#define RW_TESTS_API_SCALER_FIXTURE_H

#include "support/support.h"

enum optimizer_kind { ADAMW, SGD, LION, KINDS };
enum { PARAMS = 5 };

struct zoo {
    struct fixture b;
    rw_tensor *w[PARAMS];
    rw_optimizer *opt;
    rw_scaler *s; /* NULL: no scaling */
};

struct zoo zoo_open(enum optimizer_kind kind, bool scales, const rw_scaler_params *params);
void zoo_close(struct zoo *z);

/* factor: an input, which is infinite if the step is to be skipped. */
rw_tensor *zoo_loss(struct zoo *z, rw_tape *t, rw_tensor *factor);

/* Copies of all parameters, concatenated. The caller frees. */
unsigned char *zoo_parameters(struct zoo *z, size_t *bytes);

/* Writes the gradients of all parameters of the context. step: 'x' writes a value that is not finite to one element of
   one of them; number: which. */
void write_gradients(rw_context *ctx, char step, int number);

rw_scaler_state state_of(rw_scaler *s);

#endif
