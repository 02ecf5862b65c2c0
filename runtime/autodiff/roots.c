/* Roots of backward: type, number of elements, whether they require a gradient, and open regions; those of the last
   one. */
#include "autodiff/roots.h"

#include "base/alloc.h"
#include "record/handle_check.h"

#include <rewind/ops.h>

#include <stdio.h>
#include <string.h>

/* For a value of this tape, whose inputs may have been marked after their use. */
static bool requires_grad(rw_tape *t, const rw_tensor *x)
{
    if (!(x->flags & RW_VALUE_REQUIRES)) rw_spread_requirement(t);
    return x->flags & RW_VALUE_REQUIRES;
}

/* name: "loss", "y[2]". */
static rw_status check_root(rw_tape *t, const rw_tensor *y, const char *what, const char *name)
{
    rw_context *const ctx = t->ctx;
    const char *const fault = rw_value_fault(t, y);
    char text[RW_FAULT_TEXT];
    if (fault)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s: %s", what,
                       rw_fault_text(text, y, name, "an input or result of this tape", fault));
    const rw_status status = rw_open_check(t, what);
    if (status) return status;
    if (!rw_dtype_is_float((rw_dtype)y->dtype))
        return rw_fail(ctx, RW_ERR_DTYPE, "%s: %s: expected a floating-point type, got %s", what, name,
                       rw_dtype_name((rw_dtype)y->dtype));
    if (!requires_grad(t, y))
        return rw_fail(ctx, RW_ERR_ARGUMENT,
                       "%s: %s: expected a value that depends on a parameter, got one that depends on no parameter and "
                       "no value marked by rw_require_grad()", what, name);
    return RW_OK;
}

static rw_status check_scalar(const rw_tape *t, const rw_tensor *loss, const char *what)
{
    const long long n = rw_layout_of(t->ctx, loss)->numel;
    return n == 1 ? RW_OK : rw_fail(t->ctx, RW_ERR_SHAPE, "%s(loss): expected 1 element, got %lld", what, n);
}

uint32_t rw_loss_check(rw_tape *t, rw_tensor *loss, const char *what)
{
    if (t->ctx->status) return RW_NONE_ID;
    rw_status status = RW_OK;
    if (loss && rw_tape_has(t, loss)) {
        status = rw_open_check(t, what);
        if (!status) status = check_scalar(t, loss, what);
    }
    if (!status) status = check_root(t, loss, what, "loss");
    return status ? RW_NONE_ID : loss->id;
}

rw_status rw_roots_check(rw_tape *t, size_t n, rw_tensor *const *y, const char *what, uint32_t *ret_roots)
{
    rw_context *const ctx = t->ctx;
    if (ctx->status) return ctx->status;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "y[%zu]", i);
        status = check_root(t, y[i], what, name);
        if (!status) ret_roots[i] = y[i]->id;
    }
    return status;
}

/* ---- the last ones ---- */

static void reset(rw_tape *t, void *state)
{
    ((struct rw_last_roots *)state)->n = 0;
}

static void destroy(rw_context *ctx, void *state)
{
    rw_free(((struct rw_last_roots *)state)->values);
}

static struct rw_extension roots_extension = { .name = "roots", .size = sizeof(struct rw_last_roots), .reset = reset,
                                               .destroy = destroy };

rw_status rw_roots_note(rw_tape *t, const uint32_t *roots, size_t n, bool seeded, const char *what)
{
    struct rw_last_roots *const last = rw_extension_make(&t->extensions, &roots_extension);
    if (!last || !rw_grow(&last->values, &last->cap, 0, n, sizeof *last->values))
        return rw_fail(t->ctx, RW_ERR_MEMORY, "%s: out of memory", what);
    memcpy(last->values, roots, n * sizeof *roots);
    last->n = n;
    last->seeded = seeded;
    return RW_OK;
}

const struct rw_last_roots *rw_roots_of(const rw_tape *t)
{
    const struct rw_last_roots *const last = rw_extension_find(&t->extensions, &roots_extension);
    return last && last->n ? last : NULL;
}
