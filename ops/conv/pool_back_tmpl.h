/*
 * A row of the gradient of pooling, for one type of arithmetic T in vectors V. Included by pool_cpu.c in the same way
 * as pool_tmpl.h. Windows are processed in order, and each adds its contribution to the sums of the elements under it,
 * which stay in the cache. So values that belong to a window, such as an average's quotient, are computed once. The sum
 * of an element has the same order as if it collected the contributions of its windows one by one.
 *
 *     z            z + n         elements of the row, `pitch` numbers of each: its channels, in whole vectors
 *     +------+------+
 *     | sums |      |            for oy over the row: for ox over [z, z + n): add
 *     +------+------+
 */

/* A part of a row: elements [from, end), channels [c, c + n). */
struct F(share) {
    T *sum;
    int64_t image, from, end, c, n, pitch;
};

/* Adds the contribution of one window to the elements of the part that are under it. */
VEC_INLINE void F(add_window)(const struct rw_pool *p, const struct pool_operands *o, rw_dtype dtype, bool max,
                              const struct F(share) *s, int64_t oy, int64_t ox, int64_t row_place)
{
    const int64_t apart = p->a.dilation[1], begin = rw_pool_begin(p, 1, ox), most = rw_pool_end(p, 1, ox);
    const int64_t end = most < s->end ? most : s->end, before = s->from - begin;
    const int64_t first = before > 0 ? (apart == 1 ? before : (before + apart - 1) / apart) : 0;
    const int64_t at = ((s->image * p->oh + oy) * p->ow + ox) * p->c + s->c;
    const T count = max ? 1 : (T)rw_pool_count(p, oy, ox);
    for (int64_t i = 0; i < s->n; i += WIDTH) {
        const int64_t lanes = s->n - i < WIDTH ? s->n - i : WIDTH;
        V dy = F(load)(o->x, dtype, at + i, lanes);
        if (!max) dy /= count;
        const M places = max ? F(places)(o->places + at + i, lanes) : (M){ 0 };
        int64_t place = row_place * p->a.kernel[1] + first;
        for (int64_t z = begin + first * apart; z < end; z += apart, place++) {
            V *const sum = (V *)(s->sum + (z - s->from) * s->pitch + i);
            *sum += max ? (V)((M)dy & (M)(places == (I)place)) : (V)dy;
        }
    }
}

/* Computes a part of a row: zeros the sums, adds all windows over them, and stores them. */
VEC_INLINE void F(back_share)(const struct rw_pool *p, const struct pool_operands *o, rw_dtype dtype, bool max,
                              const struct F(share) *s, int64_t row)
{
    const int64_t y = row % p->h;
    const struct rw_pool_range ys = rw_pool_over(p, 0, y), first = rw_pool_over(p, 1, s->from);
    const struct rw_pool_range last = rw_pool_over(p, 1, s->end - 1);
    memset(s->sum, 0, (size_t)((s->end - s->from) * s->pitch) * sizeof(T));
    for (int64_t oy = ys.from; oy < ys.to; oy++) {
        const int64_t place = rw_pool_place(p, 0, oy, y);
        for (int64_t ox = first.from; place >= 0 && ox < last.to; ox++)
            F(add_window)(p, o, dtype, max, s, oy, ox, place);
    }
    for (int64_t z = s->from; z < s->end; z++)
        for (int64_t i = 0; i < s->n; i += WIDTH)
            F(save)(o->to, dtype, (row * p->w + z) * p->c + s->c + i, s->n - i < WIDTH ? s->n - i : WIDTH,
                    *(const V *)(s->sum + (z - s->from) * s->pitch + i));
}

VEC_INLINE void F(back_row)(const struct rw_pool *p, const struct pool_operands *o, rw_dtype dtype, bool max,
                            int64_t row)
{
    T sum[SUMS];
    for (int64_t c = 0; c < p->c; c += LANES) {
        const int64_t n = p->c - c < LANES ? p->c - c : LANES, pitch = (n + WIDTH - 1) / WIDTH * WIDTH;
        const int64_t some = SUMS / pitch;
        for (int64_t z = 0; z < p->w; z += some) {
            const int64_t end = z + some < p->w ? z + some : p->w;
            const struct F(share) s = { sum, row / p->h, z, end, c, n, pitch };
            F(back_share)(p, o, dtype, max, &s, row);
        }
    }
}
