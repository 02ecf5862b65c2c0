/* The policy language: one string, the same in C, in REWIND_POLICY and in every command-line option. Documented in
   rewind/recompute.h. */
#ifndef RW_RECORD_POLICY_H
#define RW_RECORD_POLICY_H

#include <rewind/status.h>

enum rw_policy_kind {
    RW_POLICY_NONE,
    RW_POLICY_FULL,
    RW_POLICY_SELECTIVE,
    RW_POLICY_UNIFORM,
    RW_POLICY_BLOCK,
    RW_POLICY_OPS,
    RW_POLICY_NAMES,
    RW_POLICY_BUDGET
};

struct rw_policy {
    enum rw_policy_kind kind;
    int64_t n;    /* uniform, block */
    uint64_t bytes; /* budget: of the arena; 0 for a percentage of `none` */
    double percent;
    bool moves; /* budget:...+offload: values may be offloaded */
    bool total; /* budget: for everything that the context holds on the device, not only the arena */
    char **names; /* selective, ops, names */
    size_t n_names;
    char **discards; /* regions whose values are dropped, including their outputs */
    size_t n_discards;
    char **moved_tags; /* names:offload=, values to offload */
    size_t n_moved_tags;
    char **moved_regions; /* offload:, regions whose kept values are offloaded */
    size_t n_moved_regions;
    char *spec;   /* as given */
    bool whole;   /* for the whole tape, overriding the policies of its parts */
};

extern const struct rw_policy rw_policy_none; /* keeps everything, wholly */

#define RW_POLICY_PART 200

/* The policy, or of a long one the part around the position of a mistake, in RW_POLICY_PART characters. */
const char *rw_policy_part(const char *spec, const char *at, char *text);

/*
 * Parses a policy. On failure ret is untouched, and the message has the column of the mistake (from 1), what was found
 * and what was expected.
 */
rw_status rw_policy_parse(const char *spec, struct rw_policy *ret, char *message, size_t size);
void rw_policy_finish(struct rw_policy *policy);
bool rw_policy_has_name(const struct rw_policy *policy, const char *name);
bool rw_policy_discards(const struct rw_policy *policy, const char *region);
bool rw_policy_moves_tag(const struct rw_policy *policy, const char *tag);
bool rw_policy_moves_region(const struct rw_policy *policy, const char *region);

#endif
