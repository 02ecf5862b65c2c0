/* Rows of tokens in one type of arithmetic: included by moe_rows_cpu.c with T = float and T = double. */

VEC_INLINE T F(get)(const void *p, rw_dtype dtype, int64_t i)
{
    return dtype == RW_F64 ? (T)((const double *)p)[i] : (T)f_get(p, dtype, i);
}

VEC_INLINE void F(put)(void *p, rw_dtype dtype, int64_t i, T x)
{
    if (dtype == RW_F64) ((double *)p)[i] = (double)x;
    else f_put(p, dtype, i, (float)x);
}

VEC_INLINE void F(weigh)(const rw_kernel *k, rw_dtype dtype, int64_t row)
{
    const int64_t n = k->in[0].layout->dim[1], slots = k->in[1].layout->numel;
    const T w = ((const T *)k->in[1].data)[rw_moe_within(((const int32_t *)k->in[2].data)[row], slots)];
    for (int64_t i = row * n; i < (row + 1) * n; i++)
        F(put)(k->out[0].data, dtype, i, w * F(get)(k->in[0].data, dtype, i));
}

/* Sixteen chains, element i in chain i mod 16, added up in order. */
VEC_INLINE void F(dot)(const rw_kernel *k, rw_dtype dtype, int64_t slot)
{
    const int64_t n = k->in[0].layout->dim[1];
    const int64_t at = rw_moe_within(((const int32_t *)k->in[2].data)[slot], k->in[0].layout->dim[0]) * n;
    T sum[16] = { 0 }, total = 0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++)
            sum[l] += F(get)(k->in[0].data, dtype, at + i + l) * F(get)(k->in[1].data, dtype, at + i + l);
    for (int l = 0; i + l < n; l++)
        sum[l] += F(get)(k->in[0].data, dtype, at + i + l) * F(get)(k->in[1].data, dtype, at + i + l);
    for (int l = 0; l < 16; l++) total += sum[l];
    ((T *)k->out[0].data)[slot] = total;
}
