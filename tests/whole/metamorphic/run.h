/* Runs a session once and logs everything observable. Two runs of a session must log the same. */
#ifndef METAMORPHIC_RUN_H
#define METAMORPHIC_RUN_H

#include "whole/metamorphic/random_session.h"

#define MM_LOG (4u << 20)
#define MM_RUNS 2001 /* mm_entry.what of a state: number of executions of ops with an effect */

/* One record of a log, followed by its bytes, padded to eight. */
struct mm_entry {
    uint8_t kind, tape; /* enum mm_kind of the event */
    int16_t id;         /* of the event */
    int16_t step, what; /* what: number of the tensor, for events that compare several */
    int32_t status;
    bool excused; /* RW_ERR_MODIFIED is documented here: a value read before has changed */
    uint64_t bytes;
};

/* In memory that parent and child share. */
struct mm_log {
    uint64_t bytes;
    bool complete;
    int clashes; /* of fuzz_ledger */
    uint32_t extras[MM_KINDS], refused[MM_KINDS]; /* extra calls, and those of them that returned an error */
    char text[300];                               /* the message of the last plain call that failed */
    char last[200];                               /* the current event, in case the process ends */
    char extra_text[200];                         /* the message of the last extra call that failed */
    unsigned char data[MM_LOG];
};

/* Runs in this process; the folder is for checkpoint files and is empty. */
void mm_run(struct mm_log *log, const struct mm_session *s, const char *folder);

const struct mm_entry *mm_entry_at(const struct mm_log *log, uint64_t at);
static inline uint64_t mm_entry_size(const struct mm_entry *e)
{
    return sizeof *e + (e->bytes + 7) / 8 * 8;
}

#endif
