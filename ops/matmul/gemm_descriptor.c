/* Derives a matrix product from tensor layouts: extents, strides, and which operands a library can read in place. */
#include "ops/matmul/gemm_descriptor.h"

static int64_t stride_of(const rw_layout *l, int axis)
{
    return l->dim[axis] == 1 ? 0 : l->stride[axis];
}

/* The batch axes of an operand, aligned at the last one. */
static void set_batch(const struct gemm *g, struct gemm_operand *x, const rw_layout *l)
{
    const int own = l->rank - 2, missing = g->batch_rank - own;
    for (int i = 0; i < g->batch_rank; i++) x->batch[i] = i < missing ? 0 : stride_of(l, i - missing);
}

/* If b is the same for the whole batch and the rows of a are contiguous across it, makes one large product. */
static void join_rows(struct gemm *g)
{
    while (g->batch_rank) {
        const int last = g->batch_rank - 1;
        const bool follows = g->m == 1 || g->batch[last] == 1 || g->a.batch[last] == g->a.row * g->m;
        if (g->b.batch[last] || !follows) break;
        if (g->m == 1) g->a.row = g->a.batch[last];
        g->m *= g->batch[last];
        g->batch_rank = last;
    }
    g->n_batch = 1;
    for (int i = 0; i < g->batch_rank; i++) g->n_batch *= g->batch[i];
}

void rw_gemm_tidy(struct gemm_operand *x, int64_t rows, int64_t cols)
{
    if (cols == 1 && rows == 1) x->row = x->col = 1;
    else if (cols == 1) x->col = 1;
    else if (rows == 1) x->row = x->col == 1 ? cols : 1;
}

static bool library_takes(const struct gemm_operand *x, int64_t rows, int64_t cols)
{
    return (x->col == 1 && x->row >= cols) || (x->row == 1 && x->col >= rows);
}

static int64_t dense_bytes(int64_t bytes)
{
    return gemm_align(bytes, GEMM_SCRATCH_ALIGN);
}

static void finish(struct gemm *g, const rw_layout *a, const rw_layout *b)
{
    join_rows(g);
    g->c_row = g->n;
    rw_gemm_tidy(&g->a, g->m, g->k);
    rw_gemm_tidy(&g->b, g->k, g->n);
    const int64_t size = (int64_t)rw_dtype_size(g->dtype);
    g->a.pack_bytes = library_takes(&g->a, g->m, g->k) ? 0 : dense_bytes(g->n_batch * g->m * g->k * size);
    g->b.pack_bytes = library_takes(&g->b, g->k, g->n) ? 0 : dense_bytes(g->n_batch * g->k * g->n * size);
}

/* Describes the product of matmul or matmul_add from the layouts of its operands. */
void rw_gemm_of_matmul(struct gemm *g, const rw_layout *a, const rw_layout *b, rw_dtype dtype)
{
    *g = (struct gemm){
        .dtype = dtype, .to = dtype, .m = a->dim[a->rank - 2], .k = a->dim[a->rank - 1], .n = b->dim[b->rank - 1]
    };
    g->batch_rank = (a->rank > b->rank ? a->rank : b->rank) - 2;
    for (int i = 0; i < g->batch_rank; i++) {
        const int ia = i - (g->batch_rank - (a->rank - 2)), ib = i - (g->batch_rank - (b->rank - 2));
        const int64_t da = ia < 0 ? 1 : a->dim[ia], db = ib < 0 ? 1 : b->dim[ib];
        g->batch[i] = da == 1 ? db : da;
    }
    set_batch(g, &g->a, a);
    set_batch(g, &g->b, b);
    g->a.row = a->stride[a->rank - 2];
    g->a.col = a->stride[a->rank - 1];
    g->b.row = b->stride[b->rank - 2];
    g->b.col = b->stride[b->rank - 1];
    finish(g, a, b);
}

/* Describes the product x weight^T of linear from the layouts of its operands. */
void rw_gemm_of_linear(struct gemm *g, const rw_layout *x, const rw_layout *weight, bool bias, rw_dtype dtype)
{
    const int rows = x->rank - 2;
    *g = (struct gemm){ .dtype = dtype,
                        .to = dtype,
                        .m = rows < 0 ? 1 : x->dim[rows],
                        .k = weight->dim[1],
                        .n = weight->dim[0],
                        .has_bias = bias };
    g->batch_rank = rows < 0 ? 0 : rows;
    for (int i = 0; i < g->batch_rank; i++) {
        g->batch[i] = x->dim[i];
        g->a.batch[i] = stride_of(x, i);
    }
    g->a.row = rows < 0 ? 0 : x->stride[rows];
    g->a.col = x->stride[x->rank - 1];
    g->b.row = weight->stride[1];
    g->b.col = weight->stride[0];
    finish(g, x, weight);
}

void rw_gemm_of_panels(struct gemm *g, int64_t m, int64_t n, int64_t k, rw_dtype dtype)
{
    *g = (struct gemm){ .dtype = dtype, .to = dtype, .m = m, .n = n, .k = k, .c_row = n, .n_batch = 1, .panels = true };
}

void rw_gemm_describe_dense(const struct gemm *g, struct gemm_operand *x, int64_t rows, int64_t cols)
{
    x->row = cols;
    x->col = 1;
    int64_t stride = rows * cols;
    for (int axis = g->batch_rank - 1; axis >= 0; axis--) {
        x->batch[axis] = stride;
        stride *= g->batch[axis];
    }
}

bool rw_gemm_is_skinny(const struct gemm *g)
{
    if (g->dtype == RW_F64) return false;
    if (g->n_batch != 1 || g->panels || g->b.col != 1 || g->b.pack_bytes) return false;
    return g->m <= GEMM_SKINNY_ROWS && g->n >= GEMM_SKINNY_COLS && (double)g->k * (double)g->n >= 1 << 22;
}

bool rw_gemm_is_shallow(const struct gemm *g)
{
    if (g->dtype == RW_F64 || g->n_batch != 1 || g->panels) return false;
    if (g->a.pack_bytes || g->b.pack_bytes) return false;
    return g->k <= GEMM_SKINNY_DEPTH && g->n >= GEMM_SKINNY_COLS && (double)g->m * (double)g->n >= 1 << 21;
}
