/* Entries of kept FP8 weights: lookup by versions, the states, and the commits that write them. */
#include "record/fp8_weight_cache.h"

#include "base/alloc.h"
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

/* The number of states that it has. */
static int states_of(const struct rw_kept_codes *e)
{
    return e->state[RW_KEPT_AMAX] ? RW_KEPT_STATES : RW_KEPT_AMAX;
}

static bool is_written(const struct rw_kept_codes *e)
{
    for (int i = 0; i < states_of(e); i++)
        if (e->state[i]->version != e->version[i] + 1) return false;
    return true;
}

/* A tape has one leaf per state and step, with the contents of that time. If the state was written since, because a
   value was read while the step was recorded, the step can neither read the new contents nor write others. */
static bool may_be_read(const rw_tape *t, const struct rw_kept_codes *e)
{
    for (int i = 0; i < states_of(e); i++) {
        const struct rw_leaf *const leaf = rw_tape_leaf_of(t, e->state[i]);
        if (leaf && leaf->version != e->state[i]->version) return false;
    }
    return true;
}

bool rw_kept_codes_find(rw_site at, rw_tape *t, const struct rw_kept_key *key, uint32_t weight,
                        struct rw_kept_values *ret)
{
    const struct rw_kept_codes *const e = entry_of(key);
    if (!e || !is_of_now(e, key) || !is_written(e) || !may_be_read(t, e)) return false;
    const bool noted = e->state[RW_KEPT_AMAX] && rw_tape_leaf_of(t, e->state[RW_KEPT_AMAX]);
    *ret = (struct rw_kept_values){ { NULL } };
    for (int i = 0; i < (noted ? RW_KEPT_AMAX : states_of(e)); i++) {
        ret->value[i] = rw_operand_at(at, t, &e->state[i]->tensor, t->composite);
        if (ret->value[i]) continue;
        *ret = (struct rw_kept_values){ { NULL } };
        return true;
    }
    t->leaves[ret->value[RW_KEPT_CODES]->leaf].weight = 1 + weight;
    return true;
}

static struct rw_param *state_like(rw_context *ctx, const rw_tensor *x, const struct rw_param *weight)
{
    struct rw_param *const p = rw_state_create(ctx, rw_tensor_dtype(x), rw_tensor_shape(x));
    if (p) p->codes_of = weight;
    return p;
}

static void drop(rw_context *ctx, struct rw_kept_codes *e)
{
    for (int i = 0; i < RW_KEPT_STATES; i++) {
        if (e->state[i]) ctx->memory.parameters -= e->state[i]->bytes;
        rw_state_destroy(ctx, e->state[i]);
    }
    rw_free(e);
}

static void destroy(rw_context *ctx, void *state)
{
    for (size_t i = 0; i < ctx->n_params; i++) rw_kept_codes_drop(ctx, ctx->params[i]);
}

/* Of a context whose weights have entries. */
static struct rw_extension kept_extension = { .name = "kept_weights", .destroy = destroy };

static struct rw_kept_codes *make(const struct rw_kept_key *key, const struct rw_kept_values *values)
{
    rw_context *const ctx = key->weight->tensor.owner.ctx;
    const bool is_known = rw_extension_make(&ctx->extensions, &kept_extension);
    struct rw_kept_codes *const e = is_known ? rw_calloc(1, sizeof *e) : NULL;
    if (!e) return NULL;
    e->origin = key->origin;
    for (int i = 0; i < RW_KEPT_STATES && values->value[i]; i++) {
        e->state[i] = state_like(ctx, values->value[i], key->weight);
        if (!e->state[i]) {
            drop(ctx, e);
            return NULL;
        }
        ctx->memory.parameters += e->state[i]->bytes;
    }
    e->next = key->weight->kept_codes;
    key->weight->kept_codes = e;
    return e;
}

/* Another tape may still write the states, even for an earlier weight, and versions do not tell whose commit it was. */
static bool is_under_way(const rw_tape *t, const struct rw_kept_codes *e)
{
    const rw_tape *other = t->ctx->tapes;
    while (other && other != e->by) other = other->next;
    return other && other != t && other->step == e->step && !is_written(e);
}

rw_status rw_kept_codes_store(rw_site at, rw_tape *t, const struct rw_kept_key *key,
                              const struct rw_kept_values *values)
{
    struct rw_kept_codes *e = entry_of(key);
    if (e && (is_under_way(t, e) || !may_be_read(t, e))) return RW_OK;
    if (!e) e = make(key, values);
    if (!e) return rw_fail(t->ctx, RW_ERR_MEMORY, "quantize at %s:%d: out of memory", rw_file_of(at), at.line);
    rw_status status = RW_OK;
    for (int i = 0; !status && i < states_of(e); i++)
        status = rw_assign_at(at, t, &e->state[i]->tensor, values->value[i]);
    if (status) return status;
    e->weight_version = key->weight->version;
    e->given_version = key->given_version;
    for (int i = 0; i < states_of(e); i++) e->version[i] = e->state[i]->version;
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
        drop(ctx, e);
    }
    weight->kept_codes = NULL;
}
