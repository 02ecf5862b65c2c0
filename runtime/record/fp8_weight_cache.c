/* Entries of kept FP8 weights: lookup by versions, the states, and the commits that write them. */
#include "record/fp8_weight_cache.h"

#include "base/alloc.h"
#include "record/internal_ops.h"
#include "record/tape.h"

#include <rewind/ops.h>

#include <string.h>

static struct rw_kept_codes *entry_of(const struct rw_kept_key *key)
{
    struct rw_kept_codes *e = key->weight->kept_codes;
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

/* A tape has one leaf per state and step, with the contents of that time. */
static bool may_be_read(const rw_tape *t, const struct rw_param *state)
{
    const struct rw_leaf *const leaf = rw_tape_leaf_of(t, state);
    return !leaf || leaf->version == state->version;
}

bool rw_kept_codes_find(rw_site at, rw_tape *t, const struct rw_kept_key *key, uint32_t weight, rw_tensor **ret_codes,
                        rw_tensor **ret_scale)
{
    const struct rw_kept_codes *const e = entry_of(key);
    if (!e || !is_of_now(e, key) || !is_written(e) || !may_be_read(t, e->codes) || !may_be_read(t, e->scale))
        return false;
    *ret_codes = rw_operand_at(at, t, &e->codes->tensor, t->composite);
    *ret_scale = *ret_codes ? rw_operand_at(at, t, &e->scale->tensor, t->composite) : NULL;
    if (*ret_scale) t->leaves[(*ret_codes)->leaf].weight = 1 + weight;
    return true;
}

static struct rw_param *state_like(rw_context *ctx, const rw_tensor *x, const struct rw_param *weight)
{
    struct rw_param *const p = rw_state_create(ctx, rw_tensor_dtype(x), rw_tensor_shape(x));
    if (p) p->codes_of = weight;
    return p;
}

static struct rw_kept_codes *make(const struct rw_kept_key *key, const rw_tensor *codes, const rw_tensor *scale)
{
    rw_context *const ctx = key->weight->tensor.owner.ctx;
    struct rw_kept_codes *const e = rw_calloc(1, sizeof *e);
    if (!e) return NULL;
    e->origin = key->origin;
    e->codes = state_like(ctx, codes, key->weight);
    e->scale = e->codes ? state_like(ctx, scale, key->weight) : NULL;
    if (!e->scale) {
        rw_state_destroy(ctx, e->codes);
        rw_free(e);
        return NULL;
    }
    e->next = key->weight->kept_codes;
    key->weight->kept_codes = e;
    ctx->memory.parameters += e->codes->bytes + e->scale->bytes;
    return e;
}

/* Another tape may still write the states, even for an earlier weight, and versions do not tell whose commit it was. */
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
    if (!e) return rw_fail(t->ctx, RW_ERR_MEMORY, "quantize at %s:%d: out of memory", rw_file_of(at), at.line);
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
        if (p && p->codes_of) return rw_param_name(p);
    }
    return NULL;
}

void rw_kept_codes_drop(rw_context *ctx, struct rw_param *weight)
{
    for (struct rw_kept_codes *e = weight->kept_codes, *next; e; e = next) {
        next = e->next;
        ctx->memory.parameters -= e->codes->bytes + e->scale->bytes;
        rw_state_destroy(ctx, e->codes);
        rw_state_destroy(ctx, e->scale);
        rw_free(e);
    }
    weight->kept_codes = NULL;
}
