/* See outcome.h. */
#include "outcome.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool outcome_open(struct outcome *o, int steps)
{
    *o = (struct outcome){ .steps = steps + 1 };
    o->losses = calloc((size_t)o->steps, sizeof *o->losses);
    o->gradients = calloc((size_t)o->steps, sizeof *o->gradients);
    return o->losses && o->gradients;
}

void outcome_close(struct outcome *o)
{
    free(o->losses);
    free(o->gradients);
    *o = (struct outcome){ 0 };
}

static rw_tensor *part_of(rw_context *ctx, size_t i, bool gradients)
{
    rw_tensor *const p = rw_param_get(ctx, i);
    return gradients ? rw_gradient(p) : p;
}

/* The bytes of all parameters, or of all gradients, in order of creation. */
static rw_status digest(rw_context *ctx, bool gradients, XXH128_hash_t *ret)
{
    size_t most = 0;
    for (size_t i = 0; rw_param_get(ctx, i); i++) {
        const size_t bytes = rw_tensor_bytes(part_of(ctx, i, gradients));
        most = bytes > most ? bytes : most;
    }
    void *const bytes = malloc(most);
    XXH3_state_t *const state = XXH3_createState();
    rw_status status = bytes && state ? RW_OK : RW_ERR_MEMORY;
    if (!status) XXH3_128bits_reset(state);
    for (size_t i = 0; !status && rw_param_get(ctx, i); i++) {
        rw_tensor *const x = part_of(ctx, i, gradients);
        if (!x) continue; /* a buffer has no gradient */
        status = rw_read(NULL, x, bytes, rw_tensor_bytes(x));
        if (!status) XXH3_128bits_update(state, bytes, rw_tensor_bytes(x));
    }
    if (!status) *ret = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    free(bytes);
    return status;
}

void outcome_loss(struct outcome *o, int step, double loss)
{
    o->losses[step] = loss;
}

rw_status outcome_gradients(struct outcome *o, rw_context *ctx, int step)
{
    return digest(ctx, true, &o->gradients[step]);
}

rw_status outcome_end(struct outcome *o, rw_context *ctx)
{
    o->generator = rw_generator_get(ctx);
    return digest(ctx, false, &o->parameters);
}

bool outcome_same(const struct outcome *a, const struct outcome *b, char *ret_where, size_t size)
{
    for (int s = 0; s < a->steps; s++) {
        const bool loss = !memcmp(&a->losses[s], &b->losses[s], sizeof *a->losses);
        if (loss && XXH128_isEqual(a->gradients[s], b->gradients[s])) continue;
        snprintf(ret_where, size, "the %s of step %d", loss ? "gradients" : "loss", s);
        return false;
    }
    const bool generator = a->generator.seed == b->generator.seed && a->generator.offset == b->generator.offset;
    const bool parameters = XXH128_isEqual(a->parameters, b->parameters);
    snprintf(ret_where, size, "%s", !generator ? "the generator's state" : "the parameters after the last step");
    return generator && parameters;
}
