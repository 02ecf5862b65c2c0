/*
 * A plan's key compared with the definitions of the structs on which a plan depends: each field is changed in turn, and
 * the key must change with it, or the field is in the list of those on which no plan depends, with the reason. The
 * fields come from the headers (tests/tools/generate_struct_fields.py), so a new one fails here until it is classified.
 * The same for a point of a recording and its comparison, and for the extensions of contexts and tapes by their names.
 */
#define RW_VARIANT /* of the tests: words are kept */
#include "plan/cache.h"
#include "record/tape_key_words.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

struct field {
    const char *of, *name;
    void (*change)(void *object); /* NULL: by hand, below */
};

#include "struct_fields.h"

/* ---- fields on which no plan depends ---- */

static const struct {
    const char *of, *names, *why;
} others[] = {
    { "rw_node", "first_input first_output attrs", "places in arrays that follow from the nodes before" },
    { "rw_node", "site", "for messages" },
    { "rw_node", "ticket", "read from the tape when a plan runs" },
    { "rw_tensor", "owner id producer leaf", "follow from where the value's word is" },
    { "rw_tensor", "tag", "ckpt_name() adds the text" },
    { "rw_leaf", "value param", "the one follows from where the words are, the other from the serial" },
    { "rw_leaf", "ran is_requested version written data weight", "read from the tape when a plan runs" },
    { "rw_leaf", "bytes", "follows from type and layout" },
    { "rw_layout", "numel span dense id", "follow from extents, strides and the beginning" },
    { "rw_effect", "node", "follows from the nodes' words" },
    { "rw_held", "data in", "read from the tape when a plan runs" },
    { "rw_tape_amax", "buffer", "the id follows from the serial" },
    { "rw_tape_amax", "codes", "follows from the leaf of the amax" },
    { "rw_request", "recorders n_recorders skip used_up", "of plans that no cache has" },
    { "rw_param", "name", "for messages" },
    { "rw_param", "data version n_optimizers is_excluded", "read when a plan runs" },
    { "rw_param", "lent codes_of kept_codes", "no plan differs" },
    { "rw_param", "bytes numel", "follow from types and layout" },
    { "rw_store_place", "fns path given measured rate", "change with the serial" },
    { "rw_context", "kind device device_state planning plan_only up", "the same for the life of the context" },
    { "rw_context", "extensions", "by their names, see rw_extension" },
    { "rw_extension", "timer dropped_effects order_check dump plans plan_serials pool tape_runs runs results",
      "no plan depends on it" },
    { "rw_extension", "history log steps roots clippings", "no plan depends on it" },
    { "rw_extension", "counts kept_weights amaxes recipes backward_recorders definitions",
      "used while a step is recorded" },
    { "rw_context", "store", "by its serial, see rw_store_place" },
    { "rw_context", "generator", "tickets are read when a plan runs" },
    { "rw_context", "eager strict_policy verify", "how a plan runs, not which" },
    { "rw_context", "edge status message error_stays", "nothing is planned then" },
    { "rw_context", "ops n_ops cap_ops op_hash op_hash_size", "an op keeps its index, which nodes have" },
    { "rw_context", "names sites n_sites cap_sites site_hash site_hash_size files known_sites known_files n_tapes_gone",
      "for messages; names are in as texts" },
    { "rw_context", "n_params cap_params param_hash param_hash_size", "what a step reads is among its leaves" },
    { "rw_context", "by_id n_ids cap_ids free_id n_serials", "tensors are named by their serials" },
    { "rw_context", "tapes kept n_kept n_users destroyed",
      "no plan depends on them" },
    { "rw_extension", "gradient_scale", "read when a plan runs" },
};

static bool is_among(const char *names, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = strstr(names, name); at; at = strstr(at + 1, name))
        if ((at == names || at[-1] == ' ') && (!at[n] || at[n] == ' ')) return true;
    return false;
}

static const char *why_not(const char *of, const char *name)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(others[i].of, of) && is_among(others[i].names, name)) return others[i].why;
    return NULL;
}

/* ---- keys of changed objects ---- */

struct world {
    struct fixture b;
    uint32_t values[2];
    char *texts[4];
    struct rw_policy policy;
    struct rw_request request;
    uint64_t serial; /* of the buffer that receives the amax */
};

static struct rw_plan_key words(struct rw_key *k)
{
    return (struct rw_plan_key){ .hash = k->hash, .n = k->n, .words = k->words };
}

static struct rw_key room(void)
{
    struct rw_key k = { .n = 0 };
    cr_assert(rw_key_reserve(&k, 64));
    return k;
}

static struct rw_plan_key key_of_node(struct world *w, const void *object)
{
    static const uint32_t operands[8] = { 11, 12, 13, 14 };
    static const uint64_t attrs[4] = { 21, 22, 23, 24 };
    struct rw_key k = room();
    rw_key_add_node(&k, object, operands, attrs);
    return words(&k);
}

static struct rw_plan_key key_of_value(struct world *w, const void *object)
{
    struct rw_key k = room();
    rw_key_add_value(&k, object);
    return words(&k);
}

static struct rw_plan_key key_of_leaf(struct world *w, const void *object)
{
    static const struct rw_tensor value = { .layout = 5, .dtype = RW_F32 };
    struct rw_key k = room();
    rw_key_add_leaf(&k, object, &value);
    return words(&k);
}

static struct rw_plan_key key_of_amax(struct world *w, const void *object)
{
    struct rw_key k = room();
    rw_key_add_amax(&k, object, w->serial);
    return words(&k);
}

/* A value's word contains the index of its layout. */
static struct rw_plan_key key_of_layout(struct world *w, const void *object)
{
    const rw_layout *const l = object;
    const rw_layout *const known = rw_layout_strided(&w->b.ctx->layouts, rw_layout_shape(l), l->stride, l->offset);
    cr_assert(known);
    return key_of_value(w, &(struct rw_tensor){ .layout = known->id });
}

/* The key of a step that reads the parameter. */
static struct rw_plan_key key_of_param(struct world *w, const void *object)
{
    rw_tape *t = NULL;
    const struct rw_param *const p = object;
    struct rw_plan_key key;
    const struct rw_request request = { .kind = RW_PLAN_EVAL, .policy = &rw_policy_none };
    cr_assert_eq(rw_tape_create(&t, w->b.ctx), RW_OK);
    cr_assert(rw_operand_at(RW_HERE, t, (rw_tensor *)(uintptr_t)&p->tensor, "fields"));
    cr_assert_eq(rw_request_key(t, &request, &key), RW_OK);
    rw_tape_destroy(&t);
    return key;
}

/* One word: whether the point is that of the tape. */
static struct rw_plan_key key_of_point(struct world *w, const void *object)
{
    const struct rw_tape_point at = rw_tape_point(w->b.t);
    struct rw_key k = room();
    rw_key_add(&k, rw_point_is_same(&at, object));
    return words(&k);
}

static struct rw_plan_key key_of_request(struct world *w, const void *object)
{
    struct rw_plan_key key;
    cr_assert_eq(rw_request_key(w->b.t, &w->request, &key), RW_OK);
    return key;
}

/* ---- changes by hand ---- */

static void other_values(void *object)
{
    static const uint32_t other[2] = { 77, 78 };
    ((struct rw_request *)object)->values = other;
}

static void other_reads(void *object)
{
    static const uint32_t other[2] = { 77, 78 };
    ((struct rw_request *)object)->reads = other;
}

static void other_later(void *object)
{
    static const uint32_t other[2] = { 77, 78 };
    ((struct rw_request *)object)->later = other;
}

static void other_policy(void *object)
{
    ((struct rw_request *)object)->policy = &rw_policy_none;
}

static void no_longer_trained(void *object)
{
    ((struct rw_param *)object)->tensor.flags ^= RW_VALUE_REQUIRES;
}

static void other_gradient_type(void *object)
{
    ((struct rw_param *)object)->gradient.tensor.dtype = RW_BF16;
}

static void other_hash(void *object)
{
    ((struct rw_tape_point *)object)->hash.b ^= 1;
}

static void swept_layouts(void *object)
{
    ((rw_context *)object)->layouts.generation++;
}

static void other_costs(void *object)
{
    static struct rw_costs costs = { .hash = 99 };
    static struct rw_costs *place = &costs;
    ((rw_context *)object)->extensions.state[rw_costs_extension.slot] = &place;
}

static void more_held(void *object)
{
    ((rw_context *)object)->memory.optimizer++;
}

static void no_gradient(void *object)
{
    static struct rw_param other;
    static struct rw_param *params[8];
    rw_context *const ctx = object;
    memcpy(params, ctx->params, ctx->n_params * sizeof *params);
    other = *params[1];
    other.gradient.data = NULL;
    params[1] = &other;
    ctx->params = params;
}

static const struct field by_hand[] = {
    { "rw_request", "values", other_values },         { "rw_request", "reads", other_reads },
    { "rw_request", "later", other_later },           { "rw_request", "policy", other_policy },
    { "rw_param", "tensor", no_longer_trained },      { "rw_param", "gradient", other_gradient_type },
    { "rw_context", "layouts", swept_layouts },       { "rw_extension", "costs", other_costs },
    { "rw_context", "memory", more_held },            { "rw_context", "params", no_gradient },
    { "rw_tape_point", "hash", other_hash },
};

/* ---- all fields ---- */

/* A step with a part, an effect and a held value, under a policy with all members set. */
static struct world open_world(void)
{
    static char *texts[4] = { "one", "two", "three", "four" };
    struct world w = { .b = fixture_open(1, 2), .values = { 3, 4 }, .serial = 31 };
    rw_tensor *const c = rw_buffer(w.b.ctx, "c", RW_F32, RW_SHAPE(4));
    rw_tensor *const p = rw_param(w.b.ctx, "p", RW_F32, RW_SHAPE(4));
    cr_assert(rw_param(w.b.ctx, "q", RW_F32, RW_SHAPE(4)));
    ckpt_policy_begin(w.b.t, "full");
    rw_tensor *const y = rw_mul(w.b.t, p, p);
    ckpt_policy_end(w.b.t);
    cr_assert_eq(rw_assign(w.b.t, c, y), RW_OK);
    cr_assert_eq(rw_eval(w.b.t, (rw_tensor *[]){ y }, 1), RW_OK, "%s", rw_error_message(w.b.ctx));
    w.policy = (struct rw_policy){ .kind = RW_POLICY_BUDGET, .n = 2, .bytes = 1 << 20, .percent = 50, .total = true,
                                   .names = texts, .n_names = 2, .discards = texts, .n_discards = 2,
                                   .moved_tags = texts, .n_moved_tags = 2, .moved_regions = texts,
                                   .n_moved_regions = 2, .spec = texts[0] };
    return w;
}

/* Changes one field of an object and checks that the key changes, unless the field is excepted. */
static void changes_with(struct world *w, const struct field *f, void *object, size_t size,
                         struct rw_plan_key (*key_of)(struct world *w, const void *object))
{
    unsigned char backup[sizeof(rw_context)];
    const char *const why = why_not(f->of, f->name);
    void (*change)(void *object) = f->change;
    for (size_t i = 0; i < sizeof by_hand / sizeof *by_hand; i++)
        if (!strcmp(by_hand[i].of, f->of) && !strcmp(by_hand[i].name, f->name)) change = by_hand[i].change;
    cr_expect(change || why, "%s.%s: nothing says whether a plan depends on it", f->of, f->name);
    if (!change) return;
    cr_assert_leq(size, sizeof backup);
    struct rw_plan_key before = key_of(w, object);
    memcpy(backup, object, size);
    change(object);
    struct rw_plan_key after = key_of(w, object);
    memcpy(object, backup, size);
    const bool same = before.n == after.n && !memcmp(before.words, after.words, before.n * sizeof *before.words);
    const bool same_hash = before.hash.a == after.hash.a && before.hash.b == after.hash.b;
    cr_expect_eq(same, same_hash, "%s.%s: the hash is not one of the words", f->of, f->name);
    if (why) cr_expect(same, "%s.%s: the key changes with it, though %s", f->of, f->name, why);
    else cr_expect(!same, "%s.%s: the key does not change with it", f->of, f->name);
    rw_plan_key_finish(&before);
    rw_plan_key_finish(&after);
}

#define OBJECT(name, x, key) { #name, &(x), sizeof(x), key }

Test(cache_key_fields, each_is_part_of_the_key_or_no_plan_depends_on_it)
{
    struct world w = open_world();
    rw_context *const ctx = w.b.ctx;
    w.request = (struct rw_request){ .kind = RW_PLAN_STEP, .values = w.values, .n_values = 1, .policy = &w.policy,
                                     .reads = w.values, .n_reads = 1, .later = w.values, .n_later = 1 };
    struct rw_node node = { .op = 7, .n_inputs = 2, .n_outputs = 1, .attrs_size = 8, .region = 3 };
    struct rw_tensor value = { .layout = 5, .id = 9, .base = 4, .dtype = RW_F32 };
    struct rw_leaf leaf = { .kind = RW_LEAF_PARAM, .param = 2, .serial = 40 };
    struct rw_tape_amax amax = { .value = 3, .buffer = 2, .row = 1 };
    rw_layout layout = { .rank = 2, .dim = { 2, 2, 2 }, .stride = { 4, 1, 3 } };
    struct rw_tape_point point = rw_tape_point(w.b.t);
    cr_assert(w.b.t->n_held && w.b.t->n_effects && ctx->n_params == 3);
    const struct {
        const char *of;
        void *object;
        size_t size;
        struct rw_plan_key (*key_of)(struct world *w, const void *object);
    } objects[] = {
        OBJECT(rw_node, node, key_of_node),
        OBJECT(rw_tensor, value, key_of_value),
        OBJECT(rw_leaf, leaf, key_of_leaf),
        OBJECT(rw_tape_amax, amax, key_of_amax),
        OBJECT(rw_layout, layout, key_of_layout),
        OBJECT(rw_param, *ctx->params[1], key_of_param),
        OBJECT(rw_policy, w.policy, key_of_request),
        OBJECT(rw_request, w.request, key_of_request),
        OBJECT(rw_effect, w.b.t->effects[0], key_of_request),
        OBJECT(rw_held, w.b.t->held[0], key_of_request),
        OBJECT(rw_store_place, ctx->store, key_of_request),
        OBJECT(rw_context, *ctx, key_of_request),
        OBJECT(rw_extension, *ctx, key_of_request),
        OBJECT(rw_tape_point, point, key_of_point),
    };
    size_t walked = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (size_t k = 0; k < sizeof objects / sizeof *objects; k++) {
            if (strcmp(objects[k].of, fields[i].of)) continue;
            changes_with(&w, &fields[i], objects[k].object, objects[k].size, objects[k].key_of);
            walked++;
        }
    cr_expect_eq(walked, sizeof fields / sizeof *fields, "a struct has no object");
    fixture_close(&w.b);
}

/* A sweep of layouts changes every point: the words before and after it may name different layouts by one index. */
Test(cache_key_fields, of_a_point_change_when_layouts_are_swept)
{
    struct fixture b = fixture_open(1, 1);
    const struct rw_tape_point before = rw_tape_point(b.t);
    swept_layouts(b.ctx);
    const struct rw_tape_point after = rw_tape_point(b.t);
    cr_expect(!rw_point_is_same(&before, &after));
    cr_expect(rw_point_is_same(&after, &after));
    fixture_close(&b);
}

/* A seed is identified by its root. */
Test(cache_key_fields, of_a_seed)
{
    struct world w = { 0 };
    const struct rw_leaf one = { .kind = RW_LEAF_SEED, .param = 0 }, two = { .kind = RW_LEAF_SEED, .param = 1 };
    struct rw_plan_key a = key_of_leaf(&w, &one), b = key_of_leaf(&w, &two);
    cr_expect(memcmp(a.words, b.words, a.n * sizeof *a.words));
    rw_plan_key_finish(&a);
    rw_plan_key_finish(&b);
}

/* Every field of the list above exists. */
Test(cache_key_fields, that_are_excepted_are_there)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char names[256], *rest = names;
        snprintf(names, sizeof names, "%s", others[i].names);
        for (char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
            size_t k = 0;
            while (k < sizeof fields / sizeof *fields &&
                   (strcmp(fields[k].of, others[i].of) || strcmp(fields[k].name, name)))
                k++;
            cr_expect_lt(k, sizeof fields / sizeof *fields, "%s.%s is no field", others[i].of, name);
        }
    }
}
