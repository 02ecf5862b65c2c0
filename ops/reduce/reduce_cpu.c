/*
 * CPU kernels of the reductions, over the groups, rows and runs of rw_reduce_plan(). The order of a sum depends on the
 * shape alone: lanes and blocks of fixed length in float, their sums in double, parts added in order. logsumexp makes
 * two passes: the maximum, then the sum of exp(x - maximum).
 */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/reduce/reduce.h"
#include "ops/common/util.h"
#include "ops/common/vec_native_array.h"

#define COLUMNS RW_REDUCE_COLUMNS
#define ROW_BLOCK 64  /* rows added in float */
#define RUN_BLOCK 1024 /* elements added in float */

enum pass { PASS_SUM, PASS_MAX, PASS_EXP };

/* One pass over the input. Results are stored to `to` as doubles, or to the output if that is NULL. */
struct pass_job {
    const rw_kernel *k;
    const struct rw_reduce_plan *plan;
    double divisor;
    const double *shift; /* for PASS_EXP, per output */
    double *to;
    double *part; /* [parts][outputs] */
    const rw_kernel *producer; /* for elements that `make` computes while they are summed; else NULL */
    rw_reduce_make make;
    const void *sum; /* the addend of the results, with the layout of the output; NULL for none */
};

static double d_get(const rw_view *v, int64_t i)
{
    return v->dtype == RW_F64 ? ((const double *)v->data)[i] : (double)f_get(v->data, v->dtype, i);
}

static void d_put(const rw_view *v, int64_t i, double x)
{
    if (v->dtype == RW_F64) ((double *)v->data)[i] = x;
    else f_put(v->data, v->dtype, i, (float)x);
}

static __attribute__((noinline)) void put_sum(const struct pass_job *j, int64_t o, double x)
{
    put_added(j->k->out[0].data, j->k->out[0].dtype, o, x / j->divisor, j->sum);
}

/* Stores a result. If it has the type of the elements, dtype, without a call, because there may be one for every few
   elements. */
VEC_INLINE void put_result(const struct pass_job *j, rw_dtype dtype, int64_t o, double x)
{
    if (j->to) j->to[o] = x;
    else if (j->sum || j->k->out[0].dtype != dtype) put_sum(j, o, x);
    else put_added(j->k->out[0].data, dtype, o, x / j->divisor, NULL);
}

/* Offset of element i of the axes, and its index along each. */
static int64_t seek(const struct rw_reduce_axes *a, int64_t i, int64_t *index)
{
    int64_t at = 0;
    for (int axis = a->rank - 1; axis > 0; axis--) {
        index[axis] = i % a->dim[axis];
        at += index[axis] * a->stride[axis];
        i /= a->dim[axis];
    }
    index[0] = i;
    return a->rank ? at + i * a->stride[0] : 0;
}

VEC_INLINE int64_t next(const struct rw_reduce_axes *a, int64_t at, int64_t *index)
{
    for (int axis = a->rank - 1; axis >= 0; axis--) {
        at += a->stride[axis];
        if (++index[axis] < a->dim[axis]) return at;
        at -= index[axis] * a->stride[axis];
        index[axis] = 0;
    }
    return at;
}

/* The maximum; NaN if either is NaN. */
VEC_INLINE double d_most(double m, double x)
{
    return x > m || x != x ? x : m;
}

VEC_INLINE double merge(enum pass pass, double a, double b)
{
    return pass == PASS_MAX ? d_most(a, b) : a + b;
}

VEC_INLINE nf nf_most(nf m, nf x)
{
    return nf_select((ni)(x != x), x, nf_larger(x, m));
}

/* Reduces a contiguous run to one number. */
VEC_INLINE double run_f(const void *x, rw_dtype dtype, enum pass pass, float shift, int64_t at, int64_t n)
{
    double total = pass == PASS_MAX ? (double)-INFINITY : 0;
    int64_t i = 0;
    while (i + VF_LANES <= n) {
        const int64_t stop = n - i < RUN_BLOCK ? n : i + RUN_BLOCK;
        struct nf_parts acc = nf_parts_all(pass == PASS_MAX ? -INFINITY : 0);
        for (; i + VF_LANES <= stop; i += VF_LANES)
            for (int p = 0; p < NF_PARTS; p++) {
                nf v = nf_get(x, dtype, at + i + p * NF_LANES);
                if (pass == PASS_EXP) v = nf_exp(v - shift);
                if (pass == PASS_MAX) acc.part[p] = nf_most(acc.part[p], v);
                else acc.part[p] += v;
            }
        const vf whole = nf_parts_whole(acc);
        if (pass == PASS_MAX) for (int l = 0; l < VF_LANES; l++) total = d_most(total, (double)whole[l]);
        else total += (double)vf_sum(whole);
    }
    if (i == n) return total;
    if (pass != PASS_EXP) {
        for (; i < n; i++) total = merge(pass, total, (double)f_get(x, dtype, at + i));
        return total;
    }
    const vf rest = nf_parts_whole(nf_parts_get_some(x, dtype, at + i, n - i, -INFINITY));
    return total + (double)vf_sum(vf_exp(rest - shift));
}

VEC_INLINE double run_d(const double *x, enum pass pass, double shift, int64_t n)
{
    vd acc = vd_all(pass == PASS_MAX ? (double)-INFINITY : 0);
    int64_t i = 0;
    for (; i + VD_LANES <= n; i += VD_LANES) {
        vd v = vd_load(x + i);
        if (pass == PASS_EXP) v = vd_exp(v - shift);
        if (pass == PASS_MAX) acc = vd_most(acc, v);
        else acc += v;
    }
    double total = pass == PASS_MAX ? (double)-INFINITY : vd_sum(acc);
    if (pass == PASS_MAX) for (int l = 0; l < VD_LANES; l++) total = d_most(total, acc[l]);
    for (; i < n; i++) total = merge(pass, total, pass == PASS_EXP ? exp(x[i] - shift) : x[i]);
    return total;
}

VEC_INLINE double run_of(const rw_view *v, rw_dtype dtype, enum pass pass, double shift, int64_t at, int64_t n)
{
    if (dtype == RW_F64) return run_d((const double *)v->data + at, pass, shift, n);
    return run_f(v->data, dtype, pass, (float)shift, at, n);
}

/* Part p of group g of reduced runs. A single run is cut into parts; otherwise there is one. */
VEC_INLINE void reduce_runs(const struct pass_job *j, rw_dtype dtype, enum pass pass, int64_t g, int64_t p)
{
    const struct rw_reduce_plan *const plan = j->plan;
    const double shift = pass == PASS_EXP ? j->shift[g] : 0;
    int64_t index[RW_MAX_RANK];
    if (plan->parts > 1) {
        const int64_t from = p * RW_REDUCE_BLOCK, rest = plan->run - from;
        j->part[p] = run_of(&j->k->in[0], dtype, pass, shift, from, rest < RW_REDUCE_BLOCK ? rest : RW_REDUCE_BLOCK);
        return;
    }
    int64_t at = seek(&plan->groups, g, index);
    double total = pass == PASS_MAX ? (double)-INFINITY : 0;
    if (plan->rows.numel > 1) for (int axis = 0; axis < RW_MAX_RANK; axis++) index[axis] = 0;
    for (int64_t r = 0;;) {
        total = merge(pass, total, run_of(&j->k->in[0], dtype, pass, shift, at, plan->run));
        if (++r == plan->rows.numel) break;
        at = next(&plan->rows, at, index);
    }
    put_result(j, dtype, g, total);
}

/* Adds up to four rows to block[0..n) at once: the block is loaded and stored once for all of them. */
VEC_INLINE void add_rows_f(const void *x, rw_dtype dtype, enum pass pass, const float *shift, const int64_t *at,
                           int rows, int64_t n, float *block)
{
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES) {
        vf v[4];
        for (int r = 0; r < rows; r++) {
            v[r] = vf_get(x, dtype, at[r] + i);
            if (pass == PASS_EXP) v[r] = vf_exp(v[r] - vf_load(shift + i));
        }
        vf y = vf_load(block + i);
        if (pass == PASS_MAX) for (int r = 0; r < rows; r++) y = vf_most(y, v[r]);
        else if (rows == 4) y += (v[0] + v[1]) + (v[2] + v[3]);
        else y += v[0];
        vf_store(block + i, y);
    }
    if (i == n) return;
    if (pass != PASS_EXP) {
        for (int r = 0; r < rows; r++)
            for (int64_t c = i; c < n; c++) {
                const float v = f_get(x, dtype, at[r] + c);
                block[c] = pass == PASS_SUM ? block[c] + v : v > block[c] || v != v ? v : block[c];
            }
        return;
    }
    vf y = vf_load(block + i);
    for (int r = 0; r < rows; r++) {
        const vf v = nf_parts_whole(nf_parts_get_some(x, dtype, at[r] + i, n - i, 0));
        y += vf_exp(v - vf_load(shift + i));
    }
    vf_store(block + i, y);
}

/* Adds rows [from, to) of n columns, the first at `base`, to total. */
VEC_INLINE void columns_f(const struct pass_job *j, rw_dtype dtype, enum pass pass, int64_t base, int64_t from,
                          int64_t to, int64_t n, const double *shift, double *total)
{
    float block[COLUMNS], by[COLUMNS];
    int64_t index[RW_MAX_RANK], at = base + seek(&j->plan->rows, from, index);
    const int64_t wide = (n + VF_LANES - 1) / VF_LANES * VF_LANES;
    for (int64_t i = 0; i < wide; i++) by[i] = pass == PASS_EXP && i < n ? (float)shift[i] : 0;
    for (int64_t r = from; r < to;) {
        const int64_t end = to - r < ROW_BLOCK ? to : r + ROW_BLOCK;
        for (int64_t i = 0; i < wide; i++) block[i] = pass == PASS_MAX ? -INFINITY : 0;
        while (r < end) {
            int64_t four[4];
            const int rows = end - r < 4 ? 1 : 4;
            for (int i = 0; i < rows; i++) {
                four[i] = at;
                if (j->make) j->make(j->producer, at, n);
                at = next(&j->plan->rows, at, index);
            }
            if (rows == 4) add_rows_f(j->k->in[0].data, dtype, pass, by, four, 4, n, block);
            else add_rows_f(j->k->in[0].data, dtype, pass, by, four, 1, n, block);
            r += rows;
        }
        for (int64_t i = 0; i < n; i++) total[i] = merge(pass, total[i], (double)block[i]);
    }
}

VEC_INLINE void columns_d(const struct pass_job *j, enum pass pass, int64_t base, int64_t from, int64_t to, int64_t n,
                          const double *shift, double *total)
{
    int64_t index[RW_MAX_RANK], at = base + seek(&j->plan->rows, from, index);
    for (int64_t r = from; r < to; r++) {
        const double *const x = (const double *)j->k->in[0].data + at;
        if (j->make) j->make(j->producer, at, n);
        for (int64_t i = 0; i < n; i++)
            total[i] = merge(pass, total[i], pass == PASS_EXP ? exp(x[i] - shift[i]) : x[i]);
        at = next(&j->plan->rows, at, index);
    }
}

/* Part p of one chunk of columns of group g. */
VEC_INLINE void reduce_columns(const struct pass_job *j, rw_dtype dtype, enum pass pass, int64_t g, int64_t chunk,
                               int64_t p)
{
    const struct rw_reduce_plan *const plan = j->plan;
    const int64_t c = chunk * COLUMNS, n = plan->run - c < COLUMNS ? plan->run - c : COLUMNS, o = g * plan->run + c;
    const int64_t from = plan->rows.numel * p / plan->parts, to = plan->rows.numel * (p + 1) / plan->parts;
    int64_t index[RW_MAX_RANK];
    const int64_t base = seek(&plan->groups, g, index) + c;
    const double *const shift = pass == PASS_EXP ? j->shift + o : NULL;
    double total[COLUMNS];
    for (int64_t i = 0; i < n; i++) total[i] = pass == PASS_MAX ? (double)-INFINITY : 0;
    if (dtype == RW_F64) columns_d(j, pass, base, from, to, n, shift, total);
    else columns_f(j, dtype, pass, base, from, to, n, shift, total);
    if (plan->parts > 1) memcpy(j->part + p * plan->groups.numel * plan->run + o, total, (size_t)n * sizeof *total);
    else for (int64_t i = 0; i < n; i++) put_result(j, dtype, o + i, total[i]);
}

VEC_INLINE void task(const struct pass_job *j, rw_dtype dtype, enum pass pass, int64_t i)
{
    const struct rw_reduce_plan *const plan = j->plan;
    if (plan->run_reduced) { /* one group of parts, or groups of one part */
        reduce_runs(j, dtype, pass, plan->parts > 1 ? 0 : i, plan->parts > 1 ? i : 0);
        return;
    }
    /* consecutive tasks of a thread are chunks of the same rows; the last chunk may be narrow */
    const int64_t chunk = i % plan->chunks, p = i / plan->chunks % plan->parts, g = i / plan->chunks / plan->parts;
    reduce_columns(j, dtype, pass, g, chunk, p);
}

/* Several tasks per call: there may be one for every few elements. */
#define TASKS(dtype, pass)                                                                    \
    static void tasks_##dtype##_##pass(const struct pass_job *j, int64_t from, int64_t to)    \
    {                                                                                         \
        for (int64_t i = from; i < to; i++) task(j, RW_##dtype, PASS_##pass, i);              \
    }
TASKS(F32, SUM)
TASKS(F32, MAX)
TASKS(F32, EXP)
TASKS(BF16, SUM)
TASKS(BF16, MAX)
TASKS(BF16, EXP)
TASKS(F16, SUM)
TASKS(F16, MAX)
TASKS(F16, EXP)
TASKS(F64, SUM)
TASKS(F64, MAX)
TASKS(F64, EXP)

struct tasks {
    const struct pass_job *job;
    void (*run)(const struct pass_job *, int64_t, int64_t);
};

static void run_tasks(void *of, int64_t first, int64_t end)
{
    const struct tasks *const t = of;
    t->run(t->job, first, end);
}

/* Runs all tasks of a pass on the threads, then merges the parts. */
static void run_pass(const struct pass_job *j, enum pass pass)
{
    static void (*const tasks[RW_DTYPE_COUNT][3])(const struct pass_job *, int64_t, int64_t) = {
        [RW_F32] = { tasks_F32_SUM, tasks_F32_MAX, tasks_F32_EXP },
        [RW_BF16] = { tasks_BF16_SUM, tasks_BF16_MAX, tasks_BF16_EXP },
        [RW_F16] = { tasks_F16_SUM, tasks_F16_MAX, tasks_F16_EXP },
        [RW_F64] = { tasks_F64_SUM, tasks_F64_MAX, tasks_F64_EXP },
    };
    const struct rw_reduce_plan *const plan = j->plan;
    const int64_t n = plan->groups.numel * plan->chunks * plan->parts,
                  out = plan->groups.numel * (plan->run_reduced ? 1 : plan->run);
    rw_team_for(rw_threads_for(j->k, j->k->in[0].layout->numel), n, run_tasks,
                &(struct tasks){ j, tasks[j->k->in[0].dtype][pass] });
    if (plan->parts < 2) return;
    for (int64_t o = 0; o < out; o++) {
        double total = j->part[o];
        for (int64_t p = 1; p < plan->parts; p++) total = merge(pass, total, j->part[p * out + o]);
        if (j->to) j->to[o] = total;
        else put_sum(j, o, total);
    }
}

static void logsumexp(struct pass_job *j, int64_t out)
{
    double *const shift = j->k->workspace, *const sum = shift + out;
    j->part = sum + out;
    j->to = shift;
    run_pass(j, PASS_MAX);
    for (int64_t o = 0; o < out; o++)
        if (shift[o] == (double)INFINITY || shift[o] == (double)-INFINITY) shift[o] = 0;
    j->shift = shift;
    j->to = sum;
    run_pass(j, PASS_EXP);
    for (int64_t o = 0; o < out; o++) d_put(&j->k->out[0], o, shift[o] + log(sum[o]));
}

/* Runs the passes of a reduction. */
rw_status RW_ISA_NAME(rw_reduce_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_reduce_cpu)(const rw_kernel *k)
{
    const struct rw_reduce_attrs *const a = k->attrs;
    const rw_layout *const in = k->in[0].layout;
    const int64_t out = k->out[0].layout->numel;
    const void *const sum = rw_kernel_has(k, 1) ? k->in[1].data : NULL;
    if (!in->numel) {
        const double nothing = a->kind == RW_REDUCE_MEAN        ? (double)NAN
                               : a->kind == RW_REDUCE_LOGSUMEXP ? (double)-INFINITY
                                                                : 0;
        for (int64_t o = 0; o < out; o++) put_added(k->out[0].data, k->out[0].dtype, o, nothing, sum);
        return RW_OK;
    }
    const struct rw_reduce_plan plan = rw_reduce_plan(in, rw_reduce_mask(a->axes, in->rank));
    struct pass_job j = { .k = k, .plan = &plan, .part = k->workspace, .sum = sum,
                          .divisor = a->kind == RW_REDUCE_MEAN ? (double)plan.count : 1 };
    if (a->kind == RW_REDUCE_LOGSUMEXP) logsumexp(&j, out);
    else run_pass(&j, a->kind == RW_REDUCE_MAX ? PASS_MAX : PASS_SUM);
    return RW_OK;
}

/* Output 1: sums of output 0, which `make` computes, over all axes but the last, added to input `addend` if there is
   one. There is more than one row and column. */
rw_status RW_ISA_NAME(rw_sum_rows_cpu)(const rw_kernel *k, rw_reduce_make make, int addend);
rw_status RW_ISA_NAME(rw_sum_rows_cpu)(const rw_kernel *k, rw_reduce_make make, int addend)
{
    const rw_layout *const l = k->out[0].layout;
    const struct rw_reduce_plan plan = rw_reduce_plan(l, rw_reduce_rows(l->rank));
    rw_kernel sum = *k;
    sum.in = &k->out[0];
    sum.out = &k->out[1];
    sum.n_inputs = sum.n_outputs = 1;
    run_pass(&(struct pass_job){ .k = &sum, .plan = &plan, .part = k->workspace, .divisor = 1, .producer = k,
                                 .make = make, .sum = rw_kernel_has(k, addend) ? k->in[addend].data : NULL },
             PASS_SUM);
    return RW_OK;
}

/* Does x equal the maximum m? NaN equals NaN here. */
static bool hit(double x, double m)
{
    return x == m || (x != x && m != m);
}

/* The rows of one group of kept runs, in order; a column is done at its first maximum. */
static void first_in_columns(const rw_kernel *k, const struct rw_reduce_plan *plan, int64_t g, int64_t c)
{
    int64_t index[RW_MAX_RANK];
    int64_t at = seek(&plan->groups, g, index) + c;
    const double m = d_get(&k->in[1], g * plan->run + c);
    for (int axis = 0; axis < RW_MAX_RANK; axis++) index[axis] = 0;
    for (int64_t r = 0; r < plan->rows.numel; r++) {
        if (hit(d_get(&k->in[0], at), m)) {
            d_put(&k->out[0], at, 1);
            return;
        }
        at = next(&plan->rows, at, index);
    }
}

static void first_in_runs(const rw_kernel *k, const struct rw_reduce_plan *plan, int64_t g)
{
    int64_t index[RW_MAX_RANK];
    int64_t at = seek(&plan->groups, g, index);
    const double m = d_get(&k->in[1], g);
    for (int axis = 0; axis < RW_MAX_RANK; axis++) index[axis] = 0;
    for (int64_t r = 0; r < plan->rows.numel; r++) {
        for (int64_t i = 0; i < plan->run; i++) {
            if (!hit(d_get(&k->in[0], at + i), m)) continue;
            d_put(&k->out[0], at + i, 1);
            return;
        }
        at = next(&plan->rows, at, index);
    }
}

struct maxima {
    const rw_kernel *k;
    struct rw_reduce_plan plan;
    int64_t columns;
};

static void find_first(void *of, int64_t first, int64_t end)
{
    const struct maxima *const m = of;
    for (int64_t i = first; i < end; i++) {
        if (m->plan.run_reduced) first_in_runs(m->k, &m->plan, i);
        else first_in_columns(m->k, &m->plan, i / m->columns, i % m->columns);
    }
}

/* x and its maxima -> 1 at the first maximal element of each group in row-major order, else 0 */
rw_status RW_ISA_NAME(rw_first_max_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_first_max_cpu)(const rw_kernel *k)
{
    const struct rw_reduce_attrs *const a = k->attrs;
    const rw_layout *const in = k->in[0].layout;
    if (!in->numel) return RW_OK;
    struct maxima m = { .k = k, .plan = rw_reduce_plan(in, rw_reduce_mask(a->axes, in->rank)) };
    m.columns = m.plan.run_reduced ? 1 : m.plan.run;
    memset(k->out[0].data, 0, (size_t)in->numel * rw_dtype_size(k->out[0].dtype));
    rw_team_for(rw_threads_for(k, in->numel), m.plan.groups.numel * m.columns, find_first, &m);
    return RW_OK;
}
