/* Digests of training steps, and their comparison. */
#include "step_digests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool outcome_open(struct outcome *o, int steps)
{
    *o = (struct outcome){ .steps = steps + 1 };
    o->losses = calloc((size_t)o->steps, sizeof *o->losses);
    o->step = calloc((size_t)o->steps, sizeof *o->step);
    return o->losses && o->step;
}

void outcome_close(struct outcome *o)
{
    free(o->losses);
    free(o->step);
    *o = (struct outcome){ 0 };
}

enum part { GRADIENTS, PARAMETERS, BUFFERS };

/* NULL: tensor i has no such part. A buffer has no gradient. */
static rw_tensor *part_of(rw_context *ctx, size_t i, enum part part)
{
    rw_tensor *const p = rw_param_get(ctx, i), *const gradient = rw_gradient(p);
    if (part == GRADIENTS) return gradient;
    return (part == PARAMETERS) == (gradient != NULL) ? p : NULL;
}

/* The bytes of all of them, in order of creation. */
static rw_status digest(rw_context *ctx, enum part part, XXH128_hash_t *ret)
{
    size_t most = 0;
    for (size_t i = 0; rw_param_get(ctx, i); i++) {
        rw_tensor *const x = part_of(ctx, i, part);
        const size_t bytes = x ? rw_tensor_bytes(x) : 0;
        most = bytes > most ? bytes : most;
    }
    void *const bytes = malloc(most + 1);
    XXH3_state_t *const state = XXH3_createState();
    rw_status status = bytes && state ? RW_OK : RW_ERR_MEMORY;
    if (!status) XXH3_128bits_reset(state);
    for (size_t i = 0; !status && rw_param_get(ctx, i); i++) {
        rw_tensor *const x = part_of(ctx, i, part);
        if (!x) continue;
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
    return digest(ctx, GRADIENTS, &o->step[step].gradients);
}

rw_status outcome_state(struct outcome *o, rw_context *ctx, int step)
{
    o->step[step].generator = rw_generator_get(ctx);
    const rw_status status = digest(ctx, PARAMETERS, &o->step[step].parameters);
    return status ? status : digest(ctx, BUFFERS, &o->step[step].buffers);
}

rw_status outcome_end(struct outcome *o, rw_context *ctx)
{
    o->generator = rw_generator_get(ctx);
    return digest(ctx, PARAMETERS, &o->parameters);
}

static bool is_same_generator(rw_generator_state a, rw_generator_state b)
{
    return a.seed == b.seed && a.offset == b.offset;
}

/* NULL: nothing differs. */
static const char *differs_in_step(const struct outcome *a, const struct outcome *b, int s)
{
    const struct outcome_step *const x = &a->step[s], *const y = &b->step[s];
    if (memcmp(&a->losses[s], &b->losses[s], sizeof *a->losses)) return "loss";
    if (!XXH128_isEqual(x->gradients, y->gradients)) return "gradients";
    if (!is_same_generator(x->generator, y->generator)) return "number of random blocks drawn";
    if (!XXH128_isEqual(x->buffers, y->buffers)) return "buffers";
    return XXH128_isEqual(x->parameters, y->parameters) ? NULL : "parameters";
}

bool outcome_same(const struct outcome *a, const struct outcome *b, char *ret_where, size_t size)
{
    for (int s = 0; s < a->steps; s++) {
        const char *const what = differs_in_step(a, b, s);
        if (!what) continue;
        snprintf(ret_where, size, "the %s of step %d", what, s);
        return false;
    }
    const bool generator = is_same_generator(a->generator, b->generator);
    const bool parameters = XXH128_isEqual(a->parameters, b->parameters);
    snprintf(ret_where, size, "%s", !generator ? "the generator's state" : "the parameters after the last step");
    return generator && parameters;
}
