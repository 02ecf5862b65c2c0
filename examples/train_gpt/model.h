/* GPT-2 or a Llama, in the sizes chosen by the options. */
#ifndef REWIND_EXAMPLES_MODEL_H
#define REWIND_EXAMPLES_MODEL_H

#include "options.h"

void make_model(rw_context *ctx);

/* For --scaling delayed; NULL: none. */
void set_delayed(rw_delayed_scaling *d);

/* tokens [batch, seq] -> [batch, seq, vocab]. */
rw_tensor *logits(rw_tape *t, rw_tensor *tokens, int batch, int seq, double dropout);

#endif
