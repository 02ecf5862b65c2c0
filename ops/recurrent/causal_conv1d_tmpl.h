/*
 * The loops of causal_conv1d for one type of arithmetic T. Included by causal_conv1d_cpu.c with T = float and again
 * with T = double; F builds the names of these functions. Channels are adjacent and independent: LANES of them are
 * processed at a time, in native vectors N.
 */
/* Loads n <= LANES elements that are `stride` apart; dtype is a constant after inlining. */
VEC_INLINE void F(take)(T *to, const void *p, rw_dtype dtype, int64_t at, int64_t stride, int64_t n)
{
    if (dtype == RW_F64)
        for (int64_t i = 0; i < n; i++) to[i] = (T)((const double *)p)[at + i * stride];
    else if (stride == 1)
        for (int64_t i = 0; i < n; i++) to[i] = (T)f_get(p, dtype, at + i);
    else
        for (int64_t i = 0; i < n; i++) to[i] = (T)f_get(p, dtype, at + i * stride);
}

VEC_INLINE void F(give)(void *p, rw_dtype dtype, int64_t at, int64_t n, const T *x)
{
    if (dtype == RW_F64)
        for (int64_t i = 0; i < n; i++) ((double *)p)[at + i] = (double)x[i];
    else
        for (int64_t i = 0; i < n; i++) f_put(p, dtype, at + i, (float)x[i]);
}

/* Transposes the weights [c, taps] to [taps, c]. */
VEC_INLINE void F(transpose)(const struct rw_causal_conv1d *j, const void *weight, rw_dtype dtype, T *to)
{
    for (int64_t c = 0; c < j->c; c++)
        for (int64_t tap = 0; tap < j->taps; tap++)
            F(take)(to + tap * j->c + c, weight, dtype, c * j->taps + tap, 1, 1);
}

/* The place that tap `tap` of place t reads; outside of [0, l) there are zeros. */
VEC_INLINE int64_t F(place)(const struct rw_causal_conv1d *j, int64_t t, int64_t tap)
{
    return t + j->step * (j->taps - 1 - tap);
}

/* LANES channels of a row of y, if they are adjacent in x, too: the sums stay in registers. */
VEC_INLINE void F(whole_block)(const struct rw_causal_conv1d *j, const struct conv_operands *o, rw_dtype dtype,
                               int64_t row, int64_t c)
{
    const int64_t batch = row / j->l, t = row % j->l;
    const T *const weight = (const T *)o->transposed + c;
    N sum[LANES / N_LANES] = { 0 };
    for (int v = 0; v < LANES / N_LANES && o->bias; v++) sum[v] = F(get_lanes)(o->bias, dtype, c + v * N_LANES);
    for (int64_t tap = 0; tap < j->taps; tap++) {
        const int64_t at = F(place)(j, t, tap), x = batch * j->x[0] + at * j->x[1] + c;
        if (at < 0 || at >= j->l) continue;
        for (int v = 0; v < LANES / N_LANES; v++)
            sum[v] += *(const N *)(weight + tap * j->c + v * N_LANES) * F(get_lanes)(o->x, dtype, x + v * N_LANES);
    }
    for (int v = 0; v < LANES / N_LANES; v++) F(put_lanes)(o->to, dtype, row * j->c + c + v * N_LANES, sum[v]);
}

/* n channels of a row of y; n is a constant for whole blocks. */
VEC_INLINE void F(block)(const struct rw_causal_conv1d *j, const struct conv_operands *o, rw_dtype dtype, int64_t row,
                         int64_t c, int64_t n)
{
    const int64_t batch = row / j->l, t = row % j->l;
    const T *const weight = o->transposed;
    T sum[LANES] = { 0 }, x[LANES];
    if (o->bias) F(take)(sum, o->bias, dtype, c, 1, n);
    for (int64_t tap = 0; tap < j->taps; tap++) {
        const int64_t at = F(place)(j, t, tap);
        if (at < 0 || at >= j->l) continue;
        F(take)(x, o->x, dtype, batch * j->x[0] + at * j->x[1] + c * j->x[2], j->x[2], n);
        for (int64_t i = 0; i < n; i++) sum[i] += weight[tap * j->c + c + i] * x[i];
    }
    F(give)(o->to, dtype, row * j->c + c, n, sum);
}

VEC_INLINE void F(row)(const struct rw_causal_conv1d *j, const struct conv_operands *o, rw_dtype dtype, int64_t row)
{
    int64_t c = 0;
    for (; c + LANES <= j->c && j->x[2] == 1; c += LANES) F(whole_block)(j, o, dtype, row, c);
    for (; c + LANES <= j->c; c += LANES) F(block)(j, o, dtype, row, c, LANES);
    if (c < j->c) F(block)(j, o, dtype, row, c, j->c - c);
}

/* The rows of a part for one tap of LANES channels, if they are adjacent in x, too: a part's rows stay in the cache
   from tap to tap, and the sums in registers. */
VEC_INLINE void F(add_part)(const struct rw_causal_conv1d *j, const struct conv_operands *o, rw_dtype dtype, int64_t c,
                            int64_t first, int64_t end, int64_t tap, T *total)
{
    N sum[LANES / N_LANES] = { 0 };
    int64_t batch = first / j->l, t = first % j->l;
    for (int64_t row = first; row < end; row++) {
        const int64_t at = F(place)(j, t, tap), x = batch * j->x[0] + at * j->x[1] + c, dy = row * j->c + c;
        if (++t == j->l) t = 0, batch++;
        if (at < 0 || at >= j->l) continue;
        for (int v = 0; v < LANES / N_LANES; v++)
            sum[v] += F(get_lanes)(o->x, dtype, x + v * N_LANES) * F(get_lanes)(o->dy, dtype, dy + v * N_LANES);
    }
    for (int v = 0; v < LANES / N_LANES; v++) *(N *)(total + v * N_LANES) += sum[v];
}

/* n channels of a weight's gradient: rows in order, in parts of ROWS, whose sums are added in order. */
VEC_INLINE void F(columns)(const struct rw_causal_conv1d *j, const struct conv_operands *o, rw_dtype dtype, int64_t c,
                           int64_t n)
{
    T total[RW_CAUSAL_CONV1D_MAX][LANES] = { 0 };
    for (int64_t first = 0; first < j->b * j->l; first += ROWS) {
        const int64_t end = first + ROWS < j->b * j->l ? first + ROWS : j->b * j->l;
        if (n == LANES && j->x[2] == 1) {
            for (int64_t tap = 0; tap < j->taps; tap++) F(add_part)(j, o, dtype, c, first, end, tap, total[tap]);
            continue;
        }
        T part[RW_CAUSAL_CONV1D_MAX][LANES] = { 0 }, x[LANES], dy[LANES];
        for (int64_t row = first; row < end; row++) {
            F(take)(dy, o->dy, dtype, row * j->c + c, 1, n);
            for (int64_t tap = 0; tap < j->taps; tap++) {
                const int64_t at = F(place)(j, row % j->l, tap);
                if (at < 0 || at >= j->l) continue;
                F(take)(x, o->x, dtype, row / j->l * j->x[0] + at * j->x[1] + c * j->x[2], j->x[2], n);
                for (int64_t i = 0; i < n; i++) part[tap][i] += x[i] * dy[i];
            }
        }
        for (int64_t tap = 0; tap < j->taps; tap++)
            for (int64_t i = 0; i < n; i++) total[tap][i] += part[tap][i];
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t tap = 0; tap < j->taps; tap++) {
            T sum = 0;
            const int64_t at = (c + i) * j->taps + tap;
            if (o->sum) F(take)(&sum, o->sum, dtype, at, 1, 1);
            sum += total[tap][i];
            F(give)(o->to, dtype, at, 1, &sum);
        }
}

VEC_INLINE void F(strip)(const struct rw_causal_conv1d *j, const struct conv_operands *o, rw_dtype dtype, int64_t c)
{
    if (c + LANES <= j->c) F(columns)(j, o, dtype, c, LANES);
    else F(columns)(j, o, dtype, c, j->c - c);
}
