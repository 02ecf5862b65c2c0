/* Definitions of convolutions and pooling of images [n, c, h, w] (rewind/conv.h). */
#include "support/definition_runner.h"

#include <math.h>

/* ---- pooling ---- */

enum {
    PL_AVERAGE,
    PL_SIZE,
    PL_KERNEL_H,
    PL_KERNEL_W,
    PL_STRIDE_H,
    PL_STRIDE_W,
    PL_PADDING,
    PL_DILATION_H,
    PL_DILATION_W,
    PL_CEIL,
    PL_EXCLUDE,
    PL_DIVISOR,
    PL_LAYOUT
};

/* The last one has rows that backward splits between threads. */
static rw_shape image_of(int size)
{
    static const rw_shape images[] = { { 4, { 2, 3, 5, 7 } }, { 4, { 1, 1, 8, 6 } }, { 4, { 2, 40, 4, 130 } } };
    return images[size];
}

static rw_pool2d_params pool_of(const struct def_trial *c)
{
    static const int dilations[] = { 0, 2, 3, 8 };
    rw_pool2d_params p = { 0 };
    for (int i = 0; i < 2; i++) {
        p.kernel[i] = c->v[PL_KERNEL_H + i] + 1;
        p.stride[i] = c->v[PL_STRIDE_H + i];
        p.padding[i] = c->v[PL_PADDING] >> i & 1;
        p.dilation[i] = dilations[c->v[PL_DILATION_H + i]];
    }
    p.ceil_mode = c->v[PL_CEIL];
    p.exclude_padding = c->v[PL_EXCLUDE];
    p.divisor_override = c->v[PL_DIVISOR] ? 3 : 0;
    return p;
}

static int pool_stride(const rw_pool2d_params *p, int i)
{
    return p->stride[i] ? p->stride[i] : p->kernel[i];
}

static int pool_dilation(const rw_pool2d_params *p, int i)
{
    return p->dilation[i] ? p->dilation[i] : 1;
}

static int64_t pool_extent(const rw_pool2d_params *p, int i, int64_t n)
{
    const int64_t span = pool_dilation(p, i) * (p->kernel[i] - 1) + 1, stride = pool_stride(p, i);
    const int64_t rest = n + 2 * p->padding[i] - span;
    if (rest < 0) return 0;
    int64_t windows = (rest + (p->ceil_mode ? stride - 1 : 0)) / stride + 1;
    while (windows > 1 && (windows - 1) * stride - p->padding[i] >= n) windows--;
    return windows;
}

static bool pool_make(struct def_trial *c)
{
    const rw_pool2d_params p = pool_of(c);
    const rw_shape s = image_of(c->v[PL_SIZE]);
    for (int i = 0; i < 2; i++)
        if (p.padding[i] > p.kernel[i] / 2) return false;
    if (c->v[PL_AVERAGE] && (p.dilation[0] || p.dilation[1])) return false;
    if (!c->v[PL_AVERAGE] && (p.exclude_padding || p.divisor_override)) return false;
    if (c->v[PL_SIZE] == 2 && c->v[PL_LAYOUT] == DEF_TRANSPOSED) return false;
    def_operand(c, 0, s, DEF_SIGNED, c->v[PL_LAYOUT]);
    c->out[0] = s;
    for (int i = 0; i < 2; i++)
        if (!(c->out[0].dim[2 + i] = pool_extent(&p, i, s.dim[2 + i]))) return false;
    return true;
}

static bool pool_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    const rw_pool2d_params p = pool_of(c);
    return (y[0] = c->v[PL_AVERAGE] ? rw_avg_pool2d(t, x[0], &p) : rw_max_pool2d(t, x[0], &p));
}

/* A window's value, and the position of its maximum in the image: -1 if it contains only padding. */
static real window(const struct def_trial *c, const real *image, int64_t oy, int64_t ox, int64_t *place, real *divisor)
{
    const rw_pool2d_params p = pool_of(c);
    const int64_t h = c->in[0].shape.dim[2], w = c->in[0].shape.dim[3], o[] = { oy, ox };
    int64_t begin[2], cut[2], extent[] = { h, w };
    real sum = 0, most = -INFINITY, inside = 0;
    for (int i = 0; i < 2; i++) {
        begin[i] = o[i] * pool_stride(&p, i) - p.padding[i];
        cut[i] = begin[i] + p.kernel[i];
        if (cut[i] > extent[i] + p.padding[i]) cut[i] = extent[i] + p.padding[i];
    }
    *place = -1;
    for (int64_t i = 0; i < p.kernel[0]; i++)
        for (int64_t j = 0; j < p.kernel[1]; j++) {
            const int64_t y = begin[0] + i * pool_dilation(&p, 0), x = begin[1] + j * pool_dilation(&p, 1);
            if (y < 0 || y >= h || x < 0 || x >= w) continue;
            sum += image[y * w + x];
            inside++;
            if (*place >= 0 && image[y * w + x] <= most) continue;
            most = image[y * w + x];
            *place = y * w + x;
        }
    *divisor = p.divisor_override  ? p.divisor_override
               : p.exclude_padding ? inside
                                   : (real)((cut[0] - begin[0]) * (cut[1] - begin[1]));
    return c->v[PL_AVERAGE] ? sum / *divisor : most;
}

static void pool_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const rw_shape s = c->in[0].shape, o = c->out[0];
    int64_t i = 0, place;
    real divisor;
    for (int64_t plane = 0; plane < s.dim[0] * s.dim[1]; plane++)
        for (int64_t oy = 0; oy < o.dim[2]; oy++)
            for (int64_t ox = 0; ox < o.dim[3]; ox++)
                y[0][i++] = window(c, x[0] + plane * s.dim[2] * s.dim[3], oy, ox, &place, &divisor);
}

/* Adds each window's gradient to its largest element, or in equal parts to all its elements. */
static void pool_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    const rw_pool2d_params p = pool_of(c);
    const rw_shape s = c->in[0].shape, o = c->out[0];
    const int64_t h = s.dim[2], w = s.dim[3];
    int64_t i = 0, place;
    real divisor;
    for (int64_t plane = 0; plane < s.dim[0] * s.dim[1]; plane++)
        for (int64_t oy = 0; oy < o.dim[2]; oy++)
            for (int64_t ox = 0; ox < o.dim[3]; ox++, i++) {
                real *const to = dx[0] + plane * h * w;
                window(c, x[0] + plane * h * w, oy, ox, &place, &divisor);
                if (!c->v[PL_AVERAGE]) {
                    if (place >= 0) to[place] += dy[0][i];
                    continue;
                }
                for (int64_t a = 0; a < p.kernel[0]; a++)
                    for (int64_t b = 0; b < p.kernel[1]; b++) {
                        const int64_t z = oy * pool_stride(&p, 0) - p.padding[0] + a;
                        const int64_t v = ox * pool_stride(&p, 1) - p.padding[1] + b;
                        if (z >= 0 && z < h && v >= 0 && v < w) to[z * w + v] += dy[0][i] / divisor;
                    }
            }
}

/* ---- adaptive pooling ---- */

enum { AD_KIND, AD_SIZE, AD_HEIGHT, AD_WIDTH, AD_LAYOUT };

static bool adaptive_make(struct def_trial *c)
{
    static const int64_t extents[] = { 0, 1, 2, 3, 7 };
    const rw_shape s = image_of(c->v[AD_SIZE]);
    def_operand(c, 0, s, DEF_SIGNED, c->v[AD_LAYOUT]);
    c->a[0] = c->v[AD_KIND] == 2 ? 1 : extents[c->v[AD_HEIGHT]];
    c->a[1] = c->v[AD_KIND] == 2 ? 1 : extents[c->v[AD_WIDTH]];
    c->out[0] = s;
    for (int i = 0; i < 2; i++)
        if (c->a[i]) c->out[0].dim[2 + i] = c->a[i];
    return true;
}

static bool adaptive_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    y[0] = c->v[AD_KIND] == 0   ? rw_adaptive_avg_pool2d(t, x[0], c->a[0], c->a[1])
           : c->v[AD_KIND] == 1 ? rw_adaptive_max_pool2d(t, x[0], c->a[0], c->a[1])
                                : rw_global_avg_pool2d(t, x[0]);
    return y[0];
}

/* Computes results y, or if y is NULL gradients dx from dy. */
static void adaptive(const struct def_trial *c, const real *x, real *y, const real *dy, real *dx)
{
    const rw_shape s = c->in[0].shape, o = c->out[0];
    const int64_t h = s.dim[2], w = s.dim[3];
    int64_t i = 0;
    for (int64_t plane = 0; plane < s.dim[0] * s.dim[1]; plane++)
        for (int64_t oy = 0; oy < o.dim[2]; oy++)
            for (int64_t ox = 0; ox < o.dim[3]; ox++, i++) {
                const int64_t y0 = oy * h / o.dim[2], y1 = ((oy + 1) * h + o.dim[2] - 1) / o.dim[2];
                const int64_t x0 = ox * w / o.dim[3], x1 = ((ox + 1) * w + o.dim[3] - 1) / o.dim[3];
                const real n = (real)((y1 - y0) * (x1 - x0));
                int64_t best = plane * h * w + y0 * w + x0;
                real sum = 0;
                for (int64_t z = y0; z < y1; z++)
                    for (int64_t v = x0; v < x1; v++) {
                        const int64_t at = plane * h * w + z * w + v;
                        sum += x[at];
                        if (x[at] > x[best]) best = at;
                        if (!y && c->v[AD_KIND] != 1) dx[at] += dy[i] / n;
                    }
                if (y) y[i] = c->v[AD_KIND] == 1 ? x[best] : sum / n;
                else if (c->v[AD_KIND] == 1) dx[best] += dy[i];
            }
}

static void adaptive_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    adaptive(c, x[0], y[0], NULL, NULL);
}

static void adaptive_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    adaptive(c, x[0], NULL, dy[0], dx[0]);
}

/* ---- convolutions ---- */

enum {
    CV_TRANSPOSED,
    CV_KERNEL_H,
    CV_KERNEL_W,
    CV_STRIDE_H,
    CV_STRIDE_W,
    CV_PADDING,
    CV_DILATION_H,
    CV_DILATION_W,
    CV_GROUPS,
    CV_BIAS,
    CV_X_LAYOUT,
    CV_WEIGHT_LAYOUT,
    CV_OUTPUT_PADDING,
    CV_FROZEN
};

static rw_conv2d_params conv_of(const struct def_trial *c)
{
    static const int groups[] = { 1, 2, 4 };
    rw_conv2d_params p = { .groups = groups[c->v[CV_GROUPS]] };
    for (int i = 0; i < 2; i++) {
        p.stride[i] = c->v[CV_STRIDE_H + i] + 1;
        p.padding[i] = c->v[CV_PADDING] >> i & 1;
        p.dilation[i] = c->v[CV_DILATION_H + i] + 1;
        p.output_padding[i] = c->v[CV_OUTPUT_PADDING] >> i & 1;
    }
    return p;
}

/* Operands of a convolution; false where the geometry is invalid. */
static bool conv_make(struct def_trial *c)
{
    const rw_conv2d_params p = conv_of(c);
    const bool transposed = c->v[CV_TRANSPOSED];
    const int64_t channels = 4, made = 4, kernel[] = { c->v[CV_KERNEL_H] + 1, c->v[CV_KERNEL_W] + 1 };
    const rw_shape s = RW_SHAPE(2, channels, transposed ? 3 : 5, 4);
    if (!transposed && c->v[CV_OUTPUT_PADDING]) return false;
    def_operand(c, 0, s, DEF_SIGNED, c->v[CV_X_LAYOUT]);
    def_operand(c, 1, RW_SHAPE(channels, made / p.groups, kernel[0], kernel[1]), DEF_SIGNED, c->v[CV_WEIGHT_LAYOUT]);
    def_operand(c, 2, RW_SHAPE(made), DEF_SIGNED, DEF_DENSE)->is_absent = !c->v[CV_BIAS];
    if (c->v[CV_FROZEN]) c->in[c->v[CV_FROZEN] - 1].is_frozen = true;
    c->out[0] = RW_SHAPE(2, made, 0, 0);
    for (int i = 0; i < 2; i++) {
        const int64_t n = s.dim[2 + i], span = p.dilation[i] * (kernel[i] - 1) + 1;
        if (p.output_padding[i] && p.output_padding[i] >= p.stride[i] && p.output_padding[i] >= p.dilation[i])
            return false;
        const int64_t extent = transposed ? (n - 1) * p.stride[i] - 2 * p.padding[i] + span + p.output_padding[i]
                                          : n + 2 * p.padding[i] - span;
        if (transposed ? extent < 1 : extent < 0) return false;
        c->out[0].dim[2 + i] = transposed ? extent : extent / p.stride[i] + 1;
    }
    return true;
}

static bool conv_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    const rw_conv2d_params p = conv_of(c);
    y[0] = c->v[CV_TRANSPOSED] ? rw_conv_transpose2d(t, x[0], x[1], x[2], &p) : rw_conv2d(t, x[0], x[1], x[2], &p);
    return y[0];
}

/* Both directions have the same terms: an element of the large image, one of the small image and a weight. */
static void conv_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const rw_conv2d_params p = conv_of(c);
    const bool transposed = c->v[CV_TRANSPOSED];
    const rw_shape large = transposed ? c->out[0] : c->in[0].shape, small = transposed ? c->in[0].shape : c->out[0];
    const rw_shape w = c->in[1].shape;
    const int64_t per = 4 / p.groups;
    int64_t at[6] = { 0 }; /* image, small channel, large channel of the group, kernel y, kernel x */
    const rw_shape space = RW_SHAPE(2, 4, per, w.dim[2], w.dim[3]);
    for (int64_t i = 0; i < rw_shape_numel(c->out[0]); i++)
        y[0][i] = x[2] ? x[2][i / (c->out[0].dim[2] * c->out[0].dim[3]) % 4] : 0;
    do {
        const int64_t channel = at[1] / per * per + at[2];
        const real weight = x[1][((at[1] * per + at[2]) * w.dim[2] + at[3]) * w.dim[3] + at[4]];
        for (int64_t oy = 0; oy < small.dim[2]; oy++)
            for (int64_t ox = 0; ox < small.dim[3]; ox++) {
                const int64_t iy = oy * p.stride[0] - p.padding[0] + at[3] * p.dilation[0];
                const int64_t ix = ox * p.stride[1] - p.padding[1] + at[4] * p.dilation[1];
                if (iy < 0 || iy >= large.dim[2] || ix < 0 || ix >= large.dim[3]) continue;
                const int64_t in = ((at[0] * 4 + channel) * large.dim[2] + iy) * large.dim[3] + ix;
                const int64_t out = ((at[0] * 4 + at[1]) * small.dim[2] + oy) * small.dim[3] + ox;
                if (transposed) y[0][in] += weight * x[0][out];
                else y[0][out] += weight * x[0][in];
            }
    } while (def_next(space, at));
}

const struct definition def_images[] = {
    { .name = "pooling",
      .ops = "max_pool2d avg_pool2d",
      .factor = { { "average", 2 },
                  { "size", 3 },
                  { "kernel h", 3 },
                  { "kernel w", 3 },
                  { "stride h", 4 },
                  { "stride w", 4 },
                  { "padding", 4 },
                  { "dilation h", 3 },
                  { "dilation w", 4 },
                  { "ceil", 2 },
                  { "exclude", 2 },
                  { "divisor", 2 },
                  { "layout", DEF_LAYOUTS } },
      .make = pool_make,
      .record = pool_record,
      .reference = pool_reference,
      .gradient = pool_gradient,
      .roundings = 10,
      .back_roundings = 20,
      .stored = 1 },
    { .name = "adaptive pooling",
      .ops = "avg_pool2d max_pool2d mean",
      .factor = { { "kind", 3 }, { "size", 2 }, { "height", 5 }, { "width", 5 }, { "layout", DEF_LAYOUTS } },
      .make = adaptive_make,
      .record = adaptive_record,
      .reference = adaptive_reference,
      .gradient = adaptive_gradient,
      .roundings = 50,
      .back_roundings = 4,
      .stored = 1 },
    { .name = "convolutions",
      .ops = "conv2d conv_transpose2d",
      .factor = { { "transposed", 2 },
                  { "kernel h", 3 },
                  { "kernel w", 3 },
                  { "stride h", 3 },
                  { "stride w", 3 },
                  { "padding", 4 },
                  { "dilation h", 2 },
                  { "dilation w", 3 },
                  { "groups", 3 },
                  { "bias", 2 },
                  { "x layout", DEF_LAYOUTS },
                  { "weight layout", DEF_LAYOUTS },
                  { "output padding", 4 },
                  { "frozen", 3 } },
      .make = conv_make,
      .record = conv_record,
      .reference = conv_reference,
      .roundings = 60,
      .back_roundings = 120,
      .stored = 2 },
    { 0 }
};
