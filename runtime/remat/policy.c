/* A recursive-descent reader of the policy language, small enough to be read in one go. */
#include "remat/policy.h"

#include "memory/alloc.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct reader {
    const char *spec, *at;
    struct rw_policy out;
    char *message;
    size_t size;
};

static rw_status refuse(struct reader *r, const char *at, rw_status status, const char *fmt, ...) RW_PRINTF(4, 5);

static rw_status refuse(struct reader *r, const char *at, rw_status status, const char *fmt, ...)
{
    const int n = snprintf(r->message, r->size, "policy \"%s\", column %d: ", r->spec, (int)(at - r->spec) + 1);
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

static rw_status read_name(struct reader *r, const char *what)
{
    const size_t n = strcspn(r->at, ",+;:=");
    if (!n) return refuse(r, r->at, RW_ERR_POLICY, "the name of %s is expected, found %s%.1s%s", what, *r->at ? "\"" : "the end", r->at,
                          *r->at ? "\"" : "");
    char **const names = rw_realloc(r->out.names, (r->out.n_names + 1) * sizeof *names);
    if (!names) return no_memory(r);
    r->out.names = names;
    char *const name = rw_malloc(n + 1);
    if (!name) return no_memory(r);
    memcpy(name, r->at, n);
    name[n] = '\0';
    names[r->out.n_names++] = name;
    r->at += n;
    return RW_OK;
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

static rw_status read_count(struct reader *r)
{
    const char *const begin = r->at;
    int64_t n = 0;
    while (isdigit((unsigned char)*r->at) && n < 1000000000) n = n * 10 + (*r->at++ - '0');
    if (r->at == begin || n == 0)
        return refuse(r, begin, RW_ERR_POLICY, "a number of regions, at least 1, is expected, found \"%s\"", begin);
    r->out.n = n;
    return RW_OK;
}

static rw_status read_tagged(struct reader *r)
{
    if (!strncmp(r->at, "offload=", 8))
        return refuse(r, r->at, RW_ERR_UNSUPPORTED, "offloading is not in this version");
    if (strncmp(r->at, "save=", 5)) return refuse(r, r->at, RW_ERR_POLICY, "\"save=\" is expected, found \"%s\"", r->at);
    r->at += 5;
    rw_status status = read_names(r, "a tag");
    if (!status && *r->at == ';') {
        r->at++;
        if (!strncmp(r->at, "offload=", 8)) return refuse(r, r->at, RW_ERR_UNSUPPORTED, "offloading is not in this version");
        return refuse(r, r->at, RW_ERR_POLICY, "\"offload=\" is expected, found \"%s\"", r->at);
    }
    return status;
}

static const struct {
    const char *word;
    enum rw_policy_kind kind;
    bool takes_argument;
} words[] = {
    { "none", RW_POLICY_NONE, false },       { "full", RW_POLICY_FULL, false }, { "selective", RW_POLICY_SELECTIVE, true },
    { "uniform", RW_POLICY_UNIFORM, true },  { "block", RW_POLICY_BLOCK, true }, { "ops", RW_POLICY_OPS, true },
    { "names", RW_POLICY_NAMES, true },
};

static rw_status read_argument(struct reader *r)
{
    switch (r->out.kind) {
    case RW_POLICY_SELECTIVE: return read_names(r, "a region");
    case RW_POLICY_OPS: return read_names(r, "an op");
    case RW_POLICY_NAMES: return read_tagged(r);
    default: return read_count(r);
    }
}

static rw_status read_part(struct reader *r)
{
    const char *const begin = r->at;
    const size_t n = word_length(r->at);
    if ((n == 6 && !strncmp(begin, "budget", n)) || (n == 7 && !strncmp(begin, "offload", n)))
        return refuse(r, begin, RW_ERR_UNSUPPORTED, "\"%.*s\" is not in this version", (int)n, begin);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strlen(words[i].word) != n || strncmp(words[i].word, begin, n)) continue;
        r->out.kind = words[i].kind;
        r->at += n;
        if (!words[i].takes_argument) return RW_OK;
        if (*r->at != ':') return refuse(r, r->at, RW_ERR_POLICY, "\":\" is expected after \"%s\"", words[i].word);
        r->at++;
        return read_argument(r);
    }
    return refuse(r, begin, RW_ERR_POLICY, "unknown policy \"%.*s\" (none, full, selective:, uniform:, block:, ops:, names:)", (int)n,
                  begin);
}

rw_status rw_policy_parse(const char *spec, struct rw_policy *ret, char *message, size_t size)
{
    struct reader r = { .spec = spec, .at = spec, .message = message, .size = size };
    rw_status status = read_part(&r);
    if (!status && *r.at == '+') {
        r.at++;
        status = !strncmp(r.at, "offload:", 8) ? refuse(&r, r.at, RW_ERR_UNSUPPORTED, "\"offload\" is not in this version")
                                               : refuse(&r, r.at, RW_ERR_POLICY, "\"offload:\" is expected after \"+\"");
    }
    if (!status && *r.at) status = refuse(&r, r.at, RW_ERR_POLICY, "the end is expected, found \"%s\"", r.at);
    if (!status && !(r.out.spec = rw_strdup(spec))) status = no_memory(&r);
    if (status) rw_policy_finish(&r.out);
    else *ret = r.out;
    return status;
}

void rw_policy_finish(struct rw_policy *policy)
{
    for (size_t i = 0; i < policy->n_names; i++) rw_free(policy->names[i]);
    rw_free(policy->names);
    rw_free(policy->spec);
    *policy = (struct rw_policy){ 0 };
}

bool rw_policy_has_name(const struct rw_policy *policy, const char *name)
{
    for (size_t i = 0; i < policy->n_names; i++)
        if (!strcmp(policy->names[i], name)) return true;
    return false;
}
