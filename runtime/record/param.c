/* Creates and finds parameters, buffers and states. */
#include "record/param.h"

#include "base/alloc.h"
#include "record/context.h"

#include <assert.h>
#include <string.h>

struct rw_param *rw_param_of(const rw_tensor *x)
{
    if (!x || !(x->flags & RW_VALUE_CONTEXT)) return NULL;
    return x->owner.ctx->by_id[x->id];
}

const char *rw_param_name(const struct rw_param *p)
{
    if (p->codes_of) p = p->codes_of;
    return p->name ? p->name : "";
}

uint32_t rw_serial_find(const uint64_t *serials, size_t n, uint64_t serial)
{
    size_t low = 0, high = n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (serials[middle] < serial) low = middle + 1;
        else high = middle;
    }
    return low < n && serials[low] == serial ? (uint32_t)low : RW_NONE_ID;
}

static void free_param(rw_context *ctx, struct rw_param *p)
{
    if (!p->lent) ctx->device->free(ctx->device_state, p->data);
    ctx->device->free(ctx->device_state, p->gradient.data);
    rw_free(p->name);
    rw_free(p);
}

/* Sets the members that all kinds have. Its ID is a free one, taken by enter(). */
static bool fill_state(rw_context *ctx, struct rw_param *p, rw_dtype dtype, rw_shape shape)
{
    const rw_layout *const layout = rw_layout_dense(&ctx->layouts, shape);
    while (ctx->free_id < ctx->n_ids && ctx->by_id[ctx->free_id]) ctx->free_id++;
    if (!layout || !rw_grow(&ctx->by_id, &ctx->cap_ids, ctx->free_id, 1, sizeof *ctx->by_id)) return false;
    p->tensor = (struct rw_tensor){ .owner.ctx = ctx, .id = (uint32_t)ctx->free_id, .layout = layout->id,
                                    .dtype = (uint8_t)dtype, .producer = RW_NONE_ID, .leaf = RW_NONE_ID,
                                    .base = RW_NONE_ID, .flags = RW_VALUE_CONTEXT };
    p->serial = ++ctx->n_serials;
    p->numel = layout->numel;
    p->bytes = (size_t)layout->numel * rw_dtype_size(dtype);
    if (p->lent) return true;
    return (p->data = rw_context_alloc(ctx, p->bytes, true));
}

static void enter(rw_context *ctx, struct rw_param *p)
{
    ctx->by_id[p->tensor.id] = p;
    if (p->tensor.id == ctx->n_ids) ctx->n_ids++;
}

/* The slot of the name, or the free slot for it. */
static uint32_t *place_of(const rw_context *ctx, const char *name)
{
    const size_t mask = ctx->param_hash_size - 1;
    size_t i = rw_hash_text(name) & mask;
    while (ctx->param_hash[i] && strcmp(ctx->params[ctx->param_hash[i] - 1]->name, name) != 0) i = (i + 1) & mask;
    return &ctx->param_hash[i];
}

/* Room for one more name. */
static bool grow_hash(rw_context *ctx)
{
    if (2 * (ctx->n_params + 1) <= ctx->param_hash_size) return true;
    const size_t size = ctx->param_hash_size ? 2 * ctx->param_hash_size : 64;
    uint32_t *const hash = rw_calloc(size, sizeof *hash);
    if (!hash) return false;
    rw_free(ctx->param_hash);
    ctx->param_hash = hash;
    ctx->param_hash_size = size;
    for (size_t i = 0; i < ctx->n_params; i++) *place_of(ctx, ctx->params[i]->name) = (uint32_t)i + 1;
    return true;
}

/* grad: the type of its gradient, NULL for a buffer, which has none. */
static bool fill_param(rw_context *ctx, struct rw_param *p, const char *name, rw_dtype dtype, rw_shape shape,
                       const rw_dtype *grad)
{
    if (!rw_grow(&ctx->params, &ctx->cap_params, ctx->n_params, 1, sizeof *ctx->params)) return false;
    if (!grow_hash(ctx)) return false;
    if (!fill_state(ctx, p, dtype, shape)) return false;
    if (grad) p->tensor.flags |= RW_VALUE_REQUIRES;
    struct rw_gradient *const g = &p->gradient;
    g->tensor = p->tensor;
    g->tensor.flags = RW_VALUE_CONTEXT | RW_VALUE_GRADIENT;
    p->name = rw_strdup(name);
    if (!grad) return p->name;
    g->tensor.dtype = (uint8_t)*grad;
    g->bytes = (size_t)p->numel * rw_dtype_size(*grad);
    return p->name && (g->data = rw_context_alloc(ctx, g->bytes, false));
}

static rw_tensor *create(rw_site at, rw_context *ctx, const char *what, const char *name, rw_dtype dtype,
                         rw_shape shape, const rw_dtype *grad)
{
    if (!name || !*name || strlen(name) > RW_NAME_MAX) {
        rw_fail(ctx, RW_ERR_ARGUMENT, "%s at %s:%d: name: expected 1 to %d bytes, got %s", what,
                rw_file_of(at), at.line, RW_NAME_MAX, !name ? "NULL" : !*name ? "none" : "more");
        return NULL;
    }
    if (rw_param_find(ctx, name)) {
        rw_fail(ctx, RW_ERR_ARGUMENT, "%s at %s:%d: name: expected one that no parameter or buffer of the context has, "
                "got \"%s\"", what, rw_file_of(at), at.line, name);
        return NULL;
    }
    if (!rw_shape_check(ctx, what, at, dtype, shape)) return NULL;
    if (grad && !rw_dtype_is_float(dtype)) {
        rw_fail(ctx, RW_ERR_DTYPE, "%s at %s:%d: dtype of \"%s\": expected a floating-point type, got %s; "
                "rw_buffer() takes any", what, rw_file_of(at), at.line, name, rw_dtype_name(dtype));
        return NULL;
    }
    const size_t size = rw_dtype_size(dtype) > 4 ? rw_dtype_size(dtype) : 4; /* an update may need float32 */
    if (!rw_bytes_fit(ctx->memory.parameters, (uint64_t)rw_shape_numel(shape), size)) {
        rw_fail(ctx, RW_ERR_MEMORY, "%s at %s:%d: with \"%s\" parameters would take more than 2^60 bytes in all", what,
                rw_file_of(at), at.line, name);
        return NULL;
    }
    struct rw_param *const p = rw_calloc(1, sizeof *p);
    if (!p || !fill_param(ctx, p, name, dtype, shape, grad)) {
        if (p) free_param(ctx, p);
        rw_fail(ctx, RW_ERR_MEMORY, "%s at %s:%d: out of memory for \"%s\" of %lld numbers of type %s", what,
                rw_file_of(at),
                at.line, name, (long long)rw_shape_numel(shape), rw_dtype_name(dtype));
        return NULL;
    }
    *place_of(ctx, name) = (uint32_t)ctx->n_params + 1;
    ctx->params[ctx->n_params++] = p;
    enter(ctx, p);
    ctx->memory.parameters += p->bytes;
    ctx->memory.gradients += p->gradient.bytes;
    return &p->tensor;
}

static struct rw_param *create_state(rw_context *ctx, rw_dtype dtype, rw_shape shape, const struct rw_param *like)
{
    struct rw_param *const p = rw_calloc(1, sizeof *p);
    if (p) *p = *like;
    if (p && fill_state(ctx, p, dtype, shape)) {
        enter(ctx, p);
        return p;
    }
    if (p) free_param(ctx, p);
    return NULL;
}

struct rw_param *rw_state_create(rw_context *ctx, rw_dtype dtype, rw_shape shape)
{
    return create_state(ctx, dtype, shape, &(struct rw_param){ 0 });
}

struct rw_param *rw_state_at(rw_context *ctx, rw_dtype dtype, rw_shape shape, void *data)
{
    return create_state(ctx, dtype, shape, &(struct rw_param){ .data = data, .lent = true });
}

static void leave(rw_context *ctx, const struct rw_param *p)
{
    ctx->by_id[p->tensor.id] = NULL;
    if (p->tensor.id < ctx->free_id) ctx->free_id = p->tensor.id;
}

void rw_state_destroy(rw_context *ctx, struct rw_param *p)
{
    if (!p) return;
    leave(ctx, p);
    free_param(ctx, p);
}

bool rw_state_create_in(struct rw_param *place, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape)
{
    *place = (struct rw_param){ .name = rw_strdup(name) };
    if (place->name && fill_state(ctx, place, dtype, shape)) {
        enter(ctx, place);
        return true;
    }
    rw_free(place->name);
    *place = (struct rw_param){ 0 };
    return false;
}

void rw_states_end(rw_context *ctx, struct rw_param *states, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct rw_param *const p = &states[i];
        assert(!p->kept_codes);
        leave(ctx, p);
        ctx->device->free(ctx->device_state, p->data);
        rw_free(p->name);
        p->data = NULL;
        p->name = NULL;
        p->tensor.id = RW_NONE_ID;
        p->tensor.flags = RW_VALUE_GONE;
    }
}

/* Possible without rehashing: no other name was inserted after its own. */
void rw_buffer_take_back(rw_context *ctx, struct rw_param *p)
{
    assert(ctx->n_params && ctx->params[ctx->n_params - 1] == p);
    *place_of(ctx, p->name) = 0;
    ctx->n_params--;
    ctx->memory.parameters -= p->bytes;
    rw_state_destroy(ctx, p);
}

/* The type of a gradient: float32, which zeroed options request, or the parameter's own; of a float64 parameter always
   float64. */
rw_tensor *rw_param_with_at(rw_site at, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape,
                            const rw_param_options *options)
{
    RW_ENTER(ctx, NULL);
    if (!ctx) return rw_fail_null(NULL, "rw_param", "ctx"), NULL;
    const rw_dtype requested = options ? options->grad_dtype : RW_F32, grad = dtype == RW_F64 ? RW_F64 : requested;
    if (requested == dtype || requested == RW_F32) return create(at, ctx, "rw_param", name, dtype, shape, &grad);
    rw_fail(ctx, RW_ERR_DTYPE, "rw_param at %s:%d: grad_dtype: expected f32 or %s, the parameter's type, got %s",
            rw_file_of(at), at.line, rw_dtype_name(dtype), rw_dtype_name(requested));
    return NULL;
}

rw_tensor *rw_param_at(rw_site at, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape)
{
    RW_ENTER(ctx, NULL);
    return rw_param_with_at(at, ctx, name, dtype, shape, NULL);
}

rw_tensor *rw_buffer_at(rw_site at, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape)
{
    RW_ENTER(ctx, NULL);
    if (!ctx) return rw_fail_null(NULL, "rw_buffer", "ctx"), NULL;
    return create(at, ctx, "rw_buffer", name, dtype, shape, NULL);
}

rw_tensor *rw_param_get(const rw_context *ctx, size_t index)
{
    RW_LOOKS_ONLY;
    return ctx && index < ctx->n_params ? &ctx->params[index]->tensor : NULL;
}

rw_tensor *rw_param_find(const rw_context *ctx, const char *name)
{
    RW_LOOKS_ONLY;
    if (!ctx || !name || !ctx->param_hash_size) return NULL;
    const uint32_t known = *place_of(ctx, name);
    return known ? &ctx->params[known - 1]->tensor : NULL;
}
