/* Compares the names of policies with those of recorded regions and values; ckpt_unmatched_names(). */
#include "record/unmatched_policy_names.h"

#include <rewind/recompute.h>

#include <stdio.h>
#include <string.h>

#define NAMES_SHOWN 8

static bool has_region(const rw_tape *t, const char *name)
{
    for (size_t i = 0; i < t->n_regions; i++)
        if (!strcmp(t->ctx->names.text[t->regions[i].name], name)) return true;
    return false;
}

/* The tag of a value by which policies know it: that of its buffer. */
static uint16_t tag_of(const rw_tape *t, uint32_t v)
{
    return rw_tape_value(t, rw_tape_base(t, v))->tag;
}

static bool has_tag(const rw_tape *t, const char *name)
{
    for (uint32_t v = 0; v < t->n_values; v++) {
        const uint16_t tag = tag_of(t, v);
        if (tag && !strcmp(t->ctx->names.text[tag - 1], name)) return true;
    }
    return false;
}

/* The first tags of values, each once, as rw_tape_region_names(). */
static size_t list_tags(const rw_tape *t, uint32_t *names, size_t most)
{
    size_t n = 0;
    for (uint32_t v = 0; v < t->n_values && n < most; v++) {
        const uint16_t tag = tag_of(t, v);
        size_t i = 0;
        while (tag && i < n && names[i] != tag - 1u) i++;
        if (tag && i == n) names[n++] = tag - 1u;
    }
    return n;
}

void rw_unmatched_print_others(const rw_tape *t, bool tags, char *text, size_t size)
{
    uint32_t names[NAMES_SHOWN + 1];
    const size_t n = tags ? list_tags(t, names, NAMES_SHOWN + 1) : rw_tape_region_names(t, names, NAMES_SHOWN + 1);
    size_t at = (size_t)snprintf(text, size, "there %s", n ? "are" : "is none with a name");
    for (size_t i = 0; i < n && i < NAMES_SHOWN && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s %s", i ? "," : "", t->ctx->names.text[names[i]]);
    if (n > NAMES_SHOWN && at < size) snprintf(text + at, size - at, ", ...");
}

struct list {
    const rw_tape *t;
    struct rw_unmatched *names;
    size_t n, most;
};

static void add_names(struct list *l, const struct rw_policy *policy, char *const *names, size_t n, bool tags,
                      const char *what)
{
    for (size_t i = 0; i < n; i++) {
        if (tags ? has_tag(l->t, names[i]) : has_region(l->t, names[i])) continue;
        if (l->n < l->most)
            l->names[l->n] = (struct rw_unmatched){ .name = names[i], .policy = policy, .what = what, .is_tag = tags };
        l->n++;
    }
}

static void add_policy(struct list *l, const struct rw_policy *p)
{
    if (p->kind == RW_POLICY_SELECTIVE) add_names(l, p, p->names, p->n_names, false, "replayed");
    if (p->kind == RW_POLICY_NAMES) add_names(l, p, p->names, p->n_names, true, "kept");
    add_names(l, p, p->discards, p->n_discards, false, "discarded");
    add_names(l, p, p->moved_tags, p->n_moved_tags, true, "offloaded");
    add_names(l, p, p->moved_regions, p->n_moved_regions, false, "offloaded");
}

/* Names in the policy and, unless it overrides them, in the policies of the tape's parts. */
static size_t names_of(const rw_tape *t, const struct rw_policy *policy, struct rw_unmatched *ret, size_t n)
{
    struct list l = { .t = t, .names = ret, .most = n };
    add_policy(&l, policy);
    if (policy->whole) return l.n;
    for (size_t i = 0; i < t->n_parts; i++) add_policy(&l, &t->parts[i].policy);
    return l.n;
}

size_t rw_unmatched_names(const rw_tape *t, struct rw_unmatched *ret, size_t n)
{
    return names_of(t, &t->policy, ret, n);
}

/* Column of the name, from 1. A name follows a colon, a comma or an equals sign. */
static size_t column_of(const char *spec, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = strstr(spec, name); at; at = strstr(at + 1, name))
        if (at > spec && strchr(":,=", at[-1]) && (!at[n] || strchr(",+;", at[n]))) return (size_t)(at - spec) + 1;
    return 1;
}

rw_status rw_unmatched_check(const rw_tape *t, const struct rw_policy *policy)
{
    struct rw_unmatched first;
    char others[256], part[RW_POLICY_PART];
    if (!t->ctx->strict_policy || !names_of(t, policy, &first, 1)) return RW_OK;
    const char *const spec = first.policy->spec;
    const size_t column = column_of(spec, first.name);
    rw_unmatched_print_others(t, first.is_tag, others, sizeof others);
    return rw_fail(t->ctx, RW_ERR_POLICY, "policy \"%s\", column %zu: expected the name of a %s, got \"%s\"; nothing "
                   "would be %s; %s", rw_policy_part(spec, spec + column - 1, part), column,
                   first.is_tag ? "value" : "region", first.name, first.what, others);
}

size_t ckpt_unmatched_names(const rw_tape *t, const char **ret_names, size_t n)
{
    RW_LOOKS_ONLY;
    struct rw_unmatched found[64];
    if (!t) return 0;
    if (!ret_names) n = 0;
    const size_t all = rw_unmatched_names(t, found, 64);
    for (size_t i = 0; i < n && i < all && i < 64; i++) ret_names[i] = found[i].name;
    return all;
}
