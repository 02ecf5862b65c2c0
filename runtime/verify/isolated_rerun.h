/*
 * Isolated re-execution of a node, on copies of its operands in separate memory, before it runs at its place in the
 * plan.
 *
 *     | margin | input 0 | margin |   | margin | output 0 | margin |   | margin | workspace | margin |
 *
 * The node runs twice, each time in memory of its own. Everything on which its result must not depend differs: the
 * pattern in margins, outputs and workspace (isolated_rerun.c); the address of every operand (each bit, up to 64 KiB,
 * that differs between two places in a plan differs between one of the copies and the plan); the serial number; and in
 * one of the two the number of threads. Then it runs at its place. All three executions must give the same bytes, and
 * margins and inputs must be unchanged.
 *
 * This finds a node that leaves a byte of its outputs unwritten; that writes to an input, or less than RW_MARGIN bytes
 * outside of its outputs or workspace; or that depends on memory that it did not write, on memory around its operands,
 * on addresses, threads, its place in the plan, or the number of its executions. A fault of an isolated run does not
 * touch the program's own memory.
 *
 * Not tried: nodes that may run only once (RW_OP_STATEFUL, RW_OP_COMMIT), and RW_OP_NONDETERMINISTIC nodes.
 */
#ifndef RW_VERIFY_ISOLATED_RERUN_H
#define RW_VERIFY_ISOLATED_RERUN_H

#include "run/run_state.h"
#include "verify/fill_patterns.h"

#include <rewind/verify.h>

#define RW_ROOMS 2

/* Digests by value: below the mark values of the tape, from the mark on those of a plan's tail. Two plans of one
   loss have the same tail, but not the same mark if the tape has grown in between. */
struct rw_table {
    struct rw_digest *digest;
    bool *known;
    size_t n;
    uint32_t mark, first_computed; /* start of the tail, and its first value that a node computes */
};

/* The entry of a value of that plan. */
static inline uint32_t rw_table_at(const struct rw_table *table, const rw_plan *plan, uint32_t v)
{
    if (v < plan->mark_values) return v;
    return v < rw_plan_first_computed(plan) ? RW_NONE_ID : v - rw_plan_first_computed(plan) + table->first_computed;
}

bool rw_table_make(struct rw_table *table, const rw_plan *plan);
void rw_table_free(struct rw_table *table);

struct rw_isolation {
    const struct rw_patterns *probe;
    char *data; /* in the device's memory */
    size_t bytes;
    struct rw_error_flags *words; /* error flags of asynchronous kernels; the third execution reports them */
    /* About the node that was tried last: */
    bool tried; /* and nothing was wrong with it */
    rw_view *views; /* of both executions */
    rw_operand_desc *descs;
    struct rw_digest *digests; /* digests of inputs before, then of outputs */
    size_t cap_views, cap_descs, cap_digests;
};

void rw_isolation_open(struct rw_isolation *iso, const struct rw_patterns *probe);
void rw_isolation_close(struct rw_isolation *iso);

/*
 * Call before and after a node runs. A fault of the node is written to the report, whose mismatches are 0 otherwise. A
 * status other than RW_OK is a failure of the device, of memory or of the kernel itself. noted: digests of the run's
 * values so far, so that an input is not digested for each of its readers; NULL: none.
 */
rw_status rw_isolation_before(struct rw_isolation *iso, struct rw_at *at, const struct rw_table *noted,
                              ckpt_report *report);
rw_status rw_isolation_after(struct rw_isolation *iso, const struct rw_at *at, ckpt_report *report);

/* The digest of an output after the node has run; NULL if there is none of exactly its bytes. */
const struct rw_digest *rw_isolation_output(const struct rw_isolation *iso, const struct rw_at *at, int i);

/* Do an output and an input of a running node share memory? */
bool rw_at_shares(const struct rw_at *at, int out, int in);

#endif
