/* A graph launch followed by the audit of law 3. Separate from support.c, which programs other than the suites link
   with the public library only. */
#include "support/support.h"

#include "record/tape.h"

rw_status audited_launch(rw_graph *g, const rw_tape *t)
{
    bool disjoint = true;
    rw_status status = rw_graph_launch(g);
    if (!status) status = rw_tape_audit_tickets(t, &disjoint);
    return disjoint ? status : RW_ERR_MISMATCH;
}
