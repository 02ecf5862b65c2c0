/*
 * A row's activation and weighting on vectors N of T. No include guard. The includer sets T, N and N_LANES; F(name),
 * which builds names of the type's functions; GET(dtype, j, i, n), which loads n elements from i on of the row in
 * operand j; and PUT().
 */

typedef void (*F(act_fn))(const N *x, N *y, double a);

VEC_INLINE void F(act_weigh)(const struct act_row *r, rw_dtype dtype, int n, F(act_fn) act)
{
    const N w = F(all)((T)r->weight);
    for (int64_t i = 0; i < r->width; i += N_LANES) {
        const int64_t some = r->width - i < N_LANES ? r->width - i : N_LANES;
        N x[OPERANDS_MAX], h;
        fetch_ahead(r, dtype, n, 1, i);
        MAP_UNROLL
        for (int j = 0; j < n; j++) x[j] = GET(dtype, j, i, some);
        act(x, &h, 0);
        PUT(dtype, 0, i, some, w * h);
    }
}

/* Operand n is dy. The dot product of the activation with dy is stored by row in the workspace: with inconsistent
   routes a row's slot may have another row. */
VEC_INLINE void F(act_weigh_backward)(const struct act_row *r, rw_dtype dtype, int n, F(act_fn) act, F(act_fn) slopes)
{
    const N w = F(all)((T)r->weight);
    N chain[MOE_CHAINS / N_LANES];
    T sum[MOE_CHAINS], total = 0;
    for (int v = 0; v < MOE_CHAINS / N_LANES; v++) chain[v] = F(all)(0);
    for (int64_t i = 0; i < r->width; i += MOE_CHAINS) {
        for (int v = 0; v < MOE_CHAINS / N_LANES && i + v * N_LANES < r->width; v++) {
            const int64_t at = i + v * N_LANES, some = r->width - at < N_LANES ? r->width - at : N_LANES;
            N x[OPERANDS_MAX], y[OPERANDS_MAX], h;
            fetch_ahead(r, dtype, n + 1, n, at);
            MAP_UNROLL
            for (int j = 0; j <= n; j++) x[j] = GET(dtype, j, at, some);
            act(x, &h, 0);
            chain[v] += h * x[n];
            x[n] *= w;
            slopes(x, y, 0);
            MAP_UNROLL
            for (int j = 0; j < n; j++) PUT(dtype, j, at, some, y[j]);
        }
    }
    memcpy(sum, chain, sizeof sum);
    for (int l = 0; l < MOE_CHAINS; l++) total += sum[l];
    ((T *)r->k->workspace)[r->row] = total;
}

#undef T
#undef N
#undef N_LANES
#undef F
#undef GET
#undef PUT
