/*
 * The sums that are the gradient of a remap, for one type of arithmetic T: over the places to which elements were
 * copied, in order. Included by axis_remap_cpu.c with T = float and again with T = double; F builds the names of these
 * functions. A section of the sums stays in the cache until it is complete and is then rounded once.
 */

/* Adds the columns at `at` to element i of a section. */
VEC_INLINE void F(add_row)(const struct sums *s, T *sum, rw_dtype dtype, int64_t i, int64_t at)
{
    T *const to = sum + (i - s->from) * s->columns;
    if (s->columns == 1) *to += F(one)(s->dy, dtype, at);
    else F(add)(to, s->dy, dtype, at, s->columns);
}

/* Adds the places of a run to a section. */
VEC_INLINE void F(add_run)(const struct sums *s, T *sum, rw_dtype dtype, const struct rw_remap_run *r,
                           int64_t outer)
{
    const int64_t inner = s->inner, places = (outer * s->a->to + r->to) * inner + s->column;
    const int64_t least = r->slope < 0 ? r->from - r->n + 1 : r->from, most = r->slope ? least + r->n : least + 1;
    const int64_t from = least > s->from ? least : s->from, end = most < s->end ? most : s->end;
    if (from >= end) return;
    if (r->slope > 0) /* more than one element: all columns */
        F(add)(sum + (from - s->from) * s->columns, s->dy, dtype, places + (from - r->from) * inner,
               (end - from) * s->columns);
    else if (r->slope < 0)
        for (int64_t i = from; i < end; i++) F(add_row)(s, sum, dtype, i, places + (r->from - i) * inner);
    else
        for (int64_t j = 0; j < r->n; j++) F(add_row)(s, sum, dtype, from, places + j * inner);
}

/* Windows: element e of window j is element j step + e, and columns are a window's size apart. */
VEC_INLINE void F(add_windows)(const struct sums *s, T *sum, rw_dtype dtype, int64_t outer)
{
    const int64_t size = s->a->size, step = s->a->step, last = rw_remap_over(s->a, s->end - 1).to;
    for (int64_t j = rw_remap_over(s->a, s->from).from; j < last; j++) {
        const int64_t begin = j * step, most = begin + size, end = most < s->end ? most : s->end;
        const int64_t from = begin > s->from ? begin : s->from;
        const int64_t at = ((outer * s->a->to + j) * s->inner + s->column) * size - begin;
        if (s->inner == 1) F(add)(sum + from - s->from, s->dy, dtype, at + from, end - from);
        else
            for (int64_t i = from; i < end; i++)
                for (int64_t l = 0; l < s->columns; l++)
                    sum[(i - s->from) * s->columns + l] += F(one)(s->dy, dtype, at + i + l * size);
    }
}

VEC_INLINE void F(sum_share)(const struct sums *s, rw_dtype dtype, int64_t outer, void *dx)
{
    T sum[SUMS + NF_LANES];
    const int64_t n = (s->end - s->from) * s->columns;
    memset(sum, 0, (size_t)(n + NF_LANES) * sizeof *sum);
    if (s->a->mode == RW_REMAP_WINDOWS) F(add_windows)(s, sum, dtype, outer);
    else for (int i = 0; i < RW_REMAP_RUNS; i++) F(add_run)(s, sum, dtype, &s->by.run[i], outer);
    F(store)(dx, dtype, (outer * s->a->from + s->from) * s->inner + s->column, sum, n);
}
