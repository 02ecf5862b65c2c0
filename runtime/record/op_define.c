/* Definitions of ops that are made at run time: copies that live as long as their context. */
#include "base/alloc.h"
#include "record/tape.h"

#include <string.h>

struct defined {
    rw_op_def def;
    char name[]; /* of def.name */
};

struct definitions {
    struct defined **list;
    size_t n, cap;
};

static void destroy(rw_context *ctx, void *state)
{
    struct definitions *const d = state;
    for (size_t i = 0; i < d->n; i++) rw_free(d->list[i]);
    rw_free(d->list);
}

static struct rw_extension definitions_extension = { .name = "definitions", .size = sizeof(struct definitions),
                                                     .destroy = destroy };

/* Member by member: bytes between members are undefined. */
static bool is_same(const rw_op_def *a, const rw_op_def *b)
{
    return !strcmp(a->name, b->name) && a->n_inputs == b->n_inputs && a->n_outputs == b->n_outputs &&
           a->flags == b->flags && a->strided == b->strided && a->inplace == b->inplace &&
           a->optional == b->optional && a->check == b->check && !memcmp(a->kernel, b->kernel, sizeof a->kernel) &&
           a->grad == b->grad && a->cost == b->cost && a->draws == b->draws &&
           !memcmp(a->workspace, b->workspace, sizeof a->workspace) && a->recompute_output == b->recompute_output &&
           a->cast_low == b->cast_low && a->cast_f32 == b->cast_f32 && a->cast_widest == b->cast_widest &&
           a->parts == b->parts && a->bias == b->bias && a->address_bytes == b->address_bytes && a->fused == b->fused;
}

static const rw_op_def *add(struct definitions *d, const rw_op_def *def)
{
    const size_t length = strlen(def->name) + 1;
    if (!rw_grow(&d->list, &d->cap, d->n, 1, sizeof *d->list)) return NULL;
    struct defined *const own = rw_malloc(sizeof *own + length);
    if (!own) return NULL;
    own->def = *def;
    own->def.name = memcpy(own->name, def->name, length);
    d->list[d->n++] = own;
    return &own->def;
}

const rw_op_def *rw_op_define(rw_tape *t, const rw_op_def *def)
{
    RW_ENTER_RECORDING(t, NULL);
    rw_context *const ctx = t ? t->ctx : NULL;
    const char *const absent = !t ? "t" : !def ? "def" : !def->name ? "def->name" : NULL;
    if (absent) {
        rw_fail_null(ctx, "rw_op_define", absent);
        return NULL;
    }
    struct definitions *const d = rw_extension_make(&ctx->extensions, &definitions_extension);
    for (size_t i = 0; d && i < d->n; i++)
        if (is_same(&d->list[i]->def, def)) return &d->list[i]->def;
    const rw_op_def *const own = d ? add(d, def) : NULL;
    if (!own) rw_fail(ctx, RW_ERR_MEMORY, "rw_op_define: out of memory");
    return own;
}
