/*
 * Maximum flow by Dinic's algorithm, for the cuts of min_cut.h. Capacities are integers, so the algorithm terminates
 * and has the same result on every machine.
 *
 * Source: Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", Soviet Math.
 * Doklady 11 (1970).
 */
#ifndef RW_REMAT_PLANNER_MAX_FLOW_H
#define RW_REMAT_PLANNER_MAX_FLOW_H

#include <rewind/status.h>

#define RW_FLOW_UNLIMITED INT64_MAX

struct rw_max_flow_edge {
    uint32_t to, next; /* the next edge that leaves the same node */
    int64_t room;
};

/* Node 0 is the source, node 1 the sink. All zero is empty. */
struct rw_max_flow {
    size_t n_nodes;
    uint32_t *used; /* nodes that edges with capacity lead to, except the sink; the caller may list fewer than all */
    size_t n_used;
    uint32_t *first; /* node -> the first edge that leaves it */
    uint32_t *level; /* used node -> distance from the source, UINT32_MAX if it cannot be reached */
    uint32_t *at, *path;
    struct rw_max_flow_edge *edge; /* edge e ^ 1 is the reverse of edge e */
    size_t n_edges, cap_edges;
};

rw_status rw_max_flow_init(struct rw_max_flow *f, size_t n_nodes);
void rw_max_flow_finish(struct rw_max_flow *f);

/* Adds an edge without capacity in either direction, and returns its number. RW_ERR_MEMORY. */
rw_status rw_max_flow_add(struct rw_max_flow *f, uint32_t from, uint32_t to, uint32_t *ret_edge);

static inline void rw_max_flow_set(struct rw_max_flow *f, uint32_t edge, int64_t room)
{
    f->edge[edge].room = room;
    f->edge[edge ^ 1].room = 0;
}

/*
 * Pushes the maximum flow from source to sink. Then `level` marks the source's side of a minimum cut: nodes that can
 * still be reached.
 */
void rw_max_flow_run(struct rw_max_flow *f);

#endif
