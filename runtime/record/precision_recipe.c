/* Precision recipes: the types of ops, the cache of casts, and FP8 data of operands. */
#include "record/precision_recipe.h"

#include "base/alloc.h"
#include "ops/float8/fp8_scaling_ops.h"
#include "record/delayed_scales.h"
#include "record/fp8_weight_cache.h"
#include "record/handle_check.h"
#include "record/recipe_slots.h"

#include <rewind/ops.h>

struct cast {
    uint32_t source, result; /* values */
    uint32_t region;         /* RW_NONE_ID outside any */
    uint64_t scaling;        /* of FP8 data: the source of its scales; else 0 */
    uint32_t before;         /* the previous cast of the same source, RW_NONE_ID for none */
    bool no_grad;            /* recorded in a no-grad scope */
};

/* Of a tape that has had a recipe. */
struct recipes {
    struct rw_tape_recipe *list;
    size_t n, cap;
    struct cast *casts; /* that recipes recorded */
    size_t n_casts, cap_casts;
    uint32_t *cast_of; /* by value: its last cast, if that refers back to it */
    size_t cap_cast_of;
};

/* The result of a cast is newer than what was recorded before it. */
static void cut(rw_tape *t, void *state)
{
    struct recipes *const r = state;
    while (r->n_casts && r->casts[r->n_casts - 1].result >= t->n_values) r->n_casts--;
}

static void reset(rw_tape *t, void *state)
{
    struct recipes *const r = state;
    r->n = r->n_casts = 0;
}

static void destroy(rw_context *ctx, void *state)
{
    struct recipes *const r = state;
    rw_free(r->list);
    rw_free(r->casts);
    rw_free(r->cast_of);
}

static struct rw_extension recipes_extension = { .name = "recipes", .size = sizeof(struct recipes), .cut = cut,
                                                 .reset = reset, .destroy = destroy };

static struct recipes *recipes_of(const rw_tape *t)
{
    return rw_extension_find(&t->extensions, &recipes_extension);
}

size_t rw_recipes_count(const rw_tape *t)
{
    const struct recipes *const r = recipes_of(t);
    return r ? r->n : 0;
}

void rw_recipes_set_back(const rw_tape *t, size_t n)
{
    struct recipes *const r = recipes_of(t);
    if (r) r->n = n;
}

const struct rw_tape_recipe *rw_recipe_open(const rw_tape *t)
{
    return t->open_recipe == RW_NONE_ID ? NULL : &recipes_of(t)->list[t->open_recipe];
}

static rw_status check_delayed(rw_site at, const rw_tape *t, const rw_recipe *recipe)
{
    const struct rw_delayed_rows *const d = rw_delayed_rows(recipe->delayed);
    const char *const fault = recipe->kind != RW_RECIPE_F8           ? "NULL but for RW_RECIPE_F8"
                              : recipe->scaling != RW_SCALING_TENSOR ? "NULL, except with RW_SCALING_TENSOR"
                              : d->ctx != t->ctx                     ? "NULL or delayed scaling of the tape's context"
                                                                     : NULL;
    if (fault)
        return rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_recipe_begin at %s:%d: delayed: expected %s, got delayed scaling%s",
                       rw_file_of(at), at.line, fault, d->ctx != t->ctx ? " of another context" : "");
    if (!recipe->gradient_dtype || recipe->gradient_dtype == d->gradient_dtype) return RW_OK;
    return rw_fail(t->ctx, RW_ERR_DTYPE, "rw_recipe_begin at %s:%d: gradient_dtype: expected %s, that of delayed, got "
                   "%s", rw_file_of(at), at.line, rw_dtype_name(d->gradient_dtype),
                   rw_dtype_name(recipe->gradient_dtype));
}

/* The recipe is copied. With delayed scaling, its gradient_dtype replaces the recipe's, which may be unset. */
rw_status rw_recipe_begin_at(rw_site at, rw_tape *t, const rw_recipe *recipe)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_recipe_begin", "t");
    rw_context *const ctx = t->ctx;
    if (!recipe) return rw_fail_null(ctx, "rw_recipe_begin", "recipe");
    if ((unsigned)recipe->kind >= RW_RECIPE_COUNT)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_recipe_begin at %s:%d: kind: expected RW_RECIPE_NONE (%d) to "
                       "RW_RECIPE_F8 (%d), got %d", rw_file_of(at), at.line, RW_RECIPE_NONE, RW_RECIPE_F8,
                       (int)recipe->kind);
    const rw_dtype codes = recipe->gradient_dtype;
    if (recipe->scaling != RW_SCALING_TENSOR && recipe->scaling != RW_SCALING_1X128 && recipe->scaling != RW_SCALING_MX)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_recipe_begin at %s:%d: scaling: expected RW_SCALING_TENSOR, "
                       "RW_SCALING_1X128 or RW_SCALING_MX, got %d", rw_file_of(at), at.line, (int)recipe->scaling);
    if (codes && codes != RW_F8_E4M3 && codes != RW_F8_E5M2)
        return rw_fail(ctx, RW_ERR_DTYPE, "rw_recipe_begin at %s:%d: gradient_dtype: expected f8_e4m3 or f8_e5m2, "
                       "got %s", rw_file_of(at), at.line, rw_dtype_name(codes));
    const rw_status delayed = recipe->delayed ? check_delayed(at, t, recipe) : RW_OK;
    if (delayed) return delayed;
    struct recipes *const r = rw_extension_make(&t->extensions, &recipes_extension);
    const uint32_t site = rw_site_index(ctx, at);
    if (!r || site == RW_NONE_ID || !rw_grow(&r->list, &r->cap, r->n, 1, sizeof *r->list))
        return rw_fail(ctx, RW_ERR_MEMORY, "rw_recipe_begin at %s:%d: out of memory", rw_file_of(at), at.line);
    r->list[r->n] = (struct rw_tape_recipe){ *recipe, t->open_recipe, t->open_region, site };
    if (recipe->delayed) r->list[r->n].recipe.gradient_dtype = rw_delayed_rows(recipe->delayed)->gradient_dtype;
    t->open_recipe = (uint32_t)r->n++;
    return RW_OK;
}

rw_status rw_recipe_end_at(rw_site at, rw_tape *t)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_recipe_end", "t");
    const struct rw_tape_recipe *const r = rw_recipe_open(t);
    if (!r)
        return rw_fail(t->ctx, RW_ERR_REGION, "rw_recipe_end at %s:%d: expected an open recipe, got none; call "
                       "rw_recipe_begin() first", rw_file_of(at), at.line);
    if (r->region != t->open_region) {
        const struct rw_region *const open = &t->regions[t->open_region];
        return rw_fail(t->ctx, RW_ERR_REGION, "rw_recipe_end at %s:%d: expected no open region inside the recipe, "
                       "got \"%s\"; call ckpt_end() first",
                       rw_file_of(at), at.line, t->ctx->names.text[open->name]);
    }
    t->open_recipe = r->parent;
    return RW_OK;
}

static rw_recipe_kind open_kind(const rw_tape *t)
{
    return t->open_recipe == RW_NONE_ID || t->origin.adjoint ? RW_RECIPE_NONE : rw_recipe_open(t)->recipe.kind;
}

bool rw_recipe_rules(const rw_tape *t, const rw_op_def *op)
{
    const uint32_t cast = op->cast_low | op->cast_f32 | op->cast_widest;
    return t->open_recipe != RW_NONE_ID && cast && open_kind(t) != RW_RECIPE_NONE;
}

rw_dtype rw_recipe_widest(const rw_op_def *op, struct rw_tensor *const *in, int n)
{
    int first = -1;
    rw_dtype widest = RW_F32;
    for (int i = 0; i < n; i++) {
        const rw_dtype dtype = (rw_dtype)in[i]->dtype;
        if (!rw_op_set_has(op->cast_widest, i) || !rw_dtype_is_float(dtype)) continue;
        if (first < 0) widest = dtype;
        else if (widest != dtype) widest = widest == RW_F64 || dtype == RW_F64 ? RW_F64 : RW_F32;
        first = i;
    }
    return widest;
}

static rw_dtype lowered(rw_recipe_kind kind, rw_dtype has)
{
    static const rw_dtype of[RW_RECIPE_COUNT] = {
        [RW_RECIPE_F32] = RW_F32, [RW_RECIPE_BF16] = RW_BF16, [RW_RECIPE_F16] = RW_F16,
        [RW_RECIPE_F8] = RW_BF16
    };
    return kind == RW_RECIPE_NONE || has == RW_F64 ? has : of[kind];
}

static rw_dtype raised(rw_recipe_kind kind, rw_dtype has)
{
    return kind == RW_RECIPE_NONE || has == RW_F64 ? has : RW_F32;
}

rw_dtype rw_recipe_dtype(const rw_tape *t, const rw_op_def *op, int i, rw_dtype has, rw_dtype widest)
{
    const rw_recipe_kind kind = open_kind(t);
    if (!rw_dtype_is_float(has)) return has;
    if (rw_op_set_has(op->cast_low, i)) return lowered(kind, has);
    if (rw_op_set_has(op->cast_f32, i)) return raised(kind, has);
    return rw_op_set_has(op->cast_widest, i) ? widest : has;
}

rw_dtype rw_recipe_low_dtype(const rw_tape *t, const rw_tensor *x)
{
    RW_LOOKS_ONLY;
    const rw_dtype has = rw_tensor_dtype(x);
    return t && rw_dtype_is_float(has) ? lowered(open_kind(t), has) : has;
}

/* Also casts what an op would refuse; the op then reports it. */
static rw_tensor *in_type(rw_site at, rw_tape *t, rw_tensor *x, rw_dtype (*type)(rw_recipe_kind, rw_dtype))
{
    const rw_dtype has = rw_tensor_dtype(x);
    if (!t || !x || !rw_dtype_is_float(has) || type(open_kind(t), has) == has) return x;
    rw_tensor *const v = rw_operand_at(at, t, x, t->composite ? t->composite : "rw_recipe_cast_low");
    return v ? rw_recipe_cast(t, v, type(open_kind(t), has), at) : NULL;
}

rw_tensor *rw_recipe_cast_low_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    RW_ENTER_OP(t);
    return in_type(at, t, x, lowered);
}

rw_tensor *rw_recipe_cast_f32_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    RW_ENTER_OP(t);
    return in_type(at, t, x, raised);
}

void rw_recipes_forget(const rw_context *ctx, const rw_delayed_scaling *d)
{
    for (const rw_tape *t = ctx->tapes; t; t = t->next) {
        struct recipes *const r = recipes_of(t);
        for (size_t i = 0; r && i < r->n; i++)
            if (r->list[i].recipe.delayed == d) {
                r->list[i].recipe.delayed = NULL;
                r->list[i].bereft = true;
            }
    }
}

/* ---- casts ---- */

static uint32_t last_cast_of(const struct recipes *r, uint32_t value)
{
    const uint32_t i = value < r->cap_cast_of ? r->cast_of[value] : RW_NONE_ID;
    return i < r->n_casts && r->casts[i].source == value ? i : RW_NONE_ID;
}

static bool is_of_context(const rw_tape *t, const struct rw_tensor *x)
{
    return x->leaf != RW_NONE_ID && t->leaves[x->leaf].kind == RW_LEAF_PARAM;
}

/*
 * A cast holds what its source held when it was recorded. If that is a parameter or input that was written since, the
 * cast may already have been computed and would be stale: RW_ERR_MODIFIED, recorded.
 */
static rw_status check_source(const rw_tape *t, const struct rw_tensor *x, rw_site at)
{
    const rw_status missing = rw_tape_misses_nothing(t, "cast"); /* a destroyed average has no memory to compare */
    if (missing) return missing;
    const uint32_t id = rw_tape_value(t, x->base)->leaf;
    const struct rw_leaf *const leaf = id == RW_NONE_ID ? NULL : &t->leaves[id];
    const bool param = leaf && leaf->kind == RW_LEAF_PARAM, input = leaf && leaf->kind == RW_LEAF_INPUT;
    const bool changed = (param && t->ctx->by_id[leaf->param]->version != leaf->version) ||
                         (input && leaf->ran && leaf->written != leaf->version);
    if (!changed) return RW_OK;
    return rw_fail(t->ctx, RW_ERR_MODIFIED,
                   "cast at %s:%d: %s \"%s\" was written after a recipe recorded its cast; reset the tape and record "
                   "the step again", rw_file_of(at), at.line, param ? "parameter" : "input",
                   param ? rw_param_name(t->ctx->by_id[leaf->param]) : rw_tensor_name(rw_tape_value(t, leaf->value)));
}

static struct rw_tensor *cast_before(const rw_tape *t, const struct rw_tensor *x, rw_dtype dtype, uint64_t scaling)
{
    const struct recipes *const r = recipes_of(t);
    for (uint32_t i = last_cast_of(r, x->id); i != RW_NONE_ID; i = r->casts[i].before) {
        const struct cast *const cast = &r->casts[i];
        struct rw_tensor *const y = rw_tape_value(t, cast->result);
        if (cast->scaling != scaling || (rw_dtype)y->dtype != dtype) continue;
        if (cast->no_grad && !t->open_no_grads) continue; /* no gradient would flow through it */
        if (is_of_context(t, x) || cast->region == t->open_region) return y;
    }
    return NULL;
}

static bool reserve(const rw_tape *t, uint32_t value)
{
    struct recipes *const r = recipes_of(t);
    const size_t had = r->cap_cast_of;
    if (!rw_grow(&r->casts, &r->cap_casts, r->n_casts, 1, sizeof *r->casts) ||
        !rw_grow(&r->cast_of, &r->cap_cast_of, value, 1, sizeof *r->cast_of))
        return false;
    for (size_t i = had; i < r->cap_cast_of; i++) r->cast_of[i] = RW_NONE_ID;
    return true;
}

/* Memory is reserved. */
static void note(const rw_tape *t, const struct rw_tensor *x, const struct rw_tensor *y, uint64_t scaling)
{
    struct recipes *const r = recipes_of(t);
    r->casts[r->n_casts] = (struct cast){ x->id, y->id, t->open_region, scaling, last_cast_of(r, x->id),
                                                    t->open_no_grads > 0 };
    r->cast_of[x->id] = (uint32_t)r->n_casts++;
}

struct rw_tensor *rw_recipe_cast(rw_tape *t, struct rw_tensor *x, rw_dtype dtype, rw_site at)
{
    struct rw_tensor *y = cast_before(t, x, dtype, 0);
    if (y) return check_source(t, x, at) ? NULL : y;
    if (!reserve(t, x->id)) {
        rw_fail(t->ctx, RW_ERR_MEMORY, "cast at %s:%d: out of memory", rw_file_of(at), at.line);
        return NULL;
    }
    y = rw_cast_at(at, t, x, dtype);
    if (y) note(t, x, y, 0);
    return y;
}

const rw_recipe *rw_recipe_fp8(const rw_tape *t)
{
    RW_LOOKS_ONLY;
    return t && open_kind(t) == RW_RECIPE_F8 ? &rw_recipe_open(t)->recipe : NULL;
}

/* Identifies the source of scales, by which scales on a tape are found. */
static uint64_t origin_of(const rw_quantize_params *p, const rw_delayed_scaling *delayed)
{
    if (!delayed) return (uint64_t)p->scaling;
    return RW_SCALING_COUNT + rw_delayed_rows(delayed)->scale->serial;
}

/* Quantizes x and records its amax and its counts, if they have a row. RW_OK, or the error of the context. */
static rw_status quantize_in_slot(rw_site at, rw_tape *t, struct rw_tensor *x, const rw_quantize_params *p,
                                  const struct rw_delayed_slot *slot, const struct rw_counts_slot *counted,
                                  struct rw_kept_values *ret)
{
    rw_tensor *amax = NULL, *counts = NULL, *scale = NULL, *const given = slot->scale ? slot->scale : rw_none();
    rw_tensor *const y = rw_quantize_counted_at(at, t, x, given, p, &scale, &amax, counted ? &counts : NULL);
    if (!y) return t->ctx->status ? t->ctx->status : RW_ERR_ARGUMENT;
    *ret = (struct rw_kept_values){ { y, scale, slot->scale ? amax : NULL } };
    const rw_status status = slot->scale ? rw_delayed_note(t, slot->buffer, slot->row, amax) : RW_OK;
    return !status && counted ? rw_counts_note(t, counted->buffer, counted->row, counts) : status;
}

/* The key of a weight whose FP8 data is kept; false for everything else. A tape with graphs keeps none: its values are
   those of the latest launch, whatever the weight was when they were recorded. */
static bool key_of(const rw_tape *t, const struct rw_tensor *x, const rw_recipe *recipe, uint64_t origin,
                   rw_delayed_operand which, struct rw_kept_key *ret)
{
    if (!recipe->keep_weights || which != RW_DELAYED_WEIGHT || !is_of_context(t, x)) return false;
    if (t->bereft || t->n_users > 1) return false;
    *ret = (struct rw_kept_key){ t->ctx->by_id[t->leaves[x->leaf].param], origin,
                                 recipe->delayed ? rw_delayed_rows(recipe->delayed)->scale->version : 0 };
    return true;
}

/* The FP8 data of an earlier step. False if there is none. */
static bool find_kept(rw_site at, rw_tape *t, const struct rw_kept_key *key, const rw_delayed_scaling *delayed,
                      const struct rw_tensor *weight, struct rw_kept_values *ret)
{
    if (!rw_kept_codes_find(at, t, key, weight->leaf, ret)) return false;
    rw_tensor *const amax = ret->value[RW_KEPT_AMAX];
    if (amax && rw_delayed_note_kept(t, rw_delayed_rows(delayed), weight, ret->value[RW_KEPT_CODES], amax))
        ret->value[RW_KEPT_CODES] = NULL;
    return true;
}

/* NULL, or why no operand can be quantized now; recorded. x and weight must be values of the tape. */
static rw_status check_fp8(rw_site at, rw_tape *t, const char *what, const rw_tensor *x, const rw_tensor *weight)
{
    if (!t) return rw_fail_null(NULL, what, "t");
    const char *const name = t->composite ? t->composite : what;
    if (!rw_recipe_fp8(t))
        return rw_fail(t->ctx, RW_ERR_ARGUMENT, "%s at %s:%d: expected an open recipe of RW_RECIPE_F8, got none", name,
                       rw_file_of(at), at.line);
    if (rw_recipe_open(t)->bereft)
        return rw_fail(t->ctx, RW_ERR_ARGUMENT, "%s at %s:%d: expected the open recipe's delayed scaling, got one that "
                       "was destroyed; call rw_recipe_end() first", name, rw_file_of(at), at.line);
    for (int i = 0; i < 2; i++) {
        const rw_tensor *const v = i ? weight : x;
        const char *const fault = rw_value_fault(t, v);
        char text[RW_FAULT_TEXT];
        if (fault)
            return rw_fail(t->ctx, RW_ERR_ARGUMENT, "%s at %s:%d: %s", name, rw_file_of(at), at.line,
                           rw_fault_text(text, v, i ? "weight" : "x", "a value of the tape", fault));
    }
    return RW_OK;
}

/* Scales are the output after the data. */
static rw_tensor *codes_of(rw_site at, rw_tape *t, rw_tensor *x, const rw_quantize_params *params,
                           const rw_recipe *recipe, rw_tensor *weight, rw_delayed_operand which, rw_tensor **ret_scale)
{
    const rw_delayed_scaling *const delayed = recipe->delayed;
    struct rw_delayed_slot slot = { 0 };
    struct rw_counts_slot counted;
    struct rw_kept_key key;
    const uint64_t origin = origin_of(params, delayed);
    const bool keeps = key_of(t, x, recipe, origin, which, &key);
    struct rw_kept_values values;
    if (keeps && find_kept(at, t, &key, delayed, x, &values)) {
        *ret_scale = values.value[RW_KEPT_SCALE];
        return values.value[RW_KEPT_CODES];
    }
    struct rw_tensor *const cast = cast_before(t, x, RW_F8_E4M3, origin);
    if (cast) {
        if (check_source(t, x, at)) return NULL;
        *ret_scale = rw_tape_value(t, cast->id + 1);
        return cast;
    }
    if (!reserve(t, x->id)) {
        rw_fail(t->ctx, RW_ERR_MEMORY, "quantize at %s:%d: out of memory", rw_file_of(at), at.line);
        return NULL;
    }
    if (delayed && !rw_delayed_slot_at(at, t, delayed, weight, which, &slot)) return NULL;
    const bool is_counted = rw_counts_slot_at(at, t, weight, which, &counted);
    if (quantize_in_slot(at, t, x, params, &slot, is_counted ? &counted : NULL, &values)) return NULL;
    note(t, x, values.value[RW_KEPT_CODES], origin);
    *ret_scale = values.value[RW_KEPT_SCALE];
    return keeps && rw_kept_codes_store(at, t, &key, &values) ? NULL : values.value[RW_KEPT_CODES];
}

rw_tensor *rw_recipe_quantize_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_quantize_params *params,
                                 rw_tensor *weight, rw_delayed_operand operand, rw_tensor **ret_scale)
{
    RW_ENTER_OP(t);
    if (check_fp8(at, t, "rw_recipe_quantize", x, weight)) return NULL;
    const rw_quantize_params defaults = { .dtype = RW_F8_E4M3 }, *const p = params ? params : &defaults;
    const bool is_operand = operand == RW_DELAYED_INPUT || operand == RW_DELAYED_WEIGHT;
    if (!is_operand || (p->dtype && p->dtype != RW_F8_E4M3) || !ret_scale) {
        rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_recipe_quantize at %s:%d: expected RW_DELAYED_INPUT or _WEIGHT, f8_e4m3 "
                "and where the scale is stored, got another operand, another type or NULL", rw_file_of(at), at.line);
        return NULL;
    }
    const rw_recipe own = *rw_recipe_fp8(t); /* a copy: recording may move the recipe */
    const struct rw_tape_mark mark = rw_tape_mark(t);
    rw_tensor *const y = codes_of(at, t, x, p, &own, weight, operand, ret_scale);
    if (!y) rw_tape_rollback(t, &mark);
    return y;
}

/* Buffers of a slot by their ID plus 1, so that zero is none. */
rw_status rw_recipe_gradient_slot_at(rw_site at, rw_tape *t, rw_tensor *weight, rw_recipe_slot *ret_slot,
                                     rw_tensor **ret_scale)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    const rw_status status = check_fp8(at, t, "rw_recipe_gradient_slot", weight, weight);
    if (status) return status;
    if (!ret_slot || !ret_scale)
        return rw_fail_null(t->ctx, "rw_recipe_gradient_slot", ret_slot ? "ret_scale" : "ret_slot");
    const rw_delayed_scaling *const delayed = rw_recipe_fp8(t)->delayed;
    struct rw_counts_slot counts;
    struct rw_delayed_slot slot;
    rw_recipe_slot found = { { 0 }, { 0 } };
    const bool is_counted = rw_counts_slot_at(at, t, weight, RW_DELAYED_GRADIENT, &counts);
    if (delayed && !rw_delayed_slot_at(at, t, delayed, weight, RW_DELAYED_GRADIENT, &slot))
        return t->ctx->status ? t->ctx->status : RW_ERR_MEMORY;
    if (is_counted) found.counts_[0] = counts.buffer + 1, found.counts_[1] = counts.row;
    if (delayed) found.amax_[0] = slot.buffer + 1, found.amax_[1] = slot.row;
    *ret_slot = found;
    *ret_scale = delayed ? slot.scale : rw_none();
    return RW_OK;
}

/* Is it none, or a row of a buffer of that type and rank? */
static bool is_row(const rw_context *ctx, const uint32_t *slot, rw_dtype dtype, int rank)
{
    if (!slot[0]) return true;
    const struct rw_param *const p = slot[0] <= ctx->n_ids ? ctx->by_id[slot[0] - 1] : NULL;
    const rw_layout *const l = p ? rw_layout_of(ctx, &p->tensor) : NULL;
    return l && (rw_dtype)p->tensor.dtype == dtype && l->rank == rank && slot[1] < l->dim[0];
}

rw_tensor *rw_recipe_quantize_gradient_at(rw_site at, rw_tape *t, rw_tensor *dy, rw_tensor *scale,
                                          const rw_quantize_params *params, const rw_recipe_slot *slot,
                                          rw_tensor **ret_scale)
{
    RW_ENTER_OP(t);
    const bool has_arguments = t && slot && ret_scale;
    if (!has_arguments) {
        rw_fail_null(t ? t->ctx : NULL, "rw_recipe_quantize_gradient", !t ? "t" : !slot ? "slot" : "ret_scale");
        return NULL;
    }
    const bool is_given = scale && scale != rw_none();
    if (!scale || is_given != (slot->amax_[0] != 0) || !is_row(t->ctx, slot->amax_, RW_F32, 1) ||
        !is_row(t->ctx, slot->counts_, RW_I32, 2)) {
        rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_recipe_quantize_gradient at %s:%d: expected a slot and the scale of one "
                "rw_recipe_gradient_slot(), got others", rw_file_of(at), at.line);
        return NULL;
    }
    const struct rw_delayed_slot delayed = { is_given ? scale : NULL, slot->amax_[0] - 1, slot->amax_[1] };
    const struct rw_counts_slot counts = { slot->counts_[0] - 1, slot->counts_[1] };
    struct rw_kept_values values;
    if (quantize_in_slot(at, t, dy, params, &delayed, slot->counts_[0] ? &counts : NULL, &values)) return NULL;
    *ret_scale = values.value[RW_KEPT_SCALE];
    return values.value[RW_KEPT_CODES];
}
