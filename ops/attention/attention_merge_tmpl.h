/*
 * Merges rows of two attentions in one type of arithmetic: included by attention_merge_cpu.c with T = float and T =
 * double.
 */

/* The weights of the two sets and the merged log-sum-exp. A set of weight 0 is not read: it may hold NaN or infinity,
   and 0 times those is NaN. */
struct F(weights) {
    T a, b, lse;
};

static struct F(weights) F(weigh)(T a, T b)
{
    const T most = a > b ? a : b, x = F(exp_one)(a - most), y = F(exp_one)(b - most), sum = x + y;
    if (most == -(T)INFINITY) return (struct F(weights)){ 0, 0, most };
    return (struct F(weights)){ x / sum, y / sum, most + F(log_one)(sum) };
}

VEC_INLINE T F(get_at)(const rw_view *x, rw_dtype dtype, int64_t i)
{
    return dtype == RW_F64 ? (T)((const double *)x->data)[i] : (T)f_get(x->data, dtype, i);
}

/* An element of a set with a weight, or 0. */
VEC_INLINE T F(read)(const rw_view *x, rw_dtype dtype, int64_t i, T weight)
{
    return weight == 0 ? 0 : F(get_at)(x, dtype, i);
}

VEC_INLINE void F(put_at)(const rw_view *y, rw_dtype dtype, int64_t i, T x)
{
    if (dtype == RW_F64) ((double *)y->data)[i] = (double)x;
    else f_put(y->data, dtype, i, (float)x);
}

static struct F(weights) F(weights_of)(const rw_kernel *k, int64_t row)
{
    const T a = ((const T *)k->in[2].data)[offset_of(k->in[2].layout, k->in[2].layout->rank, row)];
    return F(weigh)(a, ((const T *)k->in[3].data)[offset_of(k->in[3].layout, k->in[3].layout->rank, row)]);
}

VEC_INLINE void F(merge_row)(const rw_kernel *k, rw_dtype dtype, int64_t row)
{
    const struct F(weights) w = F(weights_of)(k, row);
    const struct row a = row_of(&k->in[0], row), b = row_of(&k->in[1], row);
    for (int64_t i = 0; i < a.d; i++)
        F(put_at)(&k->out[0], dtype, row * a.d + i, w.a * F(read)(&k->in[0], dtype, a.from + i * a.step, w.a) +
                                                     w.b * F(read)(&k->in[1], dtype, b.from + i * b.step, w.b));
    ((T *)k->out[1].data)[row] = w.lse;
}

/* Each sum is one chain, in order. */
VEC_INLINE void F(backward_row)(const rw_kernel *k, rw_dtype dtype, int64_t row)
{
    const struct F(weights) w = F(weights_of)(k, row);
    const struct row a = row_of(&k->in[0], row), b = row_of(&k->in[1], row), dy = row_of(&k->in[4], row);
    T of_a = 0, of_b = 0, flow = 0;
    for (int64_t i = 0; i < a.d; i++) {
        const T up = F(get_at)(&k->in[4], dtype, dy.from + i * dy.step);
        of_a += up * F(read)(&k->in[0], dtype, a.from + i * a.step, w.a);
        of_b += up * F(read)(&k->in[1], dtype, b.from + i * b.step, w.b);
        F(put_at)(&k->out[0], dtype, row * a.d + i, w.a * up);
        F(put_at)(&k->out[1], dtype, row * a.d + i, w.b * up);
    }
    if (k->n_inputs == 6)
        flow = ((const T *)k->in[5].data)[offset_of(k->in[5].layout, k->in[5].layout->rank, row)];
    ((T *)k->out[2].data)[row] = w.a * (w.b * (of_a - of_b) + flow);
    ((T *)k->out[3].data)[row] = w.b * (w.a * (of_b - of_a) + flow);
}
