/* A recursive-descent parser of the policy language. */
#include "record/policy.h"

#include "base/alloc.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char none[] = "none";
const struct rw_policy rw_policy_none = { .spec = none, .whole = true };

struct reader {
    const char *spec, *at;
    const char *unsupported; /* a part that this version does not support; it is parsed completely before it is
                                refused, so that syntax errors are reported first; or NULL */
    struct rw_policy out;
    char *message;
    size_t size;
};

const char *rw_policy_part(const char *spec, const char *at, char *text)
{
    const size_t before = (size_t)(at - spec), skipped = before > RW_POLICY_PART / 2 ? before - RW_POLICY_PART / 2 : 0;
    const size_t rest = strlen(spec + skipped), most = RW_POLICY_PART - 8;
    snprintf(text, RW_POLICY_PART, "%s%.*s%s", skipped ? "..." : "", (int)most, spec + skipped,
             rest > most ? "..." : "");
    return text;
}

static rw_status refuse(struct reader *r, const char *at, rw_status status, const char *fmt, ...) RW_PRINTF(4, 5);

static rw_status refuse(struct reader *r, const char *at, rw_status status, const char *fmt, ...)
{
    char part[RW_POLICY_PART];
    const int n = snprintf(r->message, r->size, "policy \"%s\", column %d: ", rw_policy_part(r->spec, at, part),
                           (int)(at - r->spec) + 1);
    if (n < 0 || (size_t)n >= r->size) return status;
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->message + n, r->size - (size_t)n, fmt, args);
    va_end(args);
    return status;
}

static rw_status no_memory(struct reader *r)
{
    return refuse(r, r->at, RW_ERR_MEMORY, "out of memory");
}

static size_t word_length(const char *s)
{
    return strcspn(s, ":,+;=");
}

/* Appends to a list of *n names. */
static rw_status read_name_into(struct reader *r, char ***list, size_t *n_list, const char *what)
{
    const size_t n = strcspn(r->at, ",+;:=");
    if (!n)
        return refuse(r, r->at, RW_ERR_POLICY, "expected the name of %s, got %s%.1s%s", what,
                      *r->at ? "\"" : "the end", r->at, *r->at ? "\"" : "");
    char **const names = rw_realloc(*list, (*n_list + 1) * sizeof *names);
    if (!names) return no_memory(r);
    *list = names;
    char *const name = rw_malloc(n + 1);
    if (!name) return no_memory(r);
    memcpy(name, r->at, n);
    name[n] = '\0';
    names[(*n_list)++] = name;
    r->at += n;
    return RW_OK;
}

static rw_status read_name(struct reader *r, const char *what)
{
    return read_name_into(r, &r->out.names, &r->out.n_names, what);
}

static rw_status read_discarded(struct reader *r)
{
    rw_status status;
    do {
        r->at++; /* the colon, a comma */
        status = read_name_into(r, &r->out.discards, &r->out.n_discards, "a region");
    } while (!status && *r->at == ',');
    return status;
}

static rw_status read_names(struct reader *r, const char *what)
{
    rw_status status = read_name(r, what);
    while (!status && *r->at == ',') {
        r->at++;
        status = read_name(r, what);
    }
    return status;
}

/* The labels of Megatron-LM's recompute_modules, each for the region of that name. discards: its output is dropped,
   too, and recomputed when backward reads it; otherwise the region is replayed from its inputs and its output kept. */
static const struct {
    const char *label;
    bool discards;
} labels[] = {
    { "core_attn", false },  { "mlp", false },          { "moe", false },       { "shared_experts", false },
    { "layernorm", true },   { "moe_act", true },       { "mla_up_proj", true }, { "gdn_norm_out", true },
    { "gdp_in_proj", true }, { "gdp_qkv", true },       { "mhc", true },
};

static rw_status read_label(struct reader *r)
{
    const size_t n = strcspn(r->at, ",+;:=");
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
        if (strlen(labels[i].label) != n || strncmp(labels[i].label, r->at, n)) continue;
        return labels[i].discards ? read_name_into(r, &r->out.discards, &r->out.n_discards, "a label")
                                  : read_name(r, "a label");
    }
    return refuse(r, r->at, RW_ERR_POLICY,
                  "expected a label of Megatron (core_attn, mlp, moe, shared_experts, layernorm, moe_act, "
                  "mla_up_proj, gdn_norm_out, gdp_in_proj, gdp_qkv, mhc), got \"%.*s\"", (int)n, r->at);
}

static rw_status read_labels(struct reader *r)
{
    rw_status status = read_label(r);
    while (!status && *r->at == ',') {
        r->at++;
        status = read_label(r);
    }
    return status;
}

static rw_status read_count(struct reader *r)
{
    const char *const begin = r->at;
    const int64_t most = 1000000000;
    int64_t n = 0;
    for (; isdigit((unsigned char)*r->at); r->at++) n = n > most ? n : n * 10 + (*r->at - '0');
    if (r->at == begin || n == 0)
        return refuse(r, begin, RW_ERR_POLICY, "expected a number of regions, at least 1, got \"%s\"", begin);
    if (n > most)
        return refuse(r, begin, RW_ERR_POLICY, "expected a number of regions, at most 1000000000, got \"%s\"", begin);
    r->out.n = n;
    return RW_OK;
}

static rw_status read_moved_regions(struct reader *r)
{
    rw_status status;
    r->at += strlen("offload");
    do {
        r->at++; /* the colon, a comma */
        status = read_name_into(r, &r->out.moved_regions, &r->out.n_moved_regions, "a region");
    } while (!status && *r->at == ',');
    return status;
}

static rw_status read_moved_tags(struct reader *r)
{
    rw_status status;
    r->at += strlen("offload");
    do {
        r->at++; /* the equals sign, a comma */
        status = read_name_into(r, &r->out.moved_tags, &r->out.n_moved_tags, "a tag");
    } while (!status && *r->at == ',');
    return status;
}

static rw_status read_tagged(struct reader *r)
{
    if (!strncmp(r->at, "offload=", 8)) return read_moved_tags(r);
    if (strncmp(r->at, "keep=", 5) && strncmp(r->at, "save=", 5)) /* the name of older versions */
        return refuse(r, r->at, RW_ERR_POLICY, "expected \"keep=\", got \"%s\"", r->at);
    r->at += 5;
    const rw_status status = read_names(r, "a tag");
    if (status || *r->at != ';') return status;
    r->at++;
    if (!strncmp(r->at, "offload=", 8)) return read_moved_tags(r);
    return refuse(r, r->at, RW_ERR_POLICY, "expected \"offload=\", got \"%s\"", r->at);
}

/* Parses digits with an optional decimal part. Not strtod(), which accepts signs, hexadecimal, "nan" and the
   locale's comma. */
static double number_of(const char *digits, size_t n)
{
    double x = 0, unit = 0;
    for (size_t i = 0; i < n; i++) {
        if (digits[i] == '.') unit = 1;
        else if (!unit) x = x * 10 + (digits[i] - '0');
        else x += (digits[i] - '0') * (unit /= 10);
    }
    return x;
}

/* The address space of a process. */
#define BYTES_MAX 281474976710656.0

static rw_status read_amount(struct reader *r, const char *begin, double amount, unsigned unit)
{
    if (!unit && r->out.total)
        return refuse(r, begin, RW_ERR_POLICY, "expected bytes, as in 4GiB, got \"%s\"", begin);
    if (!unit) {
        r->out.percent = amount;
        if (amount > 100) return refuse(r, begin, RW_ERR_POLICY, "expected at most 100%%, got \"%s\"", begin);
    } else {
        for (unsigned i = 1; i < unit; i++) amount *= 1024;
        if (amount >= BYTES_MAX)
            return refuse(r, begin, RW_ERR_POLICY, "expected less than 256TiB, got \"%s\"", begin);
        r->out.bytes = (uint64_t)amount;
    }
    if (r->out.bytes || r->out.percent > 0) return RW_OK;
    return refuse(r, begin, RW_ERR_POLICY, "expected more than 0, got \"%s\"", begin);
}

/* 1536MiB, 1.5GiB, 40% */
static rw_status read_budget(struct reader *r)
{
    static const char *const units[] = { "%", "B", "KiB", "MiB", "GiB", "TiB" };
    const char *const begin = r->at;
    const size_t whole = strspn(begin, "0123456789");
    const size_t part = begin[whole] == '.' ? 1 + strspn(begin + whole + 1, "0123456789") : 0;
    if (!whole || part == 1)
        return refuse(r, whole ? begin + whole + part : begin, RW_ERR_POLICY,
                      "expected a size as in 1536MiB or 40%%, got \"%s\"", begin);
    r->at += whole + part;
    for (unsigned i = 0; i < sizeof units / sizeof *units; i++) {
        const size_t n = strlen(units[i]);
        if (strncmp(r->at, units[i], n) || (r->at[n] && !strchr(":,+;=", r->at[n]))) continue;
        const rw_status status = read_amount(r, begin, number_of(begin, whole + part), i);
        if (!status) r->at += n;
        return status;
    }
    static const char prefixes[] = "KkMmGgTt";
    const char *const prefix = *r->at ? strchr(prefixes, *r->at) : NULL;
    if (prefix && (!r->at[1] || !strcmp(r->at + 1, "B") || !strcmp(r->at + 1, "b")))
        return refuse(r, r->at, RW_ERR_POLICY,
                      "expected a unit (B, KiB, MiB, GiB, TiB or %%), got \"%s\"; write %ciB, which is 2^%d bytes",
                      r->at, toupper(*prefix), 10 * (1 + (int)(prefix - prefixes) / 2));
    return refuse(r, r->at, RW_ERR_POLICY, "expected a unit (B, KiB, MiB, GiB, TiB or %%), got \"%s\"", r->at);
}

static const struct {
    const char *word;
    enum rw_policy_kind kind;
    bool takes_argument;
} words[] = {
    { "none", RW_POLICY_NONE, false },          { "full", RW_POLICY_FULL, false },
    { "selective", RW_POLICY_SELECTIVE, true }, { "uniform", RW_POLICY_UNIFORM, true },
    { "block", RW_POLICY_BLOCK, true },         { "ops", RW_POLICY_OPS, true },
    { "names", RW_POLICY_NAMES, true },         { "discard", RW_POLICY_NONE, true },
    { "megatron", RW_POLICY_SELECTIVE, true }, { "budget", RW_POLICY_BUDGET, true },
    { "total", RW_POLICY_BUDGET, true },
};

/* Parses parts that are not a kind of policy themselves: offload: alone keeps everything. Sets *ret_found if r->at
   is at one. */
static rw_status read_other(struct reader *r, size_t n, bool *ret_found)
{
    *ret_found = n == 7 && !strncmp(r->at, "offload", n);
    if (!*ret_found) return RW_OK;
    if (r->at[n] != ':') return refuse(r, r->at + n, RW_ERR_POLICY, "expected \":\" after \"offload\"");
    return read_moved_regions(r);
}

/* word: which part; r->at is after its colon. */
static rw_status read_argument(struct reader *r, const char *word)
{
    if (!strcmp(word, "megatron")) return read_labels(r);
    r->out.total = !strcmp(word, "total");
    switch (r->out.kind) {
    case RW_POLICY_NONE: r->at--; return read_discarded(r);
    case RW_POLICY_SELECTIVE: return read_names(r, "a region");
    case RW_POLICY_OPS: return read_names(r, "an op");
    case RW_POLICY_NAMES: return read_tagged(r);
    case RW_POLICY_BUDGET: return read_budget(r);
    default: return read_count(r);
    }
}

static rw_status read_part(struct reader *r)
{
    const char *const begin = r->at;
    const size_t n = word_length(r->at);
    bool found;
    const rw_status status = read_other(r, n, &found);
    if (found) return status;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strlen(words[i].word) != n || strncmp(words[i].word, begin, n)) continue;
        r->out.kind = words[i].kind;
        r->at += n;
        if (!words[i].takes_argument) return RW_OK;
        if (*r->at != ':') return refuse(r, r->at, RW_ERR_POLICY, "expected \":\" after \"%s\"", words[i].word);
        r->at++;
        return read_argument(r, words[i].word);
    }
    return refuse(r, begin, RW_ERR_POLICY,
                  "unknown policy \"%.*s\" (none, full, selective:, uniform:, block:, ops:, names:, discard:, "
                  "megatron:, offload:, budget:, total:)", (int)n, begin);
}

/* Parses into a local result, which replaces *ret only if the whole policy is valid. */
rw_status rw_policy_parse(const char *spec, struct rw_policy *ret, char *message, size_t size)
{
    struct reader r = { .spec = spec, .at = spec, .message = message, .size = size };
    rw_status status = read_part(&r);
    const bool decides_alone = r.out.kind == RW_POLICY_BUDGET; /* about every value */
    bool may_discard = !decides_alone;
    if (!status && may_discard && !strncmp(r.at, "+discard:", 9)) {
        r.at += 8;
        may_discard = false;
        status = read_discarded(&r);
    }
    if (!status && decides_alone && !strcmp(r.at, "+offload")) {
        r.out.moves = true;
        r.at += strlen("+offload");
    }
    if (!status && *r.at == '+') {
        r.at++;
        const char *const expected = may_discard ? "\"discard:\" or \"offload:\"" : "\"offload:\"";
        if (decides_alone) r.unsupported = r.at;
        status = !strncmp(r.at, "offload:", 8) ? read_moved_regions(&r)
                                               : refuse(&r, r.at, RW_ERR_POLICY, "expected %s after \"+\"",
                                                        decides_alone ? "\"offload\"" : expected);
    }
    if (!status && *r.at) status = refuse(&r, r.at, RW_ERR_POLICY, "expected the end, got \"%s\"", r.at);
    if (!status && r.unsupported)
        status = refuse(&r, r.unsupported, RW_ERR_UNSUPPORTED,
                        "expected \"+offload\" without names, as a budget chooses what it offloads, got names");
    if (!status && !(r.out.spec = rw_strdup(spec))) status = no_memory(&r);
    if (status) rw_policy_finish(&r.out);
    else *ret = r.out;
    return status;
}

static void free_names(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++) rw_free(names[i]);
    rw_free(names);
}

void rw_policy_finish(struct rw_policy *policy)
{
    free_names(policy->names, policy->n_names);
    free_names(policy->discards, policy->n_discards);
    free_names(policy->moved_tags, policy->n_moved_tags);
    free_names(policy->moved_regions, policy->n_moved_regions);
    rw_free(policy->spec);
    *policy = (struct rw_policy){ 0 };
}

static bool has(char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

bool rw_policy_has_name(const struct rw_policy *policy, const char *name)
{
    return has(policy->names, policy->n_names, name);
}

bool rw_policy_discards(const struct rw_policy *policy, const char *region)
{
    return has(policy->discards, policy->n_discards, region);
}

bool rw_policy_moves_tag(const struct rw_policy *policy, const char *tag)
{
    return has(policy->moved_tags, policy->n_moved_tags, tag);
}

bool rw_policy_moves_region(const struct rw_policy *policy, const char *region)
{
    return has(policy->moved_regions, policy->n_moved_regions, region);
}
