/* A launch, and the audit of law 3 after it. Apart from support.c, which programs beside the suites use with the public
   library alone. */
#include "support/support.h"

#include "record/tape.h"

rw_status audited_launch(rw_graph *g, const rw_tape *t)
{
    bool disjoint = true;
    rw_status status = rw_graph_launch(g);
    if (!status) status = rw_tape_audit_tickets(t, &disjoint);
    return disjoint ? status : RW_ERR_MISMATCH;
}
