/* The rounding counts of op_roundings.h that depend on shapes. */
#include "support/op_roundings.h"

#include <string.h>

#include "support/op_builds.h"

rw_shape op_broadcast(rw_shape a, rw_shape b)
{
    rw_shape s = a.rank >= b.rank ? a : b;
    const rw_shape o = a.rank >= b.rank ? b : a;
    for (int i = 1; i <= o.rank; i++)
        if (s.dim[s.rank - i] == 1) s.dim[s.rank - i] = o.dim[o.rank - i];
    return s;
}

static int quotient(int64_t a, int64_t b)
{
    return b ? (int)(a / b) : 1;
}

static int extent(rw_shape s, int axis)
{
    return (int)s.dim[axis < 0 ? s.rank + axis : axis];
}

void op_count_broadcast(struct op_case *c)
{
    const rw_shape whole = op_broadcast(c->in[0].shape, c->in[1].shape);
    for (int i = 0; i < 2; i++) {
        const int times = quotient(rw_shape_numel(whole), rw_shape_numel(c->in[i].shape));
        if (times > 1) c->r[1 + i].n += times;
    }
}

/* Counts for the operands from `first` on. A gradient that is summed over a batch is stored per batch first. */
static void count_product(struct op_case *c, int first)
{
    rw_shape a = c->in[first].shape, b = c->in[first + 1].shape;
    const int m = extent(a, -2), k = extent(a, -1), n = extent(b, -1);
    a.rank -= 2, b.rank -= 2;
    const int64_t whole = rw_shape_numel(op_broadcast(a, b));
    const int times_a = quotient(whole, rw_shape_numel(a)), times_b = quotient(whole, rw_shape_numel(b));
    c->r[0].n = k;
    c->r[first + 1] = (struct roundings){ (n + 1) * times_a, times_a > 1 };
    c->r[first + 2] = (struct roundings){ (m + 1) * times_b, times_b > 1 };
}

void op_count_product(struct op_case *c)
{
    count_product(c, 0);
}

/* The sum is one more term; its gradient is passed on unchanged. */
void op_count_matmul_add(struct op_case *c)
{
    count_product(c, 1);
    c->r[0].n++;
}

void op_count_linear(struct op_case *c)
{
    const int rows = quotient(rw_shape_numel(c->in[0].shape), extent(c->in[0].shape, -1));
    c->r[0].n = extent(c->in[1].shape, 1) + 1;
    c->r[1].n = extent(c->in[1].shape, 0);
    c->r[2].n = c->r[3].n = rows + 1;
}

/* The residual is one more term; its gradient is passed on unchanged. The other operands' counts are linear's, shifted
   by one operand. */
void op_count_linear_add(struct op_case *c)
{
    const int rows = quotient(rw_shape_numel(c->in[1].shape), extent(c->in[1].shape, -1));
    c->r[0].n = extent(c->in[2].shape, 1) + 2;
    c->r[1].n = 0;
    c->r[2].n = extent(c->in[2].shape, 0);
    c->r[3].n = c->r[4].n = rows + 1;
}

/*
 * The product, then the function; with two kernels the product is stored between them. Each gradient recomputes the
 * product, computes the slope, which is stored, and adds linear's own.
 */
void op_count_linear_gelu(struct op_case *c)
{
    op_count_linear(c);
    const int product = c->r[0].n;
    c->r[0] = (struct roundings){ product + N_GELU_TANH, 1 };
    for (int i = 1; i <= c->n; i++) c->r[i] = (struct roundings){ c->r[i].n + product + N_GELU_TANH_G, 2 };
}

/*
 * Over c elements: mean c + 1; the variance c + 4, halved by the root, and root and quotient: 1 / sqrt(var + eps) is
 * off by c / 2 + 4. y has both errors. dx has that, xh twice (each 1.5 c + 6) and a mean. dweight: xh and the rows.
 */
void op_count_norm(struct op_case *c)
{
    const int n = extent(c->in[0].shape, -1), rows = quotient(rw_shape_numel(c->in[0].shape), n);
    c->r[0].n = 2 * n + 8;
    c->r[1].n = 5 * n + 24;
    c->r[2].n = 2 * n + 8 + rows;
    c->r[3].n = rows;
    if (!c->keep) return;
    /* The norm is stored before it is added. Its gradient is stored too if the norm reads a dense copy of x. */
    c->r[0].n++, c->r[0].s = 1;
    c->r[1].n++, c->r[1].s = c->in[0].layout != OP_DENSE && c->in[0].layout != OP_CUT;
}

/*
 * y: over the channels of a group and the taps; dx: over its filters and the taps; dweight and dbias: over the pixels
 * of y. A weight is [oc, c / groups, kh, kw] for both ops: a transposed convolution exchanges x and y. Its bias is
 * added to the stored sum, and its bias gradient sums over the pixels of its result.
 */
void op_count_conv(struct op_case *c)
{
    const rw_shape x = c->in[0].shape, weight = c->in[1].shape;
    const int64_t stride = c->shape.dim[0], groups = c->shape.dim[3], taps = weight.dim[2] * weight.dim[3];
    const bool transposed = c->build == op_build_conv_transpose2d;
    int64_t pixels = x.dim[0], results = x.dim[0]; /* in the sums of a weight's and of a bias's gradient */
    for (int i = 2; i < 4; i++) {
        const int64_t reach = (weight.dim[i] - 1) * c->shape.dim[2] - 2 * c->shape.dim[1];
        const int64_t out = transposed ? (x.dim[i] - 1) * stride + reach + c->axis + 1
                                       : (x.dim[i] - reach - 1) / stride + 1;
        pixels *= transposed ? x.dim[i] : out;
        results *= out;
    }
    const int outward = (int)(weight.dim[0] / groups * taps), inward = (int)(weight.dim[1] * taps);
    c->r[0] = (struct roundings){ (transposed ? outward : inward) + 1, transposed && c->n == 3 };
    c->r[1].n = transposed ? inward : outward;
    c->r[2].n = (int)pixels + 1;
    c->r[3].n = (int)results + 1;
}

/*
 * As op_count_norm(), over the n elements that share a mean and a variance. Those of blocks are merged in double, which
 * adds no rounding. dweight and dbias: over all elements of a channel.
 */
void op_count_groups(struct op_case *c)
{
    const rw_shape x = c->in[0].shape;
    int pixels = 1;
    for (int i = 2; i < x.rank; i++) pixels *= (int)x.dim[i];
    const int rows = pixels * (int)x.dim[0];
    const int n = c->build == op_build_group_norm      ? pixels * quotient(x.dim[1], c->axis)
                  : c->build == op_build_instance_norm ? pixels
                                                       : rows;
    c->r[0].n = 2 * n + 8;
    c->r[1].n = 5 * n + 24;
    c->r[2].n = 2 * n + 8 + rows;
    c->r[3].n = rows;
}

/* Sums over a window and over the windows that contain an element; averages have a quotient each. A maximum is
   exact. */
void op_count_pool(struct op_case *c)
{
    const rw_shape x = c->in[0].shape, k = c->shape;
    const int window = (int)(k.dim[0] * k.dim[1]);
    const bool most = c->build == op_build_max_pool2d;
    if (!k.rank) {
        c->r[0].n = (int)(x.dim[2] * x.dim[3]) + 2;
        c->r[1].n = 3;
        return;
    }
    c->r[0].n = most ? 0 : window + 1;
    c->r[1].n = most ? window : 2 * window;
}

/*
 * The same for windows that divide an extent of n into m: each has at most n / m + 2 elements, and each element is in
 * at most m / n + 2 windows. A mean of all is that of op_count_pool(), which has two roundings more.
 */
void op_count_adaptive_pool(struct op_case *c)
{
    const rw_shape x = c->in[0].shape, y = c->shape;
    const bool most = c->build == op_build_adaptive_max_pool2d;
    int window = 1, windows = 1;
    for (int i = 0; i < 2; i++) {
        const int n = (int)x.dim[2 + i], m = y.dim[i] ? (int)y.dim[i] : n;
        window *= n / m + 2;
        windows *= m / n + 2;
    }
    c->r[0].n = most ? 0 : window + 2;
    c->r[1].n = most ? windows : 2 * windows + 1;
}

/* ---- reductions ---- */

/* Number of elements that are reduced to one element of the result. Axes are counted from the first. */
static int meeting(const struct op_case *c)
{
    const rw_shape s = c->in[0].shape;
    int64_t n = 1;
    for (int axis = 0; axis < s.rank; axis++)
        if (c->axes >> axis & 1) n *= s.dim[axis];
    return (int)n;
}

void op_count_sum(struct op_case *c)
{
    c->r[0].n = meeting(c);
}

void op_count_mean(struct op_case *c)
{
    c->r[0].n = meeting(c) + 2;
    c->r[1].n = 3;
}

void op_count_max(struct op_case *c)
{
    c->r[0].n = c->r[1].n = 0;
}

/* exp(x - logsumexp) uses the stored result. */
void op_count_logsumexp(struct op_case *c)
{
    c->r[0].n = meeting(c) + 2 * N_F + 10;
    c->r[1] = (struct roundings){ 2 * meeting(c) + 2 * N_F + 16, 1 };
}

void op_count_sum_to(struct op_case *c)
{
    c->r[0].n = quotient(rw_shape_numel(c->in[0].shape), rw_shape_numel(c->shape));
}

void op_count_broadcast_to(struct op_case *c)
{
    c->r[1].n = quotient(rw_shape_numel(c->shape), rw_shape_numel(c->in[0].shape));
}

/*
 * exp, sum, quotient, product; the error of exp's argument is in M. Gradient: two probabilities and a sum, from stored
 * values. Logarithms add one function; their gradients add exp of the stored value.
 */
void op_count_softmax(struct op_case *c)
{
    const int n = extent(c->in[0].shape, c->axis);
    c->r[0].n = n + N_F + 10;
    c->r[1] = (struct roundings){ 3 * n + 2 * N_F + 20, 2 };
}

void op_count_log_softmax(struct op_case *c)
{
    const int n = extent(c->in[0].shape, c->axis);
    c->r[0].n = n + 2 * N_F + 10;
    c->r[1] = (struct roundings){ 2 * n + 2 * N_F + 16, 1 };
}

/* A gradient is a product of the other factors, and of the gradient. */
void op_count_prod(struct op_case *c)
{
    c->r[0].n = c->r[1].n = meeting(c);
}

/* The mean, a difference and a square, each twice; a sum, a factor. Gradient: the roundings of one distance, and their
   mean. */
void op_count_var(struct op_case *c)
{
    c->r[0].n = 3 * meeting(c) + 8;
    c->r[1].n = 2 * meeting(c) + 10;
}

/* Squares and their sum, halved by the root; a quotient. */
void op_count_norm_of(struct op_case *c)
{
    c->r[0].n = meeting(c) + 4;
    c->r[1].n = meeting(c) + 8;
}

void op_count_normalize(struct op_case *c)
{
    const int n = extent(c->in[0].shape, c->axis);
    c->r[0].n = n + 6;
    c->r[1].n = 3 * n + 16;
}

/* ---- the others ---- */

/*
 * A probability has a sum over d, the scale, and a softmax over kv keys, and 8 more for each rescaling, at most one per
 * block of 16 keys. ds: p, the dot products with dy and with y, and the scale. `rows` are those of all heads that share
 * a kv head. If tiles use a 16-bit matrix unit, p is stored, and in backward the output, p and ds.
 */
void op_count_attention(struct op_case *c)
{
    const rw_shape q = c->in[0].shape, k = c->in[1].shape;
    const int d = extent(q, 3), dv = extent(c->in[2].shape, 3), kv = extent(k, 2);
    const int rows = extent(q, 2) * quotient(q.dim[1], k.dim[1]);
    const int extra = c->dropout > 0 ? N_DROPOUT : 0;
    const int p = d + kv + N_F + 12 + 8 * (kv / 16 + 1) + extra, ds = 2 * p + kv + (dv > d ? dv : d) + 6;
    c->r[0] = (struct roundings){ p + kv, 1 };
    c->r[1] = (struct roundings){ ds + kv, 3 };
    c->r[2] = (struct roundings){ ds + rows, 3 };
    c->r[3] = (struct roundings){ p + rows, 1 };
}

/* The angle's 4 (weighted by the angle in M), sine or cosine, its rounding, product, sum. */
void op_count_rope(struct op_case *c)
{
    c->r[0].n = c->r[1].n = N_F + 8;
}

/* One more factor on cos and sin. */
void op_count_rope_with(struct op_case *c)
{
    c->r[0].n = c->r[1].n = N_F + 9;
}

/*
 * A bag has at most all rows, each times its weight, and a quotient after its sum. A table row or a weight sums as many
 * gradients as there are places, of c columns. The weights' gradient is stored, and so is the table's per place.
 */
void op_count_bag_with(struct op_case *c)
{
    const int n = (int)rw_shape_numel(c->shape);
    if (c->axis == RW_BAG_MAX) c->r[1].n = n;
    if (c->axis == RW_BAG_MAX) return;
    c->r[0].n = n + 3;
    c->r[1] = (struct roundings){ n + 4, 1 };
    c->r[2] = (struct roundings){ (int)c->in[0].shape.dim[1] + 2, 1 };
}

/* The maximum number of times that any row of a table is read. */
void op_count_embedding(struct op_case *c)
{
    int asked[OP_INDEXES] = { 0 }, most = 0;
    for (int64_t i = 0; i < rw_shape_numel(c->shape); i++) {
        const int k = ++asked[op_index(c, i, c->in[0].shape.dim[0])];
        most = k > most ? k : most;
    }
    c->r[1].n = most;
    if (!c->keep) return;
    /* The sum of the rows, which is stored, and the other use added to it; a gradient through the sum adds all
       tokens. */
    c->r[0] = (struct roundings){ extent(c->in[0].shape, 0) + 1, 1 };
    c->r[1] = (struct roundings){ quotient(rw_shape_numel(c->shape), 1) + most + 1, 1 };
}

/* The largest extent of each letter up to the next comma or arrow; '.' represents all axes of an ellipsis. */
static const char *measure_letters(const char *s, rw_shape shape, int64_t *extents)
{
    int letters = 0, axis = 0;
    for (const char *l = s; *l && *l != ',' && *l != '-'; l++) letters += *l != '.' && *l != ' ';
    for (; *s && *s != ',' && *s != '-'; s++) {
        int64_t extent = 1;
        if (*s == ' ' || (*s == '.' && s[1] == '.')) continue; /* the last of the three represents all */
        if (*s != '.') extent = shape.dim[axis++];
        else
            for (const int end = axis + shape.rank - letters; axis < end; axis++) extent *= shape.dim[axis];
        if (extent > extents[(int)*s]) extents[(int)*s] = extent;
    }
    return s;
}

/*
 * A sum of as many products as the letters that are not in the result have elements; each step of the plan is stored. A
 * gradient is such a sum over the letters of the others.
 */
void op_count_einsum(struct op_case *c)
{
    int64_t extents[128] = { 0 }, all = 1, own = 1;
    const char *s = c->equation;
    for (int i = 0; i < c->n; i++, s += *s == ',') s = measure_letters(s, c->in[i].shape, extents);
    for (int i = 0; i < 128; i++) all *= extents[i] ? extents[i] : 1;
    for (s = strchr(c->equation, '>'); s && *++s;) own *= extents[(int)*s] ? extents[(int)*s] : 1;
    c->r[0] = (struct roundings){ (int)(all / own) + c->n, c->n };
    s = c->equation;
    for (int i = 0; i < c->n; i++, s += *s == ',') {
        int64_t here[128] = { 0 }, elements = 1;
        s = measure_letters(s, c->in[i].shape, here);
        for (int k = 0; k < 128; k++) elements *= here[k] ? here[k] : 1;
        c->r[1 + i] = (struct roundings){ quotient(all, elements) + c->n + 1, c->n + 1 };
    }
}

/* Mean over rows of logsumexp - x; the gradient is a softmax less 1 at the target, over the number of rows. */
void op_count_cross_entropy(struct op_case *c)
{
    const int n = extent(c->in[0].shape, -1), rows = quotient(rw_shape_numel(c->in[0].shape), n);
    c->r[0].n = n + 2 * N_F + 13 + rows;
    c->r[1].n = 2 * n + 2 * N_F + 19;
}

/*
 * Per row: a sum of exponentials and one of weighted logits, and their products with the class weights. Over all rows:
 * their sum and its product with the inverse of a sum. A gradient has the same once more.
 */
void op_count_row_loss(struct op_case *c)
{
    const int n = extent(c->in[0].shape, -1), rows = quotient(rw_shape_numel(c->in[0].shape), n);
    c->r[0].n = 2 * n + 2 * N_F + 24 + 2 * rows;
    c->r[1].n = 2 * n + 2 * N_F + 30 + rows;
}

/* The same with probabilities that are computed, whose gradient is a log-softmax. */
void op_count_soft_loss(struct op_case *c)
{
    op_count_row_loss(c);
    c->r[0].n += 4, c->r[1].n += 8;
    c->r[2].n = c->r[0].n + 4;
}

/*
 * First the logits, sums of d terms that are stored; afterwards a product with their gradient, which is stored. The
 * weight's gradient is stored after each chunk.
 */
void op_count_linear_loss(struct op_case *c)
{
    const int d = extent(c->in[0].shape, -1), n = extent(c->in[1].shape, 0);
    const int rows = quotient(rw_shape_numel(c->in[0].shape), d), chunks = quotient(rows, c->loss.chunk) + 1;
    c->r[0] = (struct roundings){ 2 * n + 2 * N_F + 24 + 2 * rows + d, 1 };
    c->r[1] = (struct roundings){ 3 * n + 2 * N_F + 30 + rows + d, 2 };
    c->r[2] = (struct roundings){ 2 * n + 2 * N_F + 30 + 2 * rows + d + chunks, 2 + chunks };
    c->r[3] = c->r[2];
}

/*
 * Losses per element with n roundings, and gradients with those of r. If elements are reduced, they are stored, and so
 * is each element's gradient, after the mean's two roundings. The gradient of a broadcast operand sums over its uses.
 */
static void count_elements(struct op_case *c, int n)
{
    const bool reduced = c->loss.reduction != RW_REDUCTION_NONE;
    rw_shape whole = c->in[0].shape;
    for (int i = 1; i < c->n; i++) whole = op_broadcast(whole, c->in[i].shape);
    const int all = (int)rw_shape_numel(whole);
    c->r[0] = (struct roundings){ n + (reduced ? all + 2 : 0), c->r[0].s + reduced };
    for (int i = 0; i < c->n; i++) {
        const int times = quotient(all, rw_shape_numel(c->in[i].shape));
        c->r[1 + i].n += 3 * reduced + (times > 1 ? times : 0);
        c->r[1 + i].s += reduced + (times > 1);
    }
}

/* The weight is one more factor, on stored elements; the positive weight's logarithm adds one, too. */
void op_count_bce(struct op_case *c)
{
    const int weight = c->n > 3;
    c->r[0] = (struct roundings){ 0, weight };
    c->r[1] = (struct roundings){ N_SIGMOID + 9 + weight, 1 + weight };
    for (int i = 2; i < 5; i++) c->r[i] = (struct roundings){ N_SOFTPLUS + 9 + weight, 5 + weight };
    count_elements(c, N_SOFTPLUS + 8 + weight);
}

/* The distance, its square or product, the difference; divided by beta once more, stored. */
/* A difference and its square; for the slope the factor, and each of the product's two operands. */
void op_count_mse_with(struct op_case *c)
{
    c->r[0] = (struct roundings){ 0, 2 };
    c->r[1] = c->r[2] = (struct roundings){ 5, 4 };
    count_elements(c, 4);
}

void op_count_huber(struct op_case *c)
{
    c->r[0] = (struct roundings){ 0, 1 };
    c->r[1] = c->r[2] = (struct roundings){ 7, 2 };
    count_elements(c, 8);
}

void op_count_kl(struct op_case *c)
{
    c->r[0] = (struct roundings){ 0, 2 * c->keep };
    c->r[1] = (struct roundings){ N_F + 2, 2 };
    c->r[2] = (struct roundings){ N_F + 5, 4 };
    count_elements(c, N_F + 4);
}

/* The weight counts twice: as a factor, and in the mean. */
void op_count_nll(struct op_case *c)
{
    const int n = extent(c->in[0].shape, -1), rows = quotient(rw_shape_numel(c->in[0].shape), n);
    c->r[0].n = 2 * rows + n + 8;
    c->r[1].n = rows + 8;
}

/* (x - y)^2, n of them, over n; 2 (x - y) / n dy. Broadcast operands add stored differences, squares and sums. */
void op_count_mse(struct op_case *c)
{
    const int n = (int)rw_shape_numel(c->in[0].shape), times = quotient(n, rw_shape_numel(c->in[1].shape));
    c->r[0] = (struct roundings){ n + 4, times > 1 ? 2 : 0 };
    c->r[1] = c->r[2] = (struct roundings){ 5 + (times > 1 ? times + 1 : 0), times > 1 ? 3 : 0 };
}
