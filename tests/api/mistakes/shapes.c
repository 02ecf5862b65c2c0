/* Invalid calls of rewind/ops.h: shapes, and reductions. */
#include "api/mistakes/table.h"

#include <rewind/ops.h>
#include <rewind/reductions.h>

#include <math.h>


#define RANK(n) ((rw_shape){ .rank = (n), .dim = { 1, 1, 1, 1, 1, 1, 1, 1 } })

/* Views with invalid axes or extents. */
static void views(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    TENSOR("rw_reshape", RW_ERR_ARGUMENT, rw_reshape(t, NULL, RW_SHAPE(6)));
    TENSOR("rw_reshape", RW_ERR_ARGUMENT, rw_reshape(NULL, w->x, RW_SHAPE(6)));
    TENSOR("rw_reshape", RW_ERR_ARGUMENT, rw_reshape(t, w->dead, RW_SHAPE(6)));
    TENSOR("rw_reshape", RW_ERR_ARGUMENT, rw_reshape(t, RW_NONE, RW_SHAPE(6)));
    TENSOR("rw_reshape", RW_ERR_SHAPE, rw_reshape(t, w->transposed, RW_SHAPE(7)));
    TENSOR("rw_reshape", RW_ERR_SHAPE, rw_reshape(t, w->p, RW_SHAPE(-1, -1)));
    TENSOR("rw_reshape", RW_ERR_SHAPE, rw_reshape(t, w->x, RW_SHAPE(-2, -3)));
    TENSOR("rw_reshape", RW_ERR_SHAPE, rw_reshape(t, w->x, RANK(100)));
    TENSOR("rw_reshape", RW_ERR_SHAPE, rw_reshape(t, w->x, RANK(-1)));
    TENSOR("rw_reshape", RW_ERR_SHAPE, rw_reshape(t, w->x, RANK(INT32_MIN)));
    TENSOR("rw_reshape", RW_ERR_SHAPE, rw_reshape(t, w->x, RW_SHAPE(INT64_MAX, INT64_MAX)));
    TENSOR("rw_reshape", RW_ERR_SHAPE, rw_reshape(t, w->x, RW_SHAPE(HUGE_EXTENT, HUGE_EXTENT, -1)));
    TENSOR("rw_reshape", RW_ERR_SHAPE, rw_reshape(t, w->empty, RW_SHAPE(0, HUGE_EXTENT, HUGE_EXTENT)));
    TENSOR("rw_reshape", RW_ERR_SHAPE, rw_reshape(t, w->x, RW_SHAPE((int64_t)1 << 32, (int64_t)1 << 32, 6)));
    TENSOR("rw_permute", RW_ERR_ARGUMENT, rw_permute(t, w->x, NULL));
    TENSOR("rw_permute", RW_ERR_ARGUMENT, rw_permute(t, NULL, ((int[]){ 1, 0 })));
    TENSOR("rw_permute", RW_ERR_SHAPE, rw_permute(t, w->p, ((int[]){ 1, 1 })));
    TENSOR("rw_permute", RW_ERR_SHAPE, rw_permute(t, w->x, ((int[]){ 0, INT32_MAX })));
    TENSOR("rw_permute", RW_ERR_ARGUMENT, rw_permute(t, RW_NONE, ((int[]){ 1, 0 })));
    TENSOR("rw_transpose", RW_ERR_ARGUMENT, rw_transpose(t, NULL, 0, 1));
    TENSOR("rw_transpose", RW_ERR_SHAPE, rw_transpose(t, w->p, 0, 2));
    TENSOR("rw_transpose", RW_ERR_SHAPE, rw_transpose(t, w->x, INT32_MIN, INT32_MAX));
    TENSOR("rw_transpose", RW_ERR_SHAPE, rw_transpose(t, w->scalar, 0, 0));
    TENSOR("rw_transpose", RW_ERR_ARGUMENT, rw_transpose(t, w->alien, 0, 1));
    TENSOR("rw_slice", RW_ERR_ARGUMENT, rw_slice(t, NULL, 0, 0, 1));
    TENSOR("rw_slice", RW_ERR_SHAPE, rw_slice(t, w->p, 2, 0, 1));
    TENSOR("rw_slice", RW_ERR_SHAPE, rw_slice(t, w->x, 0, -1, 1));
    TENSOR("rw_slice", RW_ERR_SHAPE, rw_slice(t, w->x, 0, 2, 1));
    TENSOR("rw_slice", RW_ERR_SHAPE, rw_slice(t, w->x, 0, 0, INT64_MAX));
    TENSOR("rw_slice", RW_ERR_SHAPE, rw_slice(t, w->x, 0, INT64_MIN, INT64_MAX));
    TENSOR("rw_broadcast_to", RW_ERR_ARGUMENT, rw_broadcast_to(t, NULL, RW_SHAPE(2, 3)));
    TENSOR("rw_broadcast_to", RW_ERR_SHAPE, rw_broadcast_to(t, w->p, RW_SHAPE(3)));
    TENSOR("rw_broadcast_to", RW_ERR_SHAPE, rw_broadcast_to(t, w->x, RW_SHAPE(4, 3)));
    TENSOR("rw_broadcast_to", RW_ERR_SHAPE, rw_broadcast_to(t, w->scalar, RW_SHAPE(HUGE_EXTENT, HUGE_EXTENT)));
    TENSOR("rw_broadcast_to", RW_ERR_SHAPE, rw_broadcast_to(t, w->scalar, RW_SHAPE(-5)));
    TENSOR("rw_broadcast_to", RW_ERR_SHAPE, rw_broadcast_to(t, w->scalar, RW_SHAPE(INT64_MIN)));
    TENSOR("rw_broadcast_to", RW_ERR_SHAPE, rw_broadcast_to(t, w->scalar, RANK(100)));
    TENSOR("rw_broadcast_to", RW_ERR_SHAPE, rw_broadcast_to(t, w->scalar, RANK(-3)));
}

/* Concatenations and splits with invalid operands. */
static void joints(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *const pair[] = { w->x, w->y }, *const torn[] = { w->x, NULL }, *const mixed[] = { w->x, w->wide },
                     *const apart[] = { w->p, w->four }, *const none[] = { w->x, RW_NONE },
                     *const nothing[] = { NULL, NULL };
    rw_tensor *vast[64];
    for (int i = 0; i < 64; i++) vast[i] = w->vast;
    rw_tensor *const images[] = { w->image, w->image };
    TENSOR("rw_contiguous", RW_ERR_ARGUMENT, rw_contiguous(t, NULL));
    TENSOR("rw_contiguous", RW_ERR_ARGUMENT, rw_contiguous(t, w->gone));
    TENSOR("rw_contiguous", RW_ERR_ARGUMENT, rw_contiguous(t, RW_NONE));
    TENSOR("rw_cast", RW_ERR_ARGUMENT, rw_cast(t, NULL, RW_F64));
    TENSOR("rw_cast", RW_ERR_DTYPE, rw_cast(t, w->p, (rw_dtype)99));
    TENSOR("rw_cast", RW_ERR_DTYPE, rw_cast(t, w->p, (rw_dtype)-1));
    TENSOR("rw_cast", RW_ERR_ARGUMENT, rw_cast(t, w->dead, RW_F32));
    TENSOR("rw_cast", RW_ERR_ARGUMENT, rw_cast(t, RW_NONE, RW_F32));
    TENSOR("rw_concat", RW_ERR_ARGUMENT, rw_concat(t, NULL, 2, 0));
    TENSOR("rw_concat", RW_ERR_ARGUMENT, rw_concat(t, torn, 2, 0));
    TENSOR("rw_concat", RW_ERR_ARGUMENT, rw_concat(t, none, 2, 0));
    TENSOR("rw_concat", RW_ERR_ARGUMENT, rw_concat(t, pair, 0, 0));
    TENSOR("rw_concat", RW_ERR_ARGUMENT, rw_concat(t, pair, -1, 0));
    TENSOR("rw_concat", RW_ERR_ARGUMENT, rw_concat(t, pair, INT32_MAX, 0));
    TENSOR("rw_concat", RW_ERR_ARGUMENT, rw_concat(t, images, INT32_MAX, 1));
    TENSOR("rw_concat", RW_ERR_SHAPE, rw_concat(t, pair, 2, 2));
    TENSOR("rw_concat", RW_ERR_SHAPE, rw_concat(t, apart, 2, 0));
    TENSOR("rw_concat", RW_ERR_DTYPE, rw_concat(t, mixed, 2, 0));
    TENSOR("rw_concat", RW_ERR_SHAPE, rw_concat(t, vast, 64, 0));
    TENSOR("rw_concat", RW_ERR_ARGUMENT, rw_concat(NULL, pair, 2, 0));
    TENSOR("rw_stack", RW_ERR_ARGUMENT, rw_stack(NULL, pair, 2, 0));
    SILENT("rw_stack", RW_ERR_ARGUMENT, rw_stack(NULL, pair, 0, 0) ? RW_OK : rw_error_status(NULL));
    SILENT("rw_stack", RW_ERR_ARGUMENT, rw_stack(NULL, NULL, 2, 0) ? RW_OK : rw_error_status(NULL));
    SILENT("rw_stack", RW_ERR_ARGUMENT, rw_stack(NULL, nothing, 2, 0) ? RW_OK : rw_error_status(NULL));
    TENSOR("rw_stack", RW_ERR_ARGUMENT, rw_stack(t, NULL, 2, 0));
    TENSOR("x[1] is NULL", RW_ERR_ARGUMENT, rw_stack(t, torn, 2, 0));
    TENSOR("rw_einsum", RW_ERR_ARGUMENT, rw_einsum(NULL, "ij,ij->", pair, 2));
    TENSOR("x[1] is NULL", RW_ERR_ARGUMENT, rw_einsum(t, "ij,ij->", torn, 2));
    STATUS("rw_unbind", RW_ERR_ARGUMENT, rw_unbind(NULL, w->x, 0, w->parts, 2));
    STATUS("rw_unbind", RW_ERR_ARGUMENT, rw_unbind(t, NULL, 0, w->parts, 2));
    const int64_t whole[] = { 1, 1 }, negative[] = { -1, 3 }, over[] = { INT64_MAX, INT64_MAX, 4 };
    STATUS("rw_split", RW_ERR_ARGUMENT, rw_split(t, NULL, 0, whole, 2, w->parts));
    STATUS("rw_split", RW_ERR_ARGUMENT, rw_split(NULL, w->x, 0, whole, 2, w->parts));
    STATUS("rw_split", RW_ERR_ARGUMENT, rw_split(t, w->x, 0, NULL, 2, w->parts));
    STATUS("rw_split", RW_ERR_ARGUMENT, rw_split(t, w->x, 0, whole, 2, NULL));
    STATUS("rw_split", RW_ERR_ARGUMENT, rw_split(t, w->x, 0, whole, 0, w->parts));
    STATUS("rw_split", RW_ERR_ARGUMENT, rw_split(t, w->x, 0, whole, -7, w->parts));
    STATUS("rw_split", RW_ERR_ARGUMENT, rw_split(t, w->x, 0, whole, INT32_MAX, w->parts));
    STATUS("rw_split", RW_ERR_ARGUMENT, rw_split(t, w->dead, 0, whole, 2, w->parts));
    STATUS("rw_split", RW_ERR_SHAPE, rw_split(t, w->p, 0, negative, 2, w->parts));
    STATUS("rw_split", RW_ERR_SHAPE, rw_split(t, w->x, 0, over, 3, w->parts));
    STATUS("rw_split", RW_ERR_SHAPE, rw_split(t, w->x, 5, whole, 2, w->parts));
    STATUS("rw_split", RW_ERR_SHAPE, rw_split(t, w->x, 1, whole, 2, w->parts) ? w->parts[0] ? RW_OK : RW_ERR_SHAPE
                                                                            : RW_OK);
    STATUS("rw_assign", RW_ERR_ARGUMENT, rw_assign(t, NULL, w->x));
    STATUS("rw_assign", RW_ERR_ARGUMENT, rw_assign(t, w->buffer, NULL));
    STATUS("rw_assign", RW_ERR_ARGUMENT, rw_assign(NULL, w->buffer, w->x));
    STATUS("rw_assign", RW_ERR_ARGUMENT, rw_assign(t, w->p, w->x));
    STATUS("rw_assign", RW_ERR_ARGUMENT, rw_assign(t, w->x, w->x));
    STATUS("rw_assign", RW_ERR_SHAPE, rw_assign(t, w->buffer, w->transposed));
    STATUS("rw_assign", RW_ERR_DTYPE, rw_assign(t, w->buffer, w->half));
    STATUS("rw_assign", RW_ERR_ARGUMENT, rw_assign(t, w->buffer, w->dead));
    STATUS("rw_assign", RW_ERR_ARGUMENT, rw_assign(w->alien_t, w->buffer, w->alien));
}

#define REDUCTION(fn)                                                \
    TENSOR(#fn, RW_ERR_ARGUMENT, fn(t, NULL, RW_ALL_AXES, false));   \
    TENSOR(#fn, RW_ERR_SHAPE, fn(t, w->p, RW_AXES(2), false));       \
    TENSOR(#fn, RW_ERR_SHAPE, fn(t, w->transposed, RW_AXES(0, -2), true)); \
    TENSOR(#fn, RW_ERR_SHAPE, fn(t, w->transposed, RW_AXES(77), true))

/* Reductions of reductions.h with invalid axes. */
static void more_reductions(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    const uint32_t twice = RW_AXES(0) | RW_AXES(-2);
    TENSOR("prod", RW_ERR_ARGUMENT, rw_prod(t, NULL, RW_AXES(0), false));
    TENSOR("prod", RW_ERR_ARGUMENT, rw_prod(t, w->dead, RW_AXES(0), false));
    TENSOR("prod", RW_ERR_SHAPE, rw_prod(t, w->x, RW_AXES(2), false));
    TENSOR("prod", RW_ERR_SHAPE, rw_prod(t, w->x, RW_AXES(-3), false));
    TENSOR("prod", RW_ERR_SHAPE, rw_prod(t, w->x, RW_AXES(9), false));
    TENSOR("prod", RW_ERR_SHAPE, rw_prod(t, w->x, twice, false));
    TENSOR("prod", RW_ERR_DTYPE, rw_prod(t, w->index, RW_AXES(0), false));
    TENSOR("var", RW_ERR_ARGUMENT, rw_var(t, RW_NONE, RW_ALL_AXES, true, false));
    TENSOR("var", RW_ERR_SHAPE, rw_var(t, w->empty, RW_AXES(0), false, false));
    TENSOR("var", RW_ERR_SHAPE, rw_var(t, w->scalar, RW_ALL_AXES, true, false));
    TENSOR("var", RW_ERR_SHAPE, rw_var(t, w->x, twice, false, true));
    TENSOR("norm", RW_ERR_ARGUMENT, rw_norm(t, w->alien, 2, RW_ALL_AXES, false));
    TENSOR("norm", RW_ERR_ARGUMENT, rw_norm(t, w->x, 3, RW_ALL_AXES, false));
    TENSOR("norm", RW_ERR_ARGUMENT, rw_norm(t, w->x, -INFINITY, RW_ALL_AXES, false));
    TENSOR("norm", RW_ERR_ARGUMENT, rw_norm(t, w->x, NAN, RW_ALL_AXES, false));
    TENSOR("norm", RW_ERR_SHAPE, rw_norm(t, w->empty, INFINITY, RW_AXES(0), false));
    TENSOR("norm", RW_ERR_SHAPE, rw_norm(t, w->x, 2, RW_AXES(5), false));
    TENSOR("normalize", RW_ERR_SHAPE, rw_normalize(t, w->x, 2, 2, 1e-6));
    TENSOR("normalize", RW_ERR_SHAPE, rw_normalize(t, w->x, 2, 99, 1e-6));
    TENSOR("normalize", RW_ERR_ARGUMENT, rw_normalize(t, w->x, 2, 1, 0));
    TENSOR("normalize", RW_ERR_ARGUMENT, rw_normalize(t, w->x, 2, 1, 1e-300));
    TENSOR("normalize", RW_ERR_ARGUMENT, rw_normalize(t, w->x, 2, 1, 1e39));
    TENSOR("normalize", RW_ERR_ARGUMENT, rw_normalize(t, w->x, 0, 1, 1e-6));
    TENSOR("normalize", RW_ERR_DTYPE, rw_normalize(t, w->index, 2, 0, 1e-6));
}

/* Reductions with invalid axes or types. */
static void reductions(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    REDUCTION(rw_sum);
    REDUCTION(rw_mean);
    REDUCTION(rw_max);
    REDUCTION(rw_logsumexp);
    more_reductions(m, w);
    TENSOR("rw_sum", RW_ERR_DTYPE, rw_sum(t, w->index, RW_ALL_AXES, false));
    TENSOR("rw_sum", RW_ERR_SHAPE, rw_sum(t, w->x, RW_AXES(1, -1), false));
    TENSOR("rw_max", RW_ERR_SHAPE, rw_max(t, w->empty, RW_AXES(0), false));
    TENSOR("rw_sum_to", RW_ERR_ARGUMENT, rw_sum_to(t, NULL, RW_SHAPE(3)));
    TENSOR("rw_sum_to", RW_ERR_SHAPE, rw_sum_to(t, w->transposed, RW_SHAPE(4)));
    TENSOR("rw_sum_to", RW_ERR_SHAPE, rw_sum_to(t, w->x, RW_SHAPE(-1)));
    TENSOR("rw_sum_to", RW_ERR_SHAPE, rw_sum_to(t, w->x, RANK(100)));
    TENSOR("rw_sum_to", RW_ERR_SHAPE, rw_sum_to(t, w->x, RANK(-2)));
    TENSOR("rw_sum_to", RW_ERR_SHAPE, rw_sum_to(t, w->x, RANK(INT32_MIN)));
    TENSOR("rw_sum_to", RW_ERR_SHAPE, rw_sum_to(t, w->x, RW_SHAPE(HUGE_EXTENT, HUGE_EXTENT)));
    TENSOR("rw_softmax", RW_ERR_ARGUMENT, rw_softmax(t, NULL, 0));
    TENSOR("rw_softmax", RW_ERR_SHAPE, rw_softmax(t, w->transposed, 2));
    TENSOR("rw_softmax", RW_ERR_SHAPE, rw_softmax(t, w->scalar, 0));
    TENSOR("rw_softmax", RW_ERR_SHAPE, rw_softmax(t, w->p, INT32_MIN));
    TENSOR("rw_log_softmax", RW_ERR_ARGUMENT, rw_log_softmax(t, NULL, 0));
    TENSOR("rw_log_softmax", RW_ERR_SHAPE, rw_log_softmax(t, w->transposed, -3));
    TENSOR("rw_log_softmax", RW_ERR_DTYPE, rw_log_softmax(t, w->index, 0));
}

void mistakes_with_shapes(struct trial *m, struct world *w)
{
    views(m, w);
    joints(m, w);
    reductions(m, w);
}
