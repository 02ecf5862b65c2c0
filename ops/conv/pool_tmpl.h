/*
 * A row of one of the ops of pool.h, for one type of arithmetic T. Included by pool_cpu.c with T = float and again with
 * T = double; F builds the names of these functions. Channels are adjacent and independent: LANES of them are processed
 * at a time.
 */
VEC_INLINE void F(take)(T *to, const void *p, rw_dtype dtype, int64_t at, int64_t n)
{
    if (dtype == RW_F64)
        for (int64_t l = 0; l < n; l++) to[l] = (T)((const double *)p)[at + l];
    else
        for (int64_t l = 0; l < n; l++) to[l] = (T)f_get(p, dtype, at + l);
}

VEC_INLINE void F(give)(void *p, rw_dtype dtype, int64_t at, int64_t n, const T *x)
{
    if (dtype == RW_F64)
        for (int64_t l = 0; l < n; l++) ((double *)p)[at + l] = (double)x[l];
    else
        for (int64_t l = 0; l < n; l++) f_put(p, dtype, at + l, (float)x[l]);
}

/* The first of the largest; NaN counts as the largest. */
VEC_INLINE void F(most)(T *best, int32_t *place, const T *x, int32_t here, int64_t n, bool first)
{
    for (int64_t l = 0; l < n; l++) {
        const bool more = first || x[l] > best[l] || x[l] != x[l];
        best[l] = more ? x[l] : best[l];
        place[l] = more ? here : place[l];
    }
}

/* The maximum of a window and its position, for n channels. */
VEC_INLINE void F(max_window)(const struct rw_pool *p, const struct pool_operands *o, rw_dtype dtype, int64_t image,
                              int64_t oy, int64_t ox, int64_t c, int64_t n)
{
    const struct rw_pool_range ys = rw_pool_inside(p, 0, oy), xs = rw_pool_inside(p, 1, ox);
    const int64_t at = ((image * p->oh + oy) * p->ow + ox) * p->c + c;
    T best[LANES] = { 0 }, x[LANES] = { 0 };
    int32_t place[LANES] = { 0 };
    bool first = true;
    for (int64_t y = ys.from; y < ys.to; y += p->a.dilation[0])
        for (int64_t z = xs.from; z < xs.to; z += p->a.dilation[1], first = false) {
            F(take)(x, o->x, dtype, ((image * p->h + y) * p->w + z) * p->c + c, n);
            F(most)(best, place, x,
                    (int32_t)(rw_pool_place(p, 0, oy, y) * p->a.kernel[1] + rw_pool_place(p, 1, ox, z)), n, first);
        }
    for (int64_t l = 0; first && l < n; l++) best[l] = -(T)INFINITY; /* all padding */
    F(give)(o->to, dtype, at, n, best);
    for (int64_t l = 0; l < n; l++) o->places[at + l] = (unsigned char)place[l];
}

/* The mean of `many` vectors of channels; n lanes of each. */
VEC_INLINE void F(avg_window)(const struct rw_pool *p, const struct pool_operands *o, rw_dtype dtype, int64_t image,
                              struct rw_pool_range ys, struct rw_pool_range xs, T count, int64_t to, int64_t c,
                              int many, int64_t n)
{
    V sum[MANY] = { { 0 } };
    for (int64_t y = ys.from; y < ys.to; y++)
        for (int64_t z = xs.from; z < xs.to; z++) {
            const int64_t at = ((image * p->h + y) * p->w + z) * p->c + c;
            for (int i = 0; i < many; i++) sum[i] += F(load)(o->x, dtype, at + i * WIDTH, n);
        }
    for (int i = 0; i < many; i++) F(save)(o->to, dtype, to + c + i * WIDTH, n, sum[i] / count);
}

VEC_INLINE void F(avg_row)(const struct rw_pool *p, const struct pool_operands *o, rw_dtype dtype, int64_t row)
{
    const int64_t image = row / p->oh, oy = row % p->oh;
    const struct rw_pool_range ys = rw_pool_inside(p, 0, oy);
    for (int64_t ox = 0; ox < p->ow; ox++) {
        const struct rw_pool_range xs = rw_pool_inside(p, 1, ox);
        const T count = (T)rw_pool_count(p, oy, ox);
        const int64_t to = (row * p->ow + ox) * p->c;
        int64_t c = 0;
        for (; c + MANY * WIDTH <= p->c; c += MANY * WIDTH)
            F(avg_window)(p, o, dtype, image, ys, xs, count, to, c, MANY, WIDTH);
        for (; c + WIDTH <= p->c; c += WIDTH) F(avg_window)(p, o, dtype, image, ys, xs, count, to, c, 1, WIDTH);
        if (c < p->c) F(avg_window)(p, o, dtype, image, ys, xs, count, to, c, 1, p->c - c);
    }
}

VEC_INLINE void F(pick)(const struct rw_pool *p, const struct pool_operands *o, rw_dtype dtype, int64_t image,
                        int64_t oy, int64_t ox, int64_t c, int64_t n)
{
    const int64_t at = ((image * p->oh + oy) * p->ow + ox) * p->c + c;
    for (int64_t l = 0; l < n; l++) {
        const int64_t y = rw_pool_at(p, 0, oy, o->places[at + l] / p->a.kernel[1]);
        const int64_t z = rw_pool_at(p, 1, ox, o->places[at + l] % p->a.kernel[1]);
        T x = 0;
        if (y >= 0 && y < p->h && z >= 0 && z < p->w)
            F(take)(&x, o->x, dtype, ((image * p->h + y) * p->w + z) * p->c + c + l, 1);
        F(give)(o->to, dtype, at + l, 1, &x);
    }
}

VEC_INLINE void F(pick_row)(const struct rw_pool *p, const struct pool_operands *o, rw_dtype dtype, int64_t row)
{
    for (int64_t x = 0; x < p->ow; x++)
        for (int64_t c = 0; c < p->c; c += LANES)
            F(pick)(p, o, dtype, row / p->oh, row % p->oh, x, c, p->c - c < LANES ? p->c - c : LANES);
}

VEC_INLINE void F(max_rest)(const struct rw_pool *p, const struct pool_operands *o, rw_dtype dtype, int64_t image,
                            int64_t oy, int64_t ox, int64_t c)
{
    for (; c < p->c; c += LANES)
        F(max_window)(p, o, dtype, image, oy, ox, c, p->c - c < LANES ? p->c - c : LANES);
}
