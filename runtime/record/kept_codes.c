/* See kept_codes.h. */
#include "record/kept_codes.h"

#include "base/alloc.h"
#include "record/own_ops.h"
#include "record/tape.h"

#include <rewind/ops.h>

#include <string.h>

static struct rw_kept_codes *entry_of(const struct rw_kept_key *key)
{
    const rw_context *const ctx = key->weight->tensor.owner.ctx;
    const size_t id = key->weight->tensor.id;
    struct rw_kept_codes *e = id < ctx->cap_kept_codes ? ctx->kept_codes[id] : NULL;
    while (e && e->origin != key->origin) e = e->next;
    return e;
}

static bool is_of_now(const struct rw_kept_codes *e, const struct rw_kept_key *key)
{
    return e->weight_version == key->weight->version && e->given_version == key->given_version;
}

static bool is_written(const struct rw_kept_codes *e)
{
    return e->codes->version == e->codes_version + 1 && e->scale->version == e->scale_version + 1;
}

/* A tape has one leaf of a state in each step, which is of the contents that it had then. */
static bool may_be_read(const rw_tape *t, const struct rw_param *state)
{
    const struct rw_seen *const seen = state->tensor.id < t->cap_seen ? &t->seen[state->tensor.id] : NULL;
    if (!seen || seen->step != t->step) return true;
    return t->leaves[rw_tape_value(t, seen->value)->leaf].version == state->version;
}

bool rw_kept_codes_find(rw_site at, rw_tape *t, const struct rw_kept_key *key, rw_tensor **ret_codes,
                        rw_tensor **ret_scale)
{
    const struct rw_kept_codes *const e = entry_of(key);
    if (!e || !is_of_now(e, key) || !is_written(e) || !may_be_read(t, e->codes) || !may_be_read(t, e->scale))
        return false;
    *ret_codes = rw_operand_at(at, t, &e->codes->tensor, t->composite);
    *ret_scale = *ret_codes ? rw_operand_at(at, t, &e->scale->tensor, t->composite) : NULL;
    return true;
}

/* Like x, and named like the weight: messages name it. */
static struct rw_param *state_like(rw_context *ctx, const rw_tensor *x, const char *name)
{
    struct rw_param *const p = rw_state_create(ctx, rw_tensor_dtype(x), rw_tensor_shape(x));
    if (!p) return NULL;
    p->keeps_codes = true;
    p->name = rw_strdup(name);
    if (p->name) return p;
    rw_state_destroy(ctx, p);
    return NULL;
}

static bool reserve(rw_context *ctx, size_t id)
{
    const size_t had = ctx->cap_kept_codes;
    if (!rw_grow(&ctx->kept_codes, &ctx->cap_kept_codes, id, 1, sizeof *ctx->kept_codes)) return false;
    for (size_t i = had; i < ctx->cap_kept_codes; i++) ctx->kept_codes[i] = NULL;
    return true;
}

static struct rw_kept_codes *make(const struct rw_kept_key *key, const rw_tensor *codes, const rw_tensor *scale)
{
    rw_context *const ctx = key->weight->tensor.owner.ctx;
    const size_t id = key->weight->tensor.id;
    struct rw_kept_codes *const e = reserve(ctx, id) ? rw_calloc(1, sizeof *e) : NULL;
    if (!e) return NULL;
    e->origin = key->origin;
    e->codes = state_like(ctx, codes, key->weight->name);
    e->scale = e->codes ? state_like(ctx, scale, key->weight->name) : NULL;
    if (!e->scale) {
        rw_state_destroy(ctx, e->codes);
        rw_free(e);
        return NULL;
    }
    e->next = ctx->kept_codes[id];
    ctx->kept_codes[id] = e;
    ctx->memory.parameters += e->codes->bytes + e->scale->bytes;
    return e;
}

/* Another tape may yet write them, if only those of an earlier weight: versions do not tell whose commit it was. */
static bool is_under_way(const rw_tape *t, const struct rw_kept_codes *e)
{
    const rw_tape *other = t->ctx->tapes;
    while (other && other != e->by) other = other->next;
    return other && other != t && other->step == e->step && !is_written(e);
}

rw_status rw_kept_codes_store(rw_site at, rw_tape *t, const struct rw_kept_key *key, rw_tensor *codes,
                              rw_tensor *scale)
{
    struct rw_kept_codes *e = entry_of(key);
    if (e && is_under_way(t, e)) return RW_OK;
    if (!e) e = make(key, codes, scale);
    if (!e) return rw_fail(t->ctx, RW_ERR_MEMORY, "quantize at %s:%d: out of memory", at.file, at.line);
    rw_status status = rw_assign_at(at, t, &e->codes->tensor, codes);
    if (!status) status = rw_assign_at(at, t, &e->scale->tensor, scale);
    if (status) return status;
    e->weight_version = key->weight->version;
    e->given_version = key->given_version;
    e->codes_version = e->codes->version;
    e->scale_version = e->scale->version;
    e->by = t;
    e->step = t->step;
    return RW_OK;
}

const char *rw_kept_codes_named(const rw_tape *t)
{
    for (size_t i = 0; i < t->n_leaves; i++) {
        const struct rw_param *const p =
            t->leaves[i].kind == RW_LEAF_PARAM ? t->ctx->by_id[t->leaves[i].param] : NULL;
        if (p && p->keeps_codes) return p->name;
    }
    return NULL;
}

void rw_kept_codes_free(rw_context *ctx)
{
    for (size_t i = 0; i < ctx->cap_kept_codes; i++)
        for (struct rw_kept_codes *e = ctx->kept_codes[i], *next; e; e = next) {
            next = e->next;
            rw_free(e);
        }
    rw_free(ctx->kept_codes);
}
