/*
 * Maximum flow, for the cuts of closure.h. Source: Dinic, "Algorithm for solution of a problem of maximum flow in
 * networks with power estimation", Soviet Math. Doklady 11 (1970). Capacities are integers, so it ends and is the same
 * everywhere.
 */
#ifndef RW_REMAT_FLOW_H
#define RW_REMAT_FLOW_H

#include <rewind/status.h>

#define RW_FLOW_UNLIMITED INT64_MAX

struct rw_flow_edge {
    uint32_t to, next; /* of those that leave the same node */
    int64_t room;
};

/* Node 0 is the source, node 1 the sink. All zero is empty. */
struct rw_flow {
    size_t n_nodes;
    uint32_t *first; /* node -> the first edge that leaves it */
    uint32_t *level; /* node -> distance from the source, UINT32_MAX when it can't be reached */
    uint32_t *at, *path;
    struct rw_flow_edge *edge; /* edge e ^ 1 is e the other way */
    size_t n_edges, cap_edges;
};

rw_status rw_flow_init(struct rw_flow *f, size_t n_nodes);
void rw_flow_finish(struct rw_flow *f);

/* An edge without room in either direction, and its number. RW_ERR_MEMORY. */
rw_status rw_flow_add(struct rw_flow *f, uint32_t from, uint32_t to, uint32_t *ret_edge);

static inline void rw_flow_set(struct rw_flow *f, uint32_t edge, int64_t room)
{
    f->edge[edge].room = room;
    f->edge[edge ^ 1].room = 0;
}

/* As much as goes from source to sink. Then level tells the source's side of a least cut: what can still be reached. */
void rw_flow_run(struct rw_flow *f);

#endif
