/*
 * The loops of batchnorm, group_norm and instance_norm (batch_group_instance_norm.h) for one type of arithmetic T.
 * Included by batch_group_instance_norm_cpu.c with T = float, V = nf and again with T = double, V = nd; F builds the
 * names of these functions. The inner loops run over adjacent channels, one vector at a time; channels are independent
 * there. OF_TYPE(call) makes `type`, the type of the elements, the constant `dtype` within a call: each parallel loop
 * is a separate function, which would otherwise test the type for every vector.
 */
#define LANES (int64_t)(sizeof(V) / sizeof(T))
#define OWN (sizeof(T) == sizeof(double) ? RW_F64 : RW_F32) /* the type of the numbers in the workspace */

/* Calls step(..., c, n) for n channels from c on, over `all` channels: LANES at a time, then the rest. */
#define OVER_CHANNELS(all, step, ...)                                                        \
    do {                                                                                     \
        int64_t channel = 0;                                                                 \
        for (; channel + LANES <= (all); channel += LANES) step(__VA_ARGS__, channel, LANES); \
        if (channel < (all)) step(__VA_ARGS__, channel, (all)-channel);                      \
    } while (0)

VEC_INLINE T F(element)(const void *p, rw_dtype dtype, int64_t i)
{
    return dtype == RW_F64 ? (T)((const double *)p)[i] : (T)f_get(p, dtype, i);
}

VEC_INLINE void F(store)(void *p, rw_dtype dtype, int64_t i, T x)
{
    if (dtype == RW_F64) ((double *)p)[i] = (double)x;
    else f_put(p, dtype, i, (float)x);
}

/* Rows [from, to) of a block, and its addresses in the workspace: its two sums, in double; two lines for the current
   runs; the centre of one of them; and its segment's coefficients. */
struct F(block) {
    int64_t from, to;
    double *part;
    T *run, *centre, *of_segment;
};

/* The blocks' sums follow the coefficients of all segments. */
VEC_INLINE double *F(parts_of)(const struct rw_groups *g, int64_t lines, void *workspace)
{
    return (double *)(void *)((T *)workspace + g->segments * lines * g->c);
}

VEC_INLINE struct F(block) F(block_of)(const struct rw_groups *g, int64_t lines, void *workspace, int64_t unit)
{
    const int64_t s = unit / g->blocks, b = unit % g->blocks, from = b * g->block, to = from + g->block;
    T *const coefficients = workspace;
    double *const parts = F(parts_of)(g, lines, workspace);
    T *const run = (T *)(void *)(parts + g->segments * g->blocks * 2 * g->c) + unit * 3 * g->c;
    return (struct F(block)){ s * g->rows + from, s * g->rows + (to < g->rows ? to : g->rows),
                              parts + unit * 2 * g->c, run, run + 2 * g->c, coefficients + s * lines * g->c };
}

/*
 * Rows are summed in runs: a run in T, and the runs in double. A single float32 sum of a block's thousands of rows
 * would lose four bits. Summing everything in double would take longer than loading the rows.
 */
VEC_INLINE bool F(ends_run)(const struct F(block) *b, int64_t row)
{
    return (row + 1 - b->from) % RW_GROUPS_RUN == 0 || row + 1 == b->to;
}

/* Adds a run to its sum and starts the next one. */
VEC_INLINE void F(end_run)(double *sum, T *run, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++) {
        sum[c] += (double)run[c];
        run[c] = 0;
    }
}

VEC_INLINE void F(begin_sum)(double *sum, T *run, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++) sum[c] = run[c] = 0;
}

VEC_INLINE void F(add)(T *run, const void *x, rw_dtype dtype, int64_t at, int64_t c, int64_t n)
{
    F(save)(run, OWN, c, n, F(load)(run, OWN, c, n) + F(load)(x, dtype, at + c, n));
}

/* Adds the difference from a centre, and its square. */
VEC_INLINE void F(add_square)(T *run, T *squares, const T *centre, const void *x, rw_dtype dtype, int64_t at,
                              int64_t c, int64_t n)
{
    const V d = F(load)(x, dtype, at + c, n) - F(load)(centre, OWN, c, n);
    F(save)(run, OWN, c, n, F(load)(run, OWN, c, n) + d);
    F(save)(squares, OWN, c, n, F(load)(squares, OWN, c, n) + d * d);
}

/*
 * Mean of each channel, and sum of squares around it. An approximate mean serves as a centre: squares are taken around
 * it, and the mean of the differences from it gives the exact mean.
 */
VEC_INLINE void F(statistics)(const struct rw_groups *g, const rw_view *x, rw_dtype dtype, const struct F(block) *b)
{
    const double n = (double)(b->to - b->from);
    for (struct rw_groups_piece p = rw_groups_begin(g, x); p.left; rw_groups_next(&p)) {
        double *const mean = b->part + p.first, *const square = mean + g->c;
        T *const run = b->run + p.first, *const squares = run + g->c, *const centre = b->centre + p.first;
        const void *const of = p.x->data;
        F(begin_sum)(mean, run, p.c);
        F(begin_sum)(square, squares, p.c);
        for (int64_t i = b->from; i < b->to; i++) {
            OVER_CHANNELS(p.c, F(add), run, of, dtype, i * p.c);
            if (F(ends_run)(b, i)) F(end_run)(mean, run, p.c);
        }
        for (int64_t c = 0; c < p.c; c++) centre[c] = (T)(mean[c] / n), mean[c] = 0;
        for (int64_t i = b->from; i < b->to; i++) {
            OVER_CHANNELS(p.c, F(add_square), run, squares, centre, of, dtype, i * p.c);
            if (!F(ends_run)(b, i)) continue;
            F(end_run)(mean, run, p.c);
            F(end_run)(square, squares, p.c);
        }
        for (int64_t c = 0; c < p.c; c++) {
            const double rest = mean[c] / n, around = square[c] - mean[c] * rest;
            mean[c] = (double)centre[c] + rest;
            square[c] = around < 0 ? 0 : around; /* for equal numbers the sum would be rounding errors */
        }
    }
}

/* The statistics of a group of a segment: blocks are merged in order, in double; the mean in two passes, as in
   statistics(). */
VEC_INLINE void F(merge)(const struct rw_groups *g, const double *parts, int64_t s, int64_t group, T *mean, T *var)
{
    const int64_t first = group * g->width, count = g->rows * g->width;
    double centre = 0, rest = 0, square = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t b = 0; b < g->blocks; b++) {
            const int64_t left = g->rows - b * g->block;
            const double n = (double)(left < g->block ? left : g->block);
            const double *const part = parts + (s * g->blocks + b) * 2 * g->c;
            for (int64_t c = first; c < first + g->width; c++) {
                const double d = part[c] - centre;
                rest += n * d;
                if (pass) square += part[g->c + c] + n * d * d;
            }
        }
        if (!pass) centre = rest / (double)count, rest = 0;
    }
    rest /= (double)count;
    const double around = square / (double)count - rest * rest;
    *mean = count ? (T)(centre + rest) : 0;
    const T mean_square = count ? (T)(around < 0 ? 0 : around) : 0;
    *var = mean_square < (T)INFINITY ? mean_square : (T)NAN; /* not infinity: results would be the bias */
}

/* A segment's coefficients for each channel: its mean, and 1 / sqrt(var + eps). */
VEC_INLINE void F(coefficients)(const struct rw_groups *g, const T *mean, const T *var, int64_t s, T *to)
{
    for (int64_t c = 0; c < g->c; c++) {
        const int64_t i = s * g->groups + c / g->width;
        to[c] = mean[i];
        to[g->c + c] = 1 / (T)sqrt((double)var[i] + g->eps);
    }
}

/* The other factors of results, in two lines: the weight times 1 / sqrt(var + eps), and the bias. */
VEC_INLINE void F(lines)(const struct rw_groups *g, const void *weight, const void *bias, rw_dtype dtype, const T *r,
                         T *to)
{
    for (int64_t c = 0; c < g->c; c++) {
        to[c] = F(element)(weight, dtype, c) * r[c];
        to[g->c + c] = F(element)(bias, dtype, c);
    }
}

/*
 * The operands of a row: x, dy or the addend, and the result. The coefficients of each channel: mean, 1 / sqrt(var +
 * eps), and two more. The two lines of a result that is recomputed. The two lines of a block's sums. For a
 * concatenation input of x, addresses are those of its first channel. A step gets the start of the row in x, and its
 * start in the other operands.
 */
struct F(row) {
    const void *x, *dy;
    void *to;
    const T *mean, *r;
    T *a, *b;
    const T *scale, *bias;
    double *sum, *product;
};

VEC_INLINE struct F(row) F(row_of)(struct F(row) row, const struct rw_groups_piece *p)
{
    const int64_t c = p->first;
    return (struct F(row)){ p->x->data, row.dy, row.to, row.mean + c, row.r + c, row.a + c, row.b + c, row.scale + c,
                            row.bias + c, row.sum + c, row.product + c };
}

/* dy, but 0 where a relu follows and the result, rounded to its type, is at most 0. */
VEC_INLINE V F(upstream)(const struct F(row) *k, bool relu, rw_dtype dtype, int64_t in_x, int64_t at, int64_t c,
                         int64_t n)
{
    const V dy = F(load)(k->dy, dtype, at + c, n);
    if (!relu) return dy;
    const V d = F(load)(k->x, dtype, in_x + c, n) - F(load)(k->mean, OWN, c, n);
    const V y = d * F(load)(k->scale, OWN, c, n) + F(load)(k->bias, OWN, c, n);
    return F(unless_up_to)(y, (T)rw_groups_rounds_to_zero(dtype), dy);
}

/* Rounded before the addend is added, as by a separate op. The result may be written over either operand. */
VEC_INLINE void F(normalise_row)(const struct F(row) *k, bool adds, bool relu, rw_dtype dtype, int64_t in_x,
                                 int64_t at, int64_t c, int64_t n)
{
    const V d = F(load)(k->x, dtype, in_x + c, n) - F(load)(k->mean, OWN, c, n);
    V y = d * F(load)(k->a, OWN, c, n) + F(load)(k->b, OWN, c, n);
    if (adds) {
        const V more = F(load)(k->dy, dtype, at + c, n);
        if (dtype != OWN) {
            F(save)(k->to, dtype, at + c, n, y);
            y = F(load)(k->to, dtype, at + c, n);
        }
        y += more;
    }
    F(save)(k->to, dtype, at + c, n, relu ? F(relu)(y) : y);
}

VEC_INLINE void F(normalise_rows)(const struct rw_groups *g, const struct F(row) *row, bool adds, bool relu,
                                  rw_dtype dtype, const struct F(block) *b, const struct rw_groups_piece *p)
{
    for (int64_t i = b->from; i < b->to; i++)
        OVER_CHANNELS(p->c, F(normalise_row), row, adds, relu, dtype, i * p->c, i * g->c + p->first);
}

/* Normalizes the rows of a block, one concatenation input of x after the other. */
VEC_INLINE void F(normalise)(const struct rw_groups *g, const rw_kernel *k, rw_dtype dtype, const struct F(block) *b)
{
    T *const weight = b->of_segment + 2 * g->c, *const bias = weight + g->c;
    const int added = rw_groups_added(g);
    const bool adds = rw_kernel_has(k, added);
    const struct F(row) all = { .dy = adds ? k->in[added].data : NULL, .to = k->out[0].data, .mean = b->of_segment,
                                .r = b->of_segment + g->c, .a = weight, .b = bias, .scale = weight, .bias = bias,
                                .sum = b->part, .product = b->part };
    for (struct rw_groups_piece p = rw_groups_begin(g, k->in); p.left; rw_groups_next(&p)) {
        const struct F(row) row = F(row_of)(all, &p);
        if (adds && g->relu) F(normalise_rows)(g, &row, true, true, dtype, b, &p);
        else if (adds) F(normalise_rows)(g, &row, true, false, dtype, b, &p);
        else if (g->relu) F(normalise_rows)(g, &row, false, true, dtype, b, &p);
        else F(normalise_rows)(g, &row, false, false, dtype, b, &p);
    }
}

VEC_INLINE void F(add_row)(const struct F(row) *k, bool relu, rw_dtype dtype, int64_t in_x, int64_t at, int64_t c,
                           int64_t n)
{
    const V dy = F(upstream)(k, relu, dtype, in_x, at, c, n);
    const V d = F(load)(k->x, dtype, in_x + c, n) - F(load)(k->mean, OWN, c, n);
    F(save)(k->a, OWN, c, n, F(load)(k->a, OWN, c, n) + dy);
    F(save)(k->b, OWN, c, n, F(load)(k->b, OWN, c, n) + dy * (d * F(load)(k->r, OWN, c, n)));
}

VEC_INLINE struct F(row) F(backward_row)(const struct rw_groups *g, const rw_kernel *k, const struct F(block) *b)
{
    const T *const mean = b->of_segment, *const scale = mean + RW_GROUPS_LINES * g->c;
    return (struct F(row)){ .dy = k->in[0].data, .to = k->out[0].data, .mean = mean, .r = mean + g->c,
                            .a = b->run, .b = b->run + g->c, .scale = scale, .bias = scale + g->c,
                            .sum = b->part, .product = b->part + g->c };
}

VEC_INLINE void F(sum_rows)(const struct rw_groups *g, const struct F(row) *row, bool relu, rw_dtype dtype,
                            const struct F(block) *b, const struct rw_groups_piece *p)
{
    F(begin_sum)(row->sum, row->a, p->c);
    F(begin_sum)(row->product, row->b, p->c);
    for (int64_t i = b->from; i < b->to; i++) {
        OVER_CHANNELS(p->c, F(add_row), row, relu, dtype, i * p->c, i * g->c + p->first);
        if (!F(ends_run)(b, i)) continue;
        F(end_run)(row->sum, row->a, p->c);
        F(end_run)(row->product, row->b, p->c);
    }
}

/* The sums over each channel of dy, and of dy times the normalized x. */
VEC_INLINE void F(sums)(const struct rw_groups *g, const rw_kernel *k, rw_dtype dtype, const struct F(block) *b)
{
    const struct F(row) all = F(backward_row)(g, k, b);
    const rw_view *const x = k->in + rw_groups_backward_x(g->relu);
    for (struct rw_groups_piece p = rw_groups_begin(g, x); p.left; rw_groups_next(&p)) {
        const struct F(row) row = F(row_of)(all, &p);
        if (g->relu) F(sum_rows)(g, &row, true, dtype, b, &p);
        else F(sum_rows)(g, &row, false, dtype, b, &p);
    }
}

/* Adds the blocks' sums in order: those of a segment are stored next to its coefficients, those of all go to dbias and
   dweight. */
VEC_INLINE void F(merge_sums)(const struct rw_groups *g, const rw_kernel *k, rw_dtype dtype, const double *parts,
                              int64_t lines, T *coefficients)
{
    for (int64_t c = 0; c < g->c; c++) {
        double bias = 0, weight = 0;
        for (int64_t s = 0; s < g->segments; s++) {
            double sum = 0, product = 0;
            for (int64_t b = 0; b < g->blocks; b++) {
                const double *const part = parts + (s * g->blocks + b) * 2 * g->c;
                sum += part[c];
                product += part[g->c + c];
            }
            T *const to = coefficients + (s * lines + 2) * g->c;
            to[c] = (T)sum;
            to[g->c + c] = (T)product;
            bias += sum;
            weight += product;
        }
        F(store)(k->out[1].data, dtype, c, (T)weight);
        F(store)(k->out[2].data, dtype, c, (T)bias);
    }
}

/* Means over the groups of a segment of h = dy weight, and of h times the normalized x; they replace the channels'
   sums. */
VEC_INLINE void F(mean_sums)(const struct rw_groups *g, const rw_kernel *k, rw_dtype dtype, T *to)
{
    const double count = (double)(g->rows * g->width);
    for (int64_t first = 0; first < g->c; first += g->width) {
        double h = 0, hx = 0;
        for (int64_t c = first; c < first + g->width; c++) {
            const double w = (double)F(element)(k->in[1].data, dtype, c);
            h += w * (double)to[c];
            hx += w * (double)to[g->c + c];
        }
        for (int64_t c = first; c < first + g->width; c++) {
            to[c] = (T)(h / count);
            to[g->c + c] = (T)(hx / count);
        }
    }
}

/* dx of a row. a: the weight, in the memory of the block's runs; h and hx: the means of mean_sums(). Given statistics
   contribute nothing, not even zeros, which times an infinite x would be NaN. */
VEC_INLINE void F(slope_row)(const struct F(row) *k, const T *h, const T *hx, bool given, bool relu, rw_dtype dtype,
                             int64_t in_x, int64_t at, int64_t c, int64_t n)
{
    const V r = F(load)(k->r, OWN, c, n);
    V dy = F(upstream)(k, relu, dtype, in_x, at, c, n) * F(load)(k->a, OWN, c, n);
    if (!given) {
        const V xh = (F(load)(k->x, dtype, in_x + c, n) - F(load)(k->mean, OWN, c, n)) * r;
        dy = dy - F(load)(h, OWN, c, n) - xh * F(load)(hx, OWN, c, n);
    }
    F(save)(k->to, dtype, at + c, n, r * dy);
}

VEC_INLINE void F(slope_rows)(const struct rw_groups *g, const struct F(row) *row, bool relu, rw_dtype dtype,
                              const struct F(block) *b, const struct rw_groups_piece *p)
{
    const T *const h = row->r + g->c, *const hx = h + g->c;
    for (int64_t i = b->from; i < b->to; i++)
        OVER_CHANNELS(p->c, F(slope_row), row, h, hx, g->given, relu, dtype, i * p->c, i * g->c + p->first);
}

VEC_INLINE void F(slope)(const struct rw_groups *g, const rw_kernel *k, rw_dtype dtype, const struct F(block) *b)
{
    const struct F(row) all = F(backward_row)(g, k, b);
    const rw_view *const x = k->in + rw_groups_backward_x(g->relu);
    for (int64_t c = 0; c < g->c; c++) all.a[c] = F(element)(k->in[1].data, dtype, c);
    for (struct rw_groups_piece p = rw_groups_begin(g, x); p.left; rw_groups_next(&p)) {
        const struct F(row) row = F(row_of)(all, &p);
        if (g->relu) F(slope_rows)(g, &row, true, dtype, b, &p);
        else F(slope_rows)(g, &row, false, dtype, b, &p);
    }
}

/* The units of a pass: the blocks of all segments. */
struct F(units) {
    const rw_kernel *k;
    rw_dtype type;
    const struct rw_groups *g;
    int64_t lines;
};

/* A pass over some units, as a function on a range for the team of threads. */
#define RANGE(name, call)                                                                \
    static void F(name)(void *of, int64_t first, int64_t end)                            \
    {                                                                                    \
        const struct F(units) *const u = of;                                             \
        const rw_dtype type = u->type;                                                   \
        for (int64_t i = first; i < end; i++) {                                          \
            const struct F(block) b = F(block_of)(u->g, u->lines, u->k->workspace, i);   \
            OF_TYPE(call)                                                                \
        }                                                                                \
    }

RANGE(statistics_of, F(statistics)(u->g, u->k->in, dtype, &b))
RANGE(normalise_some, F(normalise)(u->g, u->k, dtype, &b))
RANGE(sums_of, F(sums)(u->g, u->k, dtype, &b))
RANGE(slopes_of, F(slope)(u->g, u->k, dtype, &b))
#undef RANGE

/* Forward: statistics of blocks, their merge, then the results. */
static void F(forward)(const rw_kernel *k, rw_dtype type, const struct rw_groups *g, int threads)
{
    const int64_t lines = RW_GROUPS_LINES;
    T *const coefficients = k->workspace;
    double *const parts = F(parts_of)(g, lines, k->workspace);
    const int64_t units = g->segments * g->blocks;
    const struct F(units) u = { k, type, g, lines };
    const int weight = rw_groups_weight(g);
    const T *const mean = g->given ? k->in[weight + 2].data : k->out[1].data;
    const T *const var = g->given ? k->in[weight + 3].data : k->out[2].data;
    if (!g->given) {
        rw_team_for(threads, units, F(statistics_of), &u);
        for (int64_t i = 0; i < g->segments * g->groups; i++)
            F(merge)(g, parts, i / g->groups, i % g->groups, (T *)k->out[1].data + i, (T *)k->out[2].data + i);
    }
    for (int64_t s = 0; s < g->segments; s++) {
        T *const of = coefficients + s * lines * g->c;
        F(coefficients)(g, mean, var, s, of);
        F(lines)(g, k->in[weight].data, k->in[weight + 1].data, type, of + g->c, of + 2 * g->c);
    }
    rw_team_for(threads, units, F(normalise_some), &u);
}

/* Backward: sums of blocks, their merge, means of groups, then dx. */
static void F(backward)(const rw_kernel *k, rw_dtype type, const struct rw_groups *g, int threads)
{
    const int64_t lines = g->relu ? RW_GROUPS_LINES_OF_RELU : RW_GROUPS_LINES;
    T *const coefficients = k->workspace;
    double *const parts = F(parts_of)(g, lines, k->workspace);
    const int64_t units = g->segments * g->blocks;
    const struct F(units) u = { k, type, g, lines };
    for (int64_t s = 0; s < g->segments; s++) {
        T *const of = coefficients + s * lines * g->c;
        F(coefficients)(g, k->in[2].data, k->in[3].data, s, of);
        if (g->relu)
            F(lines)(g, k->in[1].data, k->in[4].data, type, of + g->c, of + RW_GROUPS_LINES * g->c);
    }
    rw_team_for(threads, units, F(sums_of), &u);
    F(merge_sums)(g, k, type, parts, lines, coefficients);
    for (int64_t s = 0; s < g->segments; s++) F(mean_sums)(g, k, type, coefficients + (s * lines + 2) * g->c);
    rw_team_for(threads, units, F(slopes_of), &u);
}

VEC_INLINE void F(update)(const rw_kernel *k)
{
    const struct rw_running_attrs *const a = k->attrs;
    const T *const mean = k->in[0].data, *const var = k->in[1].data;
    T *const to_mean = k->out[0].data, *const to_var = k->out[1].data;
    T *const batches = k->n_outputs > 2 ? k->out[2].data : NULL;
    const T m = batches ? 1 / (*batches + 1) : (T)a->momentum, unbiased = (T)a->unbiased;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) {
        to_mean[i] = (1 - m) * to_mean[i] + m * mean[i];
        to_var[i] = (1 - m) * to_var[i] + m * (unbiased * var[i]);
    }
    if (batches) *batches += 1;
}

#undef LANES
#undef OWN
#undef OVER_CHANNELS
#undef OF_TYPE
