/* The policy language: one string, the same in C, in REWIND_POLICY and on every command line. See
   rewind/checkpoint.h. */
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
    uint64_t bytes; /* budget: of the arena; 0 when it is a share of what `none` takes */
    double percent;
    bool moves; /* budget:...+offload: values may wait outside the device's memory, too */
    bool total; /* budget: of all that the context holds on the device, not of the arena alone */
    char **names; /* selective, ops, names */
    size_t n_names;
    char **discards; /* regions that are dropped with what leaves them */
    size_t n_discards;
    char **moved_tags; /* names:offload=, values that wait outside the device's memory */
    size_t n_moved_tags;
    char **moved_regions; /* offload:, regions of which what is kept waits there */
    size_t n_moved_regions;
    char *spec;   /* as given */
    bool whole;   /* for all of the tape, whatever its parts say of themselves */
};

extern const struct rw_policy rw_policy_none; /* keeps everything, wholly */

#define RW_POLICY_PART 200

/* The policy, or what there is room for of a long one around the place of a mistake, into RW_POLICY_PART characters. */
const char *rw_policy_part(const char *spec, const char *at, char *text);

/*
 * Reads a spec. On failure ret is untouched and message says where the mistake is: the column (from 1), what was found
 * and what was expected.
 */
rw_status rw_policy_parse(const char *spec, struct rw_policy *ret, char *message, size_t size);
void rw_policy_finish(struct rw_policy *policy);
bool rw_policy_has_name(const struct rw_policy *policy, const char *name);
bool rw_policy_discards(const struct rw_policy *policy, const char *region);
bool rw_policy_moves_tag(const struct rw_policy *policy, const char *tag);
bool rw_policy_moves_region(const struct rw_policy *policy, const char *region);

#endif
