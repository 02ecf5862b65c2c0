/*
 * Planted faults, only in the tests' private build: what the verifier must find. Each occurs once per run of a plan
 * with replays, at the action that the test names.
 */
#ifndef RW_VERIFY_FAULTS_H
#define RW_VERIFY_FAULTS_H

#include "run/run_state.h"

enum rw_fault_kind {
    RW_FAULT_NONE,
    RW_FAULT_TICKET,      /* a replay draws from the next block */
    RW_FAULT_REORDER,     /* adds the last two of three terms of a sum first: a + (b + c) instead of (a + b) + c */
    RW_FAULT_CORRUPT,     /* one element of a replayed output changes its lowest bit */
    RW_FAULT_PARAMETER,   /* the parameter that a replay reads changes before it */
    RW_FAULT_SCALE,       /* the scale that a replay reads (input 1) is that of the next step: half */
    RW_FAULT_COMMIT,      /* a commit runs twice, in any plan */
    RW_FAULT_STORE        /* an offloaded value changes its lowest bit */
};

struct rw_fault {
    enum rw_fault_kind kind;
    const char *op;  /* occurs at an action of this op; for the reordering: where c is added */
    int64_t element; /* of the corruption */
    int skip;        /* number of matching actions to skip */
    int struck;      /* counts */
    rw_site at;      /* call site of the node with the fault, which the verifier has to name */
};

#ifdef RW_FAULTS
extern struct rw_fault rw_fault;
#endif

/* Attaches the planted fault to the context's runs; does nothing in other builds. */
rw_status rw_faults_attach(rw_context *ctx);

#endif
