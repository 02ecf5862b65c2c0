/*
 * Dinic's algorithm: breadth-first levels, then a blocking flow by depth-first search, until the sink cannot be
 * reached.
 */
#include "remat/planner/max_flow.h"

#include "base/alloc.h"

#define NONE UINT32_MAX
#define SOURCE 0u
#define SINK 1u

rw_status rw_max_flow_init(struct rw_max_flow *f, size_t n_nodes)
{
    *f = (struct rw_max_flow){ .n_nodes = n_nodes,
                               .used = rw_malloc(n_nodes * sizeof *f->used),
                               .first = rw_malloc(n_nodes * sizeof *f->first),
                               .level = rw_malloc(n_nodes * sizeof *f->level),
                               .at = rw_malloc(n_nodes * sizeof *f->at),
                               .path = rw_malloc(n_nodes * sizeof *f->path) };
    if (!f->used || !f->first || !f->level || !f->at || !f->path) {
        rw_max_flow_finish(f);
        return RW_ERR_MEMORY;
    }
    for (size_t i = 0; i < n_nodes; i++) f->first[i] = NONE;
    for (uint32_t i = 2; i < n_nodes; i++) f->used[f->n_used++] = i;
    return RW_OK;
}

void rw_max_flow_finish(struct rw_max_flow *f)
{
    rw_free(f->used);
    rw_free(f->first);
    rw_free(f->level);
    rw_free(f->at);
    rw_free(f->path);
    rw_free(f->edge);
    *f = (struct rw_max_flow){ 0 };
}

rw_status rw_max_flow_add(struct rw_max_flow *f, uint32_t from, uint32_t to, uint32_t *ret_edge)
{
    if (!rw_grow(&f->edge, &f->cap_edges, f->n_edges, 2, sizeof *f->edge)) return RW_ERR_MEMORY;
    const uint32_t e = (uint32_t)f->n_edges;
    f->edge[e] = (struct rw_max_flow_edge){ .to = to, .next = f->first[from] };
    f->edge[e + 1] = (struct rw_max_flow_edge){ .to = from, .next = f->first[to] };
    f->first[from] = e;
    f->first[to] = e + 1;
    f->n_edges += 2;
    *ret_edge = e;
    return RW_OK;
}

/* Distances from the source over edges with residual capacity. False if the sink cannot be reached. Ends at the sink:
   nodes that are not nearer than it are on no shortest path. */
static bool find_levels(struct rw_max_flow *f)
{
    uint32_t *const queue = f->path;
    size_t n = 1;
    for (size_t i = 0; i < f->n_used; i++) f->level[f->used[i]] = NONE;
    f->level[SOURCE] = 0;
    f->level[SINK] = NONE;
    queue[0] = SOURCE;
    for (size_t i = 0; i < n; i++) {
        const uint32_t from = queue[i];
        for (uint32_t e = f->first[from]; e != NONE; e = f->edge[e].next) {
            const uint32_t to = f->edge[e].to;
            if (!f->edge[e].room || f->level[to] != NONE) continue;
            f->level[to] = f->level[from] + 1;
            if (to == SINK) return true;
            queue[n++] = to;
        }
    }
    return false;
}

/*
 * Pushes the bottleneck along a path of n edges to the sink. Returns how many of its edges remain in the path: those
 * before the first one that is now full.
 */
static size_t push(struct rw_max_flow *f, size_t n)
{
    int64_t most = RW_FLOW_UNLIMITED;
    size_t stay = 0;
    for (size_t i = 0; i < n; i++)
        if (f->edge[f->path[i]].room < most) most = f->edge[f->path[i]].room;
    for (size_t i = n; i-- > 0;) {
        struct rw_max_flow_edge *const e = &f->edge[f->path[i]], *const back = &f->edge[f->path[i] ^ 1];
        if (e->room != RW_FLOW_UNLIMITED) e->room -= most;
        if (back->room != RW_FLOW_UNLIMITED) back->room += most;
        if (!e->room) stay = i;
    }
    return stay;
}

/*
 * Finds a blocking flow: fills every shortest path. Advances along edges to the next level, and at a dead end removes
 * the node from its level and goes one edge back. at[u] is the first edge of u that has not been tried.
 */
static void fill_paths(struct rw_max_flow *f)
{
    size_t n = 0;
    uint32_t u = SOURCE;
    f->at[SOURCE] = f->first[SOURCE];
    for (size_t i = 0; i < f->n_used; i++) f->at[f->used[i]] = f->first[f->used[i]];
    for (;;) {
        if (u == SINK) {
            n = push(f, n);
            u = f->edge[f->path[n] ^ 1].to;
        }
        uint32_t e = f->at[u];
        while (e != NONE && (!f->edge[e].room || f->level[f->edge[e].to] != f->level[u] + 1)) e = f->edge[e].next;
        f->at[u] = e;
        if (e != NONE) {
            f->path[n++] = e;
            u = f->edge[e].to;
        } else if (u == SOURCE) {
            return;
        } else {
            f->level[u] = NONE;
            u = f->edge[f->path[--n] ^ 1].to;
        }
    }
}

void rw_max_flow_run(struct rw_max_flow *f)
{
    while (find_levels(f)) fill_paths(f);
}
