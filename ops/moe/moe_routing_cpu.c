/* The choice of experts and the order of rows on the CPU. Tokens are independent; rows are placed in one pass. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/moe/moe.h"

#include <math.h>

static double number_at(const rw_view *x, int64_t i)
{
    return x->dtype == RW_F64 ? ((const double *)x->data)[i] : (double)f_get(x->data, x->dtype, i);
}

/* Maps a score to an integer of the same order, for comparisons. Both zeros are equal; NaN is above all. */
VEC_INLINE ni in_order(nf score)
{
    const ni bits = (ni)(score + nf_all(0)), order = bits ^ (bits >> 31 & INT32_MAX);
    return (order | (ni)(score != score)) & ((ni)(score == score) | INT32_MAX);
}

VEC_INLINE nf some_scores(const rw_view *x, rw_dtype dtype, int64_t i, int64_t n)
{
    return n >= NF_LANES ? nf_get(x->data, dtype, i) : nf_get_some(x->data, dtype, i, n);
}

/* A token's scores, plus a bias, as keys with the index in the low bits, so that the lower index wins among equals.
   Unused leaves are below all keys. */
VEC_INLINE void keys_of(const rw_kernel *k, rw_dtype dtype, int64_t token, int64_t experts, int64_t leaves,
                        int64_t *key)
{
    int32_t order[RW_MOE_EXPERTS_MAX + NF_LANES];
    for (int64_t e = 0; e < experts; e += NF_LANES) {
        nf x = some_scores(&k->in[0], dtype, token * experts + e, experts - e);
        if (k->n_inputs == 2) x += some_scores(&k->in[1], dtype, e, experts - e);
        *(ni *)(order + e) = in_order(x);
    }
    for (int64_t e = 0; e < experts; e++) key[e] = order[e] * ((int64_t)1 << 32) + (INT32_MAX - e);
    for (int64_t e = experts; e < leaves; e++) key[e] = INT64_MIN;
}

VEC_INLINE int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Tokens that are processed in parallel, because each step of a choice depends on the one before it. */
enum { ABREAST = 4 };

/*
 * The k best of all scores, for float scores and ABREAST tokens (the last one is repeated if there are fewer). A
 * tournament tree: for each power of two h, tree[h + i] is the larger of tree[2h + i] and tree[3h + i], from the keys
 * to the root tree[1], the best. After each choice only the path from its leaf to the root is recomputed.
 */
VEC_INLINE bool choose_best(const rw_kernel *k, rw_dtype dtype, int64_t token)
{
    const int64_t experts = k->in[0].layout->dim[1], last = k->in[0].layout->dim[0] - 1, n = k->out[0].layout->dim[1];
    int64_t tree[ABREAST][2 * RW_MOE_EXPERTS_MAX], most[ABREAST], leaves = 1;
    int32_t *to[ABREAST];
    bool sound = true;
    while (leaves < experts) leaves *= 2;
    for (int u = 0; u < ABREAST; u++) {
        const int64_t own = token + u < last ? token + u : last;
        to[u] = (int32_t *)k->out[0].data + own * n;
        keys_of(k, dtype, own, experts, leaves, tree[u] + leaves);
        for (int64_t h = leaves / 2; h; h /= 2)
            for (int64_t i = 0; i < h; i++) tree[u][h + i] = larger(tree[u][2 * h + i], tree[u][3 * h + i]);
        most[u] = tree[u][1];
        sound &= most[u] >> 32 != INT32_MAX;
    }
    for (int64_t s = 0; s < n; s++) {
        int64_t at[ABREAST];
        for (int u = 0; u < ABREAST; u++) {
            at[u] = INT32_MAX - (most[u] & UINT32_MAX);
            to[u][s] = (int32_t)at[u];
            tree[u][leaves + at[u]] = most[u] = INT64_MIN;
        }
        for (int64_t h = leaves / 2; h; h /= 2)
            for (int u = 0; u < ABREAST; u++) {
                most[u] = larger(most[u], tree[u][2 * h + (at[u] ^ h)]);
                at[u] &= h - 1;
                tree[u][h + at[u]] = most[u];
            }
    }
    return sound;
}

/* The best remaining score in [from, to), the lower index among equals; -1: none remains. */
static int64_t best(const double *score, const bool *gone, int64_t from, int64_t to)
{
    int64_t at = -1;
    for (int64_t i = from; i < to; i++)
        if (!gone[i] && (at < 0 || score[i] > score[at])) at = i;
    return at;
}

/* The value of a group: the sum of its best scores, the best first. */
static double worth(const double *score, bool *gone, int64_t from, int64_t to, int64_t n, bool wide)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = best(score, gone, from, to);
        sum = wide ? sum + score[at] : (double)((float)sum + (float)score[at]);
        gone[at] = true;
    }
    memset(gone + from, 0, (size_t)(to - from) * sizeof *gone);
    return sum;
}

/* The k best of the best groups, or of scores in double. False if a score is NaN. */
static bool choose(const rw_kernel *k, int64_t token)
{
    const struct rw_moe_topk_attrs *const a = k->attrs;
    const int64_t experts = k->in[0].layout->dim[1], each = experts / a->groups;
    const bool wide = k->in[0].dtype == RW_F64;
    double score[RW_MOE_EXPERTS_MAX], group[RW_MOE_GROUPS_MAX];
    bool gone[RW_MOE_EXPERTS_MAX] = { false }, closed[RW_MOE_GROUPS_MAX] = { false }, sound = true;
    for (int64_t e = 0; e < experts; e++) {
        const double x = number_at(&k->in[0], token * experts + e), b = k->n_inputs == 2 ? number_at(&k->in[1], e) : 0;
        score[e] = k->n_inputs < 2 ? x : wide ? x + b : (double)((float)x + (float)b);
        if (isnan(score[e])) sound = false, score[e] = -INFINITY;
    }
    for (int64_t g = 0; g < a->groups && a->best_groups < a->groups; g++)
        group[g] = worth(score, gone, g * each, (g + 1) * each, a->group_sum, wide);
    if (a->best_groups < a->groups) {
        for (int64_t i = 0; i < a->best_groups; i++) closed[best(group, closed, 0, a->groups)] = true;
        for (int64_t e = 0; e < experts; e++) gone[e] = !closed[e / each];
    }
    for (int64_t i = 0; i < a->k; i++) {
        const int64_t at = best(score, gone, 0, experts);
        ((int32_t *)k->out[0].data)[token * a->k + i] = (int32_t)at;
        gone[at] = true;
    }
    return sound;
}

static bool choose_abreast(const rw_kernel *k, int64_t token)
{
    const struct rw_moe_topk_attrs *const a = k->attrs;
    const int64_t tokens = k->in[0].layout->dim[0];
    bool sound = true;
    if (a->best_groups == a->groups && k->in[0].dtype != RW_F64)
        switch (k->in[0].dtype) {
        case RW_BF16: return choose_best(k, RW_BF16, token);
        case RW_F16: return choose_best(k, RW_F16, token);
        default: return choose_best(k, RW_F32, token);
        }
    for (int64_t t = token; t < token + ABREAST && t < tokens; t++) sound &= choose(k, t);
    return sound;
}

struct tokens {
    const rw_kernel *k;
    int64_t experts;
    bool wrong;
};

static void choose_some(void *of, int64_t first, int64_t end)
{
    struct tokens *const s = of;
    bool sound = true;
    for (int64_t i = first; i < end; i++) sound &= choose_abreast(s->k, i * ABREAST);
    if (!sound) __atomic_store_n(&s->wrong, true, __ATOMIC_RELAXED);
}

rw_status RW_ISA_NAME(rw_moe_topk_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_topk_cpu)(const rw_kernel *k)
{
    const int64_t tokens = k->in[0].layout->dim[0];
    struct tokens s = { .k = k };
    rw_team_for(tokens >= 64 ? k->threads : 1, (tokens + ABREAST - 1) / ABREAST, choose_some, &s);
    return s.wrong ? RW_ERR_ARGUMENT : RW_OK;
}

/* Copies a token's slots from its row of `experts` elements, or scatters them into the row, among zeros. False if an
   index is outside of the row; that slot is skipped. size is a constant after inlining. */
VEC_INLINE bool move(const rw_kernel *k, int64_t token, int64_t experts, size_t size, bool scatters)
{
    const int64_t each = k->in[1].layout->dim[1];
    const int32_t *const index = (const int32_t *)k->in[1].data + token * each;
    const char *from = (const char *)k->in[0].data + (size_t)(token * (scatters ? each : experts)) * size;
    char *to = (char *)k->out[0].data + (size_t)(token * (scatters ? experts : each)) * size;
    bool sound = true;
    if (scatters) memset(to, 0, (size_t)experts * size);
    for (int64_t i = 0; i < each; i++) {
        if (index[i] < 0 || index[i] >= experts) sound = false;
        else if (scatters) memcpy(to + (size_t)index[i] * size, from + (size_t)i * size, size);
        else memcpy(to + (size_t)i * size, from + (size_t)index[i] * size, size);
    }
    return sound;
}

VEC_INLINE void move_some(struct tokens *s, int64_t first, int64_t end, bool scatters)
{
    const size_t size = rw_dtype_size(s->k->in[0].dtype);
    bool sound = true;
    for (int64_t t = first; t < end; t++) {
        if (size == 8) sound &= move(s->k, t, s->experts, 8, scatters);
        else if (size == 4) sound &= move(s->k, t, s->experts, 4, scatters);
        else sound &= move(s->k, t, s->experts, 2, scatters);
    }
    if (!sound) __atomic_store_n(&s->wrong, true, __ATOMIC_RELAXED);
}

static void select_some(void *of, int64_t first, int64_t end)
{
    move_some(of, first, end, false);
}

static void scatter_some(void *of, int64_t first, int64_t end)
{
    move_some(of, first, end, true);
}

static rw_status move_all(const rw_kernel *k, int64_t experts, rw_team_range *some)
{
    struct tokens s = { .k = k, .experts = experts };
    rw_team_for(rw_threads_for(k, 4 * k->in[1].layout->numel), k->in[1].layout->dim[0], some, &s);
    return s.wrong ? RW_ERR_ARGUMENT : RW_OK;
}

rw_status RW_ISA_NAME(rw_moe_select_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_select_cpu)(const rw_kernel *k)
{
    return move_all(k, k->in[0].layout->dim[1], select_some);
}

rw_status RW_ISA_NAME(rw_moe_scatter_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_scatter_cpu)(const rw_kernel *k)
{
    return move_all(k, ((const struct rw_moe_scatter_attrs *)k->attrs)->experts, scatter_some);
}

/* Counts the slots, then places them in order. A few nanoseconds per row, compared with products of thousands. */
rw_status RW_ISA_NAME(rw_moe_route_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_route_cpu)(const rw_kernel *k)
{
    const struct rw_moe_route_attrs *const a = k->attrs;
    const int32_t *const index = k->in[0].data;
    int32_t *const order = k->out[0].data, *const inverse = k->out[1].data, *const offsets = k->out[2].data;
    int32_t *const next = k->workspace;
    const int64_t n = k->in[0].layout->numel;
    memset(next, 0, (size_t)(a->experts + 1) * sizeof *next);
    for (int64_t i = 0; i < n; i++) {
        if (index[i] < RW_MOE_DROPPED || index[i] >= a->experts) return RW_ERR_ARGUMENT;
        next[rw_moe_key(index[i], a->experts)]++;
    }
    offsets[0] = 0;
    for (int64_t e = 0; e < a->experts; e++) {
        ((float *)k->out[3].data)[e] = (float)next[e];
        offsets[e + 1] = offsets[e] + next[e];
        next[e] = offsets[e];
    }
    next[a->experts] = offsets[a->experts];
    for (int64_t i = 0; i < n; i++) {
        const int32_t row = next[rw_moe_key(index[i], a->experts)]++;
        order[row] = (int32_t)i;
        inverse[i] = row;
    }
    return RW_OK;
}
