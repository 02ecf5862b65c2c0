/*
 * A room: memory where a node runs by itself, on copies of its operands, before it runs where the plan has put them.
 *
 *     | margin | input 0 | margin |   | margin | output 0 | margin |   | margin | workspace | margin |
 *
 * It runs twice, each time in a room of its own. Margins, outputs and workspace hold another pattern (room.c), every
 * operand lies at another address (each bit of the address from the alignment up to 64 KiB differs between one of the
 * rooms and the plan), the serial number is another, and one of the two has another number of threads. Then it runs in
 * its place. All three must give the same bytes; margins and inputs must be what they were.
 *
 * So a node is found out that leaves a byte of its outputs unwritten, that writes over an input or less than RW_MARGIN
 * bytes off its outputs or its workspace, that depends on what it did not write itself, on what lies around its
 * operands, on their addresses, on threads, on its place in the plan, on how often it has run. What is found in a room
 * never happens to the program's own memory.
 *
 * Not tried: nodes that may run only once (RW_OP_STATEFUL, RW_OP_COMMIT), and those that say that their bytes differ
 * (RW_OP_NONDETERMINISTIC).
 */
#ifndef RW_VERIFY_ROOM_H
#define RW_VERIFY_ROOM_H

#include "run/run.h"
#include "verify/probe.h"

#include <rewind/verify.h>

#define RW_ROOMS 2

/* Digests by value: of the tape's below the mark, of a plan's tail from there on. Two plans of one loss have the same
   tail, but not the same mark where the tape has grown in between. */
struct rw_table {
    struct rw_digest *digest;
    bool *known;
    size_t n;
    uint32_t mark, made; /* where the tail begins, and its first value that a node makes */
};

/* The entry of a value of that plan. */
static inline uint32_t rw_table_at(const struct rw_table *table, const rw_plan *plan, uint32_t v)
{
    if (v < plan->mark_values) return v;
    return v < rw_plan_first_made(plan) ? RW_NONE_ID : v - rw_plan_first_made(plan) + table->made;
}

bool rw_table_make(struct rw_table *table, const rw_plan *plan);
void rw_table_free(struct rw_table *table);

struct rw_room {
    const struct rw_probe *probe;
    char *data; /* in the device's memory */
    size_t bytes;
    struct rw_run_words *words; /* of kernels that cannot say at once what is wrong: that is for the third run to say */
    /* Of the node that was tried last: */
    bool tried; /* and nothing was wrong with it */
    rw_view *views; /* of both rooms */
    rw_desc *descs;
    struct rw_digest *digests; /* of inputs before, then of outputs */
    size_t cap_views, cap_descs, cap_digests;
};

void rw_room_open(struct rw_room *room, const struct rw_probe *probe);
void rw_room_close(struct rw_room *room);

/*
 * Before a node runs, and after. What is wrong with it goes to the report, whose mismatches are 0 when nothing is. A
 * status other than RW_OK is a failure of the device, of memory or of the kernel itself. noted: digests of the run's
 * values so far, so that an input is not digested again for each of its readers; NULL for none.
 */
rw_status rw_room_before(struct rw_room *room, struct rw_at *at, const struct rw_table *noted, ckpt_report *report);
rw_status rw_room_after(struct rw_room *room, const struct rw_at *at, ckpt_report *report);

/* The digest of an output, after the node has run; NULL where the room has none of exactly its bytes. */
const struct rw_digest *rw_room_output(const struct rw_room *room, const struct rw_at *at, int i);

/* Do an output and an input of a running node lie in the same memory? */
bool rw_at_shares(const struct rw_at *at, int out, int in);

#endif
