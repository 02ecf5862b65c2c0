/*
 * Planted faults, in the private build of the tests only: what the verifier must find. Each strikes once per run of a
 * plan with replays, at the step that the test names.
 */
#ifndef RW_VERIFY_FAULTS_H
#define RW_VERIFY_FAULTS_H

#include "run/run.h"

enum rw_fault_kind {
    RW_FAULT_NONE,
    RW_FAULT_TICKET,      /* a replay draws from the next block */
    RW_FAULT_REORDER,     /* of three terms of a sum the last two are added first: a + (b + c), not (a + b) + c */
    RW_FAULT_CORRUPT,     /* one element of a replayed output changes its lowest bit */
    RW_FAULT_PARAMETER,   /* the parameter that a replay reads changes before it */
    RW_FAULT_SCALE,       /* the scale that a replay reads (input 1) is the next step's: half of what it was */
    RW_FAULT_COMMIT,      /* a commit runs twice, in any plan */
    RW_FAULT_STORE        /* what waits outside the device's memory changes its lowest bit */
};

struct rw_fault {
    enum rw_fault_kind kind;
    const char *op;  /* strikes a step of this op; of the reordering: where c is added */
    int64_t element; /* of the corruption */
    int skip;        /* lets that many matching steps pass */
    int struck;      /* counts */
    rw_site at;      /* of the node that it struck: what the verifier has to name */
};

#ifdef RW_FAULTS
extern struct rw_fault rw_fault;
#endif

/* Lets the planted fault watch the context's runs; nothing in a build without them. */
rw_status rw_faults_attach(rw_context *ctx);

#endif
