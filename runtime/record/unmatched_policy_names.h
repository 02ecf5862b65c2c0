/* Region names and tags in a tape's policies that nothing recorded on it has. */
#ifndef RW_RECORD_UNMATCHED_POLICY_NAMES_H
#define RW_RECORD_UNMATCHED_POLICY_NAMES_H

#include "record/tape.h"

struct rw_unmatched {
    const char *name;
    const struct rw_policy *policy; /* of the tape, or of a part */
    const char *what;               /* what the policy would do with it: "replayed", "kept", "discarded", "moved" */
    bool is_tag;                    /* of a value; else of a region */
};

/* Fills in the first n and returns how many there are. */
size_t rw_unmatched_names(const rw_tape *t, struct rw_unmatched *ret, size_t n);

/* The names that do exist: "there are block, mlp", "there is none with a name". */
void rw_unmatched_print_others(const rw_tape *t, bool tags, char *text, size_t size);

/* With rw_context_params.strict_policy: RW_ERR_POLICY, recorded, for the first such name in the policy that a step of
   the tape is planned with, or in the policies of the tape's parts. */
rw_status rw_unmatched_check(const rw_tape *t, const struct rw_policy *policy);

#endif
