/* Fuzzes the policy parser: any text is a policy, or an error with position and reason. An input is a sequence of
   texts, each terminated by a 0. */
#include "fuzz/fuzz.h"

#include "base/alloc.h"
#include "record/policy.h"

#include <string.h>

/* The text printed for a policy is parsed to the same policy. */
static void reads_again(const struct rw_policy *policy)
{
    struct rw_policy again;
    char message[256];
    HOLDS(!rw_policy_parse(policy->spec, &again, message, sizeof message), "\"%s\" is refused: %s", policy->spec,
          message);
    HOLDS(again.kind == policy->kind && again.n == policy->n && again.n_names == policy->n_names, "%s", policy->spec);
    for (size_t i = 0; i < policy->n_names; i++) {
        HOLDS(*policy->names[i] && rw_policy_has_name(&again, policy->names[i]), "%s", policy->spec);
        HOLDS(!policy->names[i][strcspn(policy->names[i], ",+;:=")], "%s", policy->spec);
    }
    rw_policy_finish(&again);
}

static void is_refused(rw_status status, const char *message, const char *spec)
{
    HOLDS(status == RW_ERR_POLICY || status == RW_ERR_UNSUPPORTED, "\"%s\": status %d", spec, (int)status);
    HOLDS(!strncmp(message, "policy \"", 8) && strstr(message, "\", column "), "\"%s\": %s", spec, message);
}

static uint64_t texts;

static void say_how_many(void)
{
    fprintf(stderr, "stat::number_of_texts: %llu\n", (unsigned long long)texts);
}

/* Parses one text: checks the error's position, and that nothing is leaked. */
static void read_one(const uint8_t *data, size_t size)
{
    const int64_t live = rw_alloc_live();
    char *const spec = malloc(size + 1); /* ends where the text ends */
    struct rw_policy policy;
    char message[1024] = "";
    HOLDS(spec, "out of memory");
    memcpy(spec, data, size);
    spec[size] = '\0';
    if (!texts++) atexit(say_how_many);
    const rw_status status = rw_policy_parse(spec, &policy, message, sizeof message);
    if (status) {
        is_refused(status, message, spec);
    } else {
        HOLDS(!strcmp(policy.spec, spec) && !*message, "\"%s\" became \"%s\": %s", spec, policy.spec, message);
        reads_again(&policy);
        rw_policy_finish(&policy);
    }
    free(spec);
    HOLDS(rw_alloc_live() == live, "%lld allocations are left", (long long)(rw_alloc_live() - live));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (size_t from = 0, to = 0; to <= size; to++) {
        if (to < size && data[to]) continue;
        read_one(data + from, to - from);
        from = to + 1;
    }
    return 0;
}
