/* Regions, parts with policies, and decisions about single values: the checkpointing calls during recording. */
#include "base/alloc.h"
#include "record/handle_check.h"
#include "record/precision_recipe.h"
#include "record/tape_key_words.h"

#include <rewind/recompute.h>
#include <rewind/ops.h>

#include <stdio.h>
#include <string.h>

static void mark_names(struct rw_names_used *used, const rw_tape *t)
{
    for (size_t i = 0; i < t->n_regions; i++) rw_names_mark(used, t->regions[i].name);
    for (uint32_t i = 0; i < t->n_values; i++) {
        const uint16_t tag = rw_tape_value(t, i)->tag;
        if (tag) rw_names_mark(used, tag - 1u);
    }
}

static uint32_t name_index(rw_context *ctx, const char *name)
{
    if (rw_names_sweep_is_due(&ctx->names)) {
        struct rw_names_used used = { { 0 } };
        for (const rw_tape *t = ctx->tapes; t; t = t->next) mark_names(&used, t);
        rw_names_sweep(&ctx->names, &used);
    }
    return rw_names_index(&ctx->names, name);
}

rw_status rw_open_check(const rw_tape *t, const char *what)
{
    rw_context *const ctx = t->ctx;
    if (t->open_region == RW_NONE_ID && t->open_part != RW_NONE_ID) {
        const rw_site begun = ctx->sites[t->parts[t->open_part].site];
        return rw_fail(ctx, RW_ERR_REGION,
                       "%s: expected no open policy, got one begun at %s:%d; call ckpt_policy_end() first", what,
                       begun.file, (int)begun.line);
    }
    if (t->open_region == RW_NONE_ID && t->open_recipe != RW_NONE_ID) {
        const rw_site begun = ctx->sites[rw_recipe_open(t)->site];
        return rw_fail(ctx, RW_ERR_REGION,
                       "%s: expected no open recipe, got one begun at %s:%d; call rw_recipe_end() first", what,
                       begun.file, (int)begun.line);
    }
    if (t->open_region == RW_NONE_ID) return RW_OK;
    const struct rw_region *const r = &t->regions[t->open_region];
    const rw_site at = ctx->sites[r->site];
    return rw_fail(ctx, RW_ERR_REGION,
                   "%s: expected no open region, got \"%s\", begun at %s:%d; call ckpt_end() first", what,
                   ctx->names.text[r->name], rw_file_of(at), at.line);
}

/* What can fail comes before the first change of the tape; then the region and the key that identifies the step
   change together. */
rw_status ckpt_begin_at(rw_site at, rw_tape *t, const char *name)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "ckpt_begin", "t");
    rw_context *const ctx = t->ctx;
    if (!name || !*name || strpbrk(name, ",+;:/"))
        return rw_fail(ctx, RW_ERR_ARGUMENT, "ckpt_begin at %s:%d: name: expected a name without , + ; : /, got %.60s",
                       rw_file_of(at), at.line, !name ? "NULL" : !*name ? "none" : name);
    const uint32_t index = name_index(ctx, name);
    const uint32_t site = rw_site_index(ctx, at);
    if (index == RW_NONE_ID)
        return rw_fail(ctx, RW_ERR_MEMORY, "ckpt_begin at %s:%d: %s",
                       rw_file_of(at), at.line, rw_names_fault(&ctx->names));
    const size_t length = strlen(name);
    if (site == RW_NONE_ID || !rw_grow(&t->regions, &t->cap_regions, t->n_regions, 1, sizeof *t->regions) ||
        !rw_key_reserve(&t->key, 1 + RW_KEY_TEXT_WORDS(length)))
        return rw_fail(ctx, RW_ERR_MEMORY, "ckpt_begin at %s:%d: out of memory", rw_file_of(at), at.line);
    t->regions[t->n_regions] = (struct rw_region){ .name = index, .parent = t->open_region,
                                                   .first = (uint32_t)t->n_nodes, .end = RW_NONE_ID, .site = site,
                                                   .part = t->open_part };
    t->open_region = (uint32_t)t->n_regions++;
    rw_key_add(&t->key, RW_KEY_REGION);
    rw_key_add_text(&t->key, name, length);
    return RW_OK;
}

/* A policy or a recipe that began inside the region must have ended, so that regions, policies and recipes nest. */
rw_status ckpt_end_at(rw_site at, rw_tape *t)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "ckpt_end", "t");
    if (t->open_region == RW_NONE_ID)
        return rw_fail(t->ctx, RW_ERR_REGION, "ckpt_end at %s:%d: expected an open region, got none; call "
                       "ckpt_begin() first", rw_file_of(at), at.line);
    if (t->open_part != RW_NONE_ID && t->parts[t->open_part].region == t->open_region) {
        const rw_site begun = t->ctx->sites[t->parts[t->open_part].site];
        return rw_fail(t->ctx, RW_ERR_REGION, "ckpt_end at %s:%d: expected no open policy inside the region, got one "
                       "begun at %s:%d; call ckpt_policy_end() first", rw_file_of(at), at.line, begun.file,
                       (int)begun.line);
    }
    if (t->open_recipe != RW_NONE_ID && rw_recipe_open(t)->region == t->open_region) {
        const rw_site begun = t->ctx->sites[rw_recipe_open(t)->site];
        return rw_fail(t->ctx, RW_ERR_REGION, "ckpt_end at %s:%d: expected no open recipe inside the region, got one "
                       "begun at %s:%d; call rw_recipe_end() first", rw_file_of(at), at.line, begun.file,
                       (int)begun.line);
    }
    if (!rw_key_reserve(&t->key, 1))
        return rw_fail(t->ctx, RW_ERR_MEMORY, "ckpt_end at %s:%d: out of memory", rw_file_of(at), at.line);
    struct rw_region *const r = &t->regions[t->open_region];
    r->end = (uint32_t)t->n_nodes;
    t->open_region = r->parent;
    rw_key_add(&t->key, RW_KEY_REGION_END);
    return RW_OK;
}

/* Reserves one more part, which may still hold the policy of an earlier step's part. */
static bool reserve_part(rw_tape *t)
{
    if (t->n_parts < t->n_created_parts) return true;
    if (!rw_grow(&t->parts, &t->cap_parts, t->n_parts, 1, sizeof *t->parts)) return false;
    t->parts[t->n_created_parts++] = (struct rw_tape_part){ 0 };
    return true;
}

/* A training loop sets the same policy at every step: it is parsed once. */
static rw_status take_policy(struct rw_policy *policy, const char *spec, char *message)
{
    if (policy->spec && !strcmp(policy->spec, spec)) return RW_OK;
    struct rw_policy parsed;
    const rw_status status = rw_policy_parse(spec, &parsed, message, RW_MESSAGE_MAX);
    if (status) return status;
    rw_policy_finish(policy);
    *policy = parsed;
    return RW_OK;
}

/* A part's budget limits its own arena bytes. If one were inside another, more bytes for the inner one would leave
   less for the outer one, and more could be slower. */
static rw_status refuse_budget(const rw_tape *t, const struct rw_policy *policy, rw_site at)
{
    if (policy->kind != RW_POLICY_BUDGET) return RW_OK;
    if (policy->total || policy->moves)
        return rw_fail(t->ctx, RW_ERR_UNSUPPORTED, "ckpt_policy_begin at %s:%d: policy \"%.100s\": expected a "
                       "budget: without total: or +offload, got %s, which is for the whole tape", rw_file_of(at),
                       at.line, policy->spec, policy->total ? "total:" : "+offload");
    for (uint32_t i = t->open_part; i != RW_NONE_ID; i = t->parts[i].parent) {
        if (t->parts[i].policy.kind != RW_POLICY_BUDGET) continue;
        const rw_site begun = t->ctx->sites[t->parts[i].site];
        return rw_fail(t->ctx, RW_ERR_UNSUPPORTED, "ckpt_policy_begin at %s:%d: policy \"%.100s\": expected no "
                       "budget inside the part begun at %s:%d, which has one, got one",
                       rw_file_of(at), at.line, policy->spec, begun.file, (int)begun.line);
    }
    return RW_OK;
}

rw_status ckpt_policy_begin_at(rw_site at, rw_tape *t, const char *spec)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "ckpt_policy_begin", "t");
    rw_context *const ctx = t->ctx;
    if (!spec) return rw_fail_null(ctx, "ckpt_policy_begin", "spec");
    const uint32_t site = rw_site_index(ctx, at);
    if (site == RW_NONE_ID || !reserve_part(t))
        return rw_fail(ctx, RW_ERR_MEMORY, "ckpt_policy_begin at %s:%d: out of memory", rw_file_of(at), at.line);
    struct rw_tape_part *const part = &t->parts[t->n_parts];
    char message[RW_MESSAGE_MAX];
    const rw_status status = take_policy(&part->policy, spec, message);
    if (status) return rw_fail(ctx, status, "ckpt_policy_begin at %s:%d: %s", rw_file_of(at), at.line, message);
    const rw_status refused = refuse_budget(t, &part->policy, at);
    if (refused) return refused;
    if (!rw_key_reserve(&t->key, 1 + rw_key_policy_words(&part->policy)))
        return rw_fail(ctx, RW_ERR_MEMORY, "ckpt_policy_begin at %s:%d: out of memory", rw_file_of(at), at.line);
    part->parent = t->open_part;
    part->region = t->open_region;
    part->first = (uint32_t)t->n_nodes;
    part->end = RW_NONE_ID;
    part->site = site;
    t->open_part = (uint32_t)t->n_parts++;
    rw_key_add(&t->key, RW_KEY_PART);
    rw_key_add_policy(&t->key, &part->policy);
    return RW_OK;
}

rw_status ckpt_policy_end_at(rw_site at, rw_tape *t)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "ckpt_policy_end", "t");
    if (t->open_part == RW_NONE_ID)
        return rw_fail(t->ctx, RW_ERR_REGION, "ckpt_policy_end at %s:%d: expected an open policy, got none; call "
                       "ckpt_policy_begin() first", rw_file_of(at), at.line);
    struct rw_tape_part *const part = &t->parts[t->open_part];
    if (part->region != t->open_region) {
        const struct rw_region *const r = &t->regions[t->open_region];
        return rw_fail(t->ctx, RW_ERR_REGION, "ckpt_policy_end at %s:%d: expected no open region inside the policy, "
                       "got \"%s\"; call ckpt_end() first", rw_file_of(at), at.line, t->ctx->names.text[r->name]);
    }
    if (!rw_key_reserve(&t->key, 1))
        return rw_fail(t->ctx, RW_ERR_MEMORY, "ckpt_policy_end at %s:%d: out of memory", rw_file_of(at), at.line);
    part->end = (uint32_t)t->n_nodes;
    t->open_part = part->parent;
    rw_key_add(&t->key, RW_KEY_PART_END);
    return RW_OK;
}

/* Returns x if it is a value of this tape that a decision can be about. Errors are sticky. */
static struct rw_tensor *decidable(rw_tape *t, rw_tensor *x, const char *what, rw_site at)
{
    const char *const fault = t ? rw_value_fault(t, x) : "";
    char text[RW_FAULT_TEXT];
    if (!fault) return x;
    if (!t) snprintf(text, sizeof text, "t is NULL; expected a tape");
    else rw_fault_text(text, x, "x", "an input or result of this tape", fault);
    rw_fail(t ? t->ctx : rw_tensor_context(x), RW_ERR_ARGUMENT, "%s at %s:%d: %s", what, rw_file_of(at), at.line, text);
    return NULL;
}

#define DECISIONS ((unsigned)RW_VALUE_SAVE | RW_VALUE_RECOMPUTE | RW_VALUE_OFFLOAD)

/* Of several decisions about one value the last one applies. */
static rw_tensor *decide(rw_site at, rw_tape *t, rw_tensor *x, const char *what, enum rw_value_flag decision)
{
    if (!decidable(t, x, what, at)) return NULL;
    if (!rw_key_reserve(&t->key, RW_KEY_MARK_WORDS)) {
        rw_fail(t->ctx, RW_ERR_MEMORY, "%s at %s:%d: out of memory", what, rw_file_of(at), at.line);
        return NULL;
    }
    struct rw_tensor *const base = rw_tape_value(t, x->base);
    base->flags = (uint8_t)((base->flags & ~DECISIONS) | decision);
    rw_key_add_mark(&t->key, base->id, decision);
    return x;
}

rw_tensor *ckpt_keep_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    RW_ENTER_OP(t);
    return decide(at, t, x, "ckpt_keep", RW_VALUE_SAVE);
}

rw_tensor *ckpt_recompute_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    RW_ENTER_OP(t);
    return decide(at, t, x, "ckpt_recompute", RW_VALUE_RECOMPUTE);
}

rw_tensor *ckpt_offload_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    RW_ENTER_OP(t);
    return decide(at, t, x, "ckpt_offload", RW_VALUE_OFFLOAD);
}

rw_tensor *ckpt_name_at(rw_site at, rw_tape *t, rw_tensor *x, const char *name)
{
    RW_ENTER_OP(t);
    if (!decidable(t, x, "ckpt_name", at)) return NULL;
    if (!name || !*name) {
        rw_fail(t->ctx, RW_ERR_ARGUMENT, "ckpt_name at %s:%d: name: expected 1 byte or more, got %s", rw_file_of(at),
                at.line, name ? "none" : "NULL");
        return NULL;
    }
    const uint32_t index = name_index(t->ctx, name);
    if (index == RW_NONE_ID) {
        rw_fail(t->ctx, RW_ERR_MEMORY, "ckpt_name at %s:%d: %s",
                rw_file_of(at), at.line, rw_names_fault(&t->ctx->names));
        return NULL;
    }
    const size_t length = strlen(name);
    if (!rw_key_reserve(&t->key, 2 + RW_KEY_TEXT_WORDS(length))) {
        rw_fail(t->ctx, RW_ERR_MEMORY, "ckpt_name at %s:%d: out of memory", rw_file_of(at), at.line);
        return NULL;
    }
    x->tag = (uint16_t)(index + 1);
    rw_tape_value(t, x->base)->tag = x->tag; /* a view is kept as its buffer */
    rw_key_add(&t->key, RW_KEY_NAME);
    rw_key_add(&t->key, x->id);
    rw_key_add_text(&t->key, name, length);
    return x;
}

/* A policy from the environment variable REWIND_POLICY wins: the spec is then checked and ignored. */
rw_status ckpt_set_policy(rw_tape *t, const char *spec)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "ckpt_set_policy", "t");
    rw_context *const ctx = t->ctx;
    if (!spec) return rw_fail_null(ctx, "ckpt_set_policy", "spec");
    struct rw_policy parsed;
    char message[RW_MESSAGE_MAX];
    const rw_status status = rw_policy_parse(spec, &parsed, message, sizeof message);
    if (status) return rw_fail(ctx, status, "ckpt_set_policy: %s", message);
    char *const copy = rw_strdup(spec);
    if (!copy || t->policy_pinned) {
        rw_policy_finish(&parsed);
        rw_free(copy);
        return copy ? RW_OK : rw_fail(ctx, RW_ERR_MEMORY, "ckpt_set_policy: out of memory");
    }
    rw_policy_finish(&t->policy);
    rw_free(t->policy_spec);
    t->policy = parsed;
    t->policy_spec = copy;
    return RW_OK;
}

const char *ckpt_policy(const rw_tape *t)
{
    RW_LOOKS_ONLY;
    return t ? t->policy_spec : "";
}
