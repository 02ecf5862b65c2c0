/* See flow.h. */
#include "remat/flow.h"

#include "base/alloc.h"

#define NONE UINT32_MAX
#define SOURCE 0u
#define SINK 1u

rw_status rw_flow_init(struct rw_flow *f, size_t n_nodes)
{
    *f = (struct rw_flow){ .n_nodes = n_nodes,
                           .first = rw_malloc(n_nodes * sizeof *f->first),
                           .level = rw_malloc(n_nodes * sizeof *f->level),
                           .at = rw_malloc(n_nodes * sizeof *f->at),
                           .path = rw_malloc(n_nodes * sizeof *f->path) };
    if (!f->first || !f->level || !f->at || !f->path) {
        rw_flow_finish(f);
        return RW_ERR_MEMORY;
    }
    for (size_t i = 0; i < n_nodes; i++) f->first[i] = NONE;
    return RW_OK;
}

void rw_flow_finish(struct rw_flow *f)
{
    rw_free(f->first);
    rw_free(f->level);
    rw_free(f->at);
    rw_free(f->path);
    rw_free(f->edge);
    *f = (struct rw_flow){ 0 };
}

rw_status rw_flow_add(struct rw_flow *f, uint32_t from, uint32_t to, uint32_t *ret_edge)
{
    if (!rw_grow(&f->edge, &f->cap_edges, f->n_edges, 2, sizeof *f->edge)) return RW_ERR_MEMORY;
    const uint32_t e = (uint32_t)f->n_edges;
    f->edge[e] = (struct rw_flow_edge){ .to = to, .next = f->first[from] };
    f->edge[e + 1] = (struct rw_flow_edge){ .to = from, .next = f->first[to] };
    f->first[from] = e;
    f->first[to] = e + 1;
    f->n_edges += 2;
    *ret_edge = e;
    return RW_OK;
}

/* Distances from the source over edges with room. False when the sink can't be reached. */
static bool find_levels(struct rw_flow *f)
{
    uint32_t *const queue = f->path;
    size_t n = 1;
    for (size_t i = 0; i < f->n_nodes; i++) f->level[i] = NONE;
    f->level[SOURCE] = 0;
    queue[0] = SOURCE;
    for (size_t i = 0; i < n; i++) {
        const uint32_t from = queue[i];
        for (uint32_t e = f->first[from]; e != NONE; e = f->edge[e].next) {
            const uint32_t to = f->edge[e].to;
            if (!f->edge[e].room || f->level[to] != NONE) continue;
            f->level[to] = f->level[from] + 1;
            queue[n++] = to;
        }
    }
    return f->level[SINK] != NONE;
}

/* Pushes what fits along a path of n edges to the sink. Returns how many of them stay: up to the first left full. */
static size_t push(struct rw_flow *f, size_t n)
{
    int64_t most = RW_FLOW_UNLIMITED;
    size_t stay = 0;
    for (size_t i = 0; i < n; i++)
        if (f->edge[f->path[i]].room < most) most = f->edge[f->path[i]].room;
    for (size_t i = n; i-- > 0;) {
        struct rw_flow_edge *const e = &f->edge[f->path[i]], *const back = &f->edge[f->path[i] ^ 1];
        if (e->room != RW_FLOW_UNLIMITED) e->room -= most;
        if (back->room != RW_FLOW_UNLIMITED) back->room += most;
        if (!e->room) stay = i;
    }
    return stay;
}

/* A blocking flow: every path of shortest length is filled. */
static void fill_paths(struct rw_flow *f)
{
    size_t n = 0;
    uint32_t u = SOURCE;
    for (size_t i = 0; i < f->n_nodes; i++) f->at[i] = f->first[i];
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

void rw_flow_run(struct rw_flow *f)
{
    while (find_levels(f)) fill_paths(f);
}
