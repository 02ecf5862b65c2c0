/* Transformers for suites that plan and run nothing: their parameters have no contents. */
#ifndef REWIND_TESTS_REMAT_PLAN_ONLY_TRANSFORMER_H
#define REWIND_TESTS_REMAT_PLAN_ONLY_TRANSFORMER_H

#include "models/model.h"

#include <criterion/criterion.h>

/* The loss of two texts of seq tokens, 256 at most. */
static inline rw_tensor *declared_loss(rw_tape *t, rw_context *ctx, struct model_config config, int seq)
{
    static struct model m;
    static const int32_t tokens[2 * 256];
    struct model_config c = { 0 };
    cr_assert(seq <= 256 && model_preset(&c, "tiny"));
    c.kind = config.kind;
    c.layers = config.layers;
    c.width = config.width;
    c.hidden = 0;
    c.max_seq = seq;
    c.dropout = config.dropout;
    cr_assert_eq(model_declare(&m, ctx, &c), RW_OK, "%s", rw_error_message(ctx));
    return model_loss(&m, t, 2, seq, tokens, tokens);
}

#endif
