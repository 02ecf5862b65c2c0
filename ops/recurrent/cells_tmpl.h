/*
 * The recurrent cells for one vector type V of N lanes. Included by cells_cpu.c with V = nf and again with V = nd; F
 * builds the names of these functions, which process n <= N columns of a row. Results may overwrite operands:
 * everything is loaded first.
 */
VEC_INLINE V F(sigmoid)(V x)
{
    return 1 / (1 + F(exp)(-x));
}

VEC_INLINE void F(lstm)(const struct cell *c, rw_dtype dtype, int64_t row, int64_t col, int64_t n)
{
    const int64_t h = c->width, from = row * RW_LSTM_GATES * h + col, at = row * h + col;
    const V i = F(sigmoid)(F(load)(c->in[0], dtype, from, n)), f = F(sigmoid)(F(load)(c->in[0], dtype, from + h, n));
    const V a = F(tanh)(F(load)(c->in[0], dtype, from + 2 * h, n));
    const V o = F(sigmoid)(F(load)(c->in[0], dtype, from + 3 * h, n));
    const V next = f * F(load)(c->in[1], dtype, at, n) + i * a;
    F(save)(c->out[0], dtype, at, n, o * F(tanh)(next));
    F(save)(c->out[1], dtype, at, n, next);
}

/* The gradients of n columns of a row of an LSTM cell. */
VEC_INLINE void F(lstm_backward)(const struct cell *c, rw_dtype dtype, int64_t row, int64_t col, int64_t n)
{
    const int64_t h = c->width, from = row * RW_LSTM_GATES * h + col, at = row * h + col;
    const V i = F(sigmoid)(F(load)(c->in[0], dtype, from, n)), f = F(sigmoid)(F(load)(c->in[0], dtype, from + h, n));
    const V a = F(tanh)(F(load)(c->in[0], dtype, from + 2 * h, n));
    const V o = F(sigmoid)(F(load)(c->in[0], dtype, from + 3 * h, n)), before = F(load)(c->in[1], dtype, at, n);
    const V y = F(tanh)(f * before + i * a);
    V dh = { 0 }, dc = { 0 };
    if (c->dh) dh = F(load)(c->dh, dtype, at, n);
    if (c->dc) dc = F(load)(c->dc, dtype, at, n);
    dc += dh * o * (1 - y * y);
    F(save)(c->out[0], dtype, from, n, dc * a * i * (1 - i));
    F(save)(c->out[0], dtype, from + h, n, dc * before * f * (1 - f));
    F(save)(c->out[0], dtype, from + 2 * h, n, dc * i * (1 - a * a));
    F(save)(c->out[0], dtype, from + 3 * h, n, dh * y * o * (1 - o));
    F(save)(c->out[1], dtype, at, n, dc * f);
}

VEC_INLINE void F(gru)(const struct cell *c, rw_dtype dtype, int64_t row, int64_t col, int64_t n)
{
    const int64_t h = c->width, from = row * RW_GRU_GATES * h + col, at = row * h + col;
    const void *const x = c->in[0], *const y = c->in[1];
    const V r = F(sigmoid)(F(load)(x, dtype, from, n) + F(load)(y, dtype, from, n));
    const V z = F(sigmoid)(F(load)(x, dtype, from + h, n) + F(load)(y, dtype, from + h, n));
    const V a = F(tanh)(F(load)(x, dtype, from + 2 * h, n) + r * F(load)(y, dtype, from + 2 * h, n));
    F(save)(c->out[0], dtype, at, n, a + z * (F(load)(c->in[2], dtype, at, n) - a));
}

VEC_INLINE void F(gru_backward)(const struct cell *c, rw_dtype dtype, int64_t row, int64_t col, int64_t n)
{
    const int64_t h = c->width, from = row * RW_GRU_GATES * h + col, at = row * h + col;
    const void *const x = c->in[0], *const y = c->in[1];
    const V r = F(sigmoid)(F(load)(x, dtype, from, n) + F(load)(y, dtype, from, n));
    const V z = F(sigmoid)(F(load)(x, dtype, from + h, n) + F(load)(y, dtype, from + h, n));
    const V of_h = F(load)(y, dtype, from + 2 * h, n), a = F(tanh)(F(load)(x, dtype, from + 2 * h, n) + r * of_h);
    const V dh = F(load)(c->dh, dtype, at, n), da = dh * (1 - z) * (1 - a * a), dr = da * of_h * r * (1 - r);
    const V dz = dh * (F(load)(c->in[2], dtype, at, n) - a) * z * (1 - z);
    for (int i = 0; i < 2; i++) F(save)(c->out[i], dtype, from, n, dr), F(save)(c->out[i], dtype, from + h, n, dz);
    F(save)(c->out[0], dtype, from + 2 * h, n, da);
    F(save)(c->out[1], dtype, from + 2 * h, n, da * r);
    F(save)(c->out[2], dtype, at, n, dh * z);
}

/* One step of `kind`, which is a constant after inlining. */
VEC_INLINE void F(step)(const struct cell *c, enum cell_kind kind, rw_dtype dtype, int64_t row, int64_t col, int64_t n)
{
    if (kind == LSTM) F(lstm)(c, dtype, row, col, n);
    else if (kind == LSTM_BACKWARD) F(lstm_backward)(c, dtype, row, col, n);
    else if (kind == GRU) F(gru)(c, dtype, row, col, n);
    else F(gru_backward)(c, dtype, row, col, n);
}

VEC_INLINE void F(row)(const struct cell *c, enum cell_kind kind, rw_dtype dtype, int64_t row)
{
    int64_t col = 0;
    for (; col + N <= c->width; col += N) F(step)(c, kind, dtype, row, col, N);
    if (col < c->width) F(step)(c, kind, dtype, row, col, c->width - col);
}
