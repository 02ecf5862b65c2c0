/*
 * Convolutions compared with oneDNN's own: a weight's gradient, whose sums oneDNN splits by the number of threads, and
 * ours by shape only, so that its bits are the same for any number; and y and dx. Ours are timed as by
 * rw_profile_begin(), with everything that a node does; oneDNN's are only its primitive, with all threads, in its
 * preferred layout. Alternately, medians and means of ROUNDS. Then prints the number of bytes of weights' gradients
 * that other numbers of threads change.
 *
 *   convolutions [ROUNDS] [THREADS]
 */
#include "figure.h"

#include "device/cpu/onednn.h"
#include "device/cpu/onednn_api.h"

#include <omp.h>
#include <rewind/rewind.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS_MAX = 64, THREADS_MAX = 8, KINDS = 3 }; /* in the order of rw_onednn_conv */
static const char *const ops[KINDS] = { "conv2d", "conv2d_data", "conv2d_weight" };
static const char *const names[KINDS] = { "y", "dx", "dweight" };

/* Layers of ResNet-50, VGG-16 and U-Net, as in their benchmarks. */
struct layer {
    int64_t n, c, side, oc, k, stride;
};
static const struct layer layers[] = {
    { 8, 64, 56, 64, 3, 1 },   { 8, 128, 28, 128, 3, 1 }, { 8, 256, 14, 256, 3, 1 }, { 8, 64, 56, 256, 1, 1 },
    { 8, 256, 56, 128, 1, 1 }, { 8, 256, 28, 256, 3, 2 }, { 4, 64, 112, 128, 3, 1 }, { 4, 256, 56, 256, 3, 1 },
    { 4, 512, 28, 512, 3, 1 }, { 1, 128, 112, 128, 3, 1 }, { 1, 512, 28, 512, 3, 1 },
};
enum { LAYERS = sizeof layers / sizeof *layers };

/* ---- ours ---- */

struct ours {
    rw_context *ctx;
    rw_tape *t;
    rw_tensor *x, *w;
};

static bool ours_open(struct ours *r, const struct layer *l, rw_dtype dtype, int threads)
{
    *r = (struct ours){ 0 };
    const rw_context_params params = { .seed = 1, .threads = threads };
    if (rw_context_create(&r->ctx, &params) || rw_tape_create(&r->t, r->ctx)) return false;
    r->x = rw_param(r->ctx, "x", dtype, RW_SHAPE(l->n, l->side, l->side, l->c));
    r->w = rw_param(r->ctx, "w", dtype, RW_SHAPE(l->oc, l->c, l->k, l->k));
    return r->x && r->w && !rw_init_normal(r->x, 0, 1) && !rw_init_normal(r->w, 0, 0.1);
}

static rw_status ours_backward(struct ours *r, const struct layer *l)
{
    const int stride = (int)l->stride, padding = (int)l->k / 2;
    rw_tensor *const x = rw_permute(r->t, r->x, (const int[]){ 0, 3, 1, 2 });
    const rw_conv2d_params params = { .stride = { stride, stride }, .padding = { padding, padding } };
    rw_tensor *const y = rw_conv2d(r->t, x, r->w, RW_NONE, &params);
    return rw_backward(r->t, rw_sum(r->t, rw_mul(r->t, y, y), RW_ALL_AXES, false));
}

static rw_status ours_step(struct ours *r, const struct layer *l)
{
    const rw_status status = ours_backward(r, l);
    rw_tape_reset(r->t);
    rw_zero_grad(r->ctx);
    return status;
}

static void ours_close(struct ours *r)
{
    if (rw_error_status(r->ctx)) fprintf(stderr, "convolutions: %s\n", rw_error_message(r->ctx));
    rw_tape_destroy(&r->t);
    rw_context_destroy(&r->ctx);
}

/* Bytes in which the gradient of a step's weights with more threads differs from that with one; -1: an error. */
static double bytes_apart(const struct layer *l, rw_dtype dtype)
{
    const size_t bytes = (size_t)(l->oc * l->c * l->k * l->k) * sizeof(float); /* of any type: sums are float32 */
    char *const one = malloc(bytes), *const other = malloc(bytes);
    bool good = one && other;
    double apart = 0;
    for (int threads = 1; good && threads <= THREADS_MAX; threads++) {
        struct ours r;
        char *const to = threads == 1 ? one : other;
        good = ours_open(&r, l, dtype, threads) && !ours_backward(&r, l) &&
               !rw_read(r.t, rw_gradient(r.w), to, bytes);
        for (size_t i = 0; good && threads > 1 && i < bytes; i++) apart += one[i] != other[i];
        ours_close(&r);
    }
    free(one), free(other);
    return good ? apart : -1;
}

/* Milliseconds of each kind, from the cost file; NAN for one that is missing. */
static void ours_read(const struct ours *r, double *ms)
{
    char path[] = "/tmp/rewind-convolutions-XXXXXX", line[512], op[128];
    const int f = mkstemp(path);
    for (int k = 0; k < KINDS; k++) ms[k] = 0.0 / 0.0;
    FILE *const file = f < 0 || rw_costs_save(r->ctx, path) ? NULL : fopen(path, "r");
    unsigned long long signature, ps, operations, bytes;
    while (file && fgets(line, sizeof line, file))
        for (int k = 0; k < KINDS; k++)
            if (sscanf(line, "%llx %llu %llu %llu %*s %127s", &signature, &ps, &operations, &bytes, op) == 5 &&
                !strcmp(op, ops[k]))
                ms[k] = 1e-9 * (double)ps;
    if (file) fclose(file);
    if (f >= 0) close(f);
    remove(path);
}

/* ---- theirs ---- */

struct theirs {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive[KINDS];
    dnnl_memory_t image, result, weight[KINDS];
};

static dnnl_memory_t memory_of(struct theirs *r, rw_onednn_const_desc d)
{
    dnnl_memory_t m = NULL;
    void *data = NULL;
    dnnl_memory_create(&m, d, r->engine, DNNL_MEMORY_ALLOCATE);
    if (m && !dnnl_memory_get_data_handle(m, &data)) memset(data, 0, dnnl_memory_desc_get_size(d));
    return m;
}

/* The operands of a layer, images with channels last, and weights in the layout that the library prefers. */
enum { IMAGE, RESULT, WEIGHT, WEIGHT_SUM, DESCS };

static bool describe(const struct layer *l, rw_dtype dtype, rw_onednn_desc *d)
{
    const int64_t out = (l->side - 1) / l->stride + 1;
    const dnnl_dims_t x = { l->n, l->c, l->side, l->side }, y = { l->n, l->oc, out, out };
    const dnnl_dims_t w = { l->oc, l->c, l->k, l->k };
    const dnnl_data_type_t type = dtype == RW_BF16 ? dnnl_bf16 : dnnl_f32;
    return !rw_onednn_desc_by_tag(&d[IMAGE], 4, x, type, dnnl_nhwc) &&
           !rw_onednn_desc_by_tag(&d[RESULT], 4, y, type, dnnl_nhwc) &&
           !rw_onednn_desc_by_tag(&d[WEIGHT], 4, w, type, dnnl_format_tag_any) &&
           !rw_onednn_desc_by_tag(&d[WEIGHT_SUM], 4, w, dnnl_f32, dnnl_format_tag_any);
}

/* Creates the primitive of one of the products, and its weight. */
static bool add_primitive(struct theirs *r, const struct layer *l, const rw_onednn_desc *d, int kind)
{
    const bool sums = kind == RW_ONEDNN_BACKWARD_WEIGHT;
    const struct rw_onednn_conv_operands o = {
        .x = d[IMAGE], .weight = d[sums ? WEIGHT_SUM : WEIGHT], .y = d[RESULT],
        .stride = { l->stride, l->stride }, .padding = { l->k / 2, l->k / 2 }, .end = { l->k / 2, l->k / 2 },
    };
    const dnnl_query_t weight = sums ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
    dnnl_primitive_desc_t pd = NULL;
    const bool good = !rw_onednn_describe_conv(r->engine, kind, &o, NULL, NULL, &pd) &&
                      !dnnl_primitive_create(&r->primitive[kind], pd) &&
                      (r->weight[kind] = memory_of(r, dnnl_primitive_desc_query_md(pd, weight, 0)));
    if (pd) dnnl_primitive_desc_destroy(pd);
    return good;
}

/* Creates oneDNN's primitives of a layer, in the layouts that it prefers. */
static bool theirs_open(struct theirs *r, const struct layer *l, rw_dtype dtype)
{
    rw_onednn_desc d[DESCS] = { NULL };
    *r = (struct theirs){ 0 };
    bool good = !dnnl_engine_create(&r->engine, dnnl_cpu, 0) &&
                !dnnl_stream_create(&r->stream, r->engine, dnnl_stream_default_flags) && describe(l, dtype, d);
    for (int k = 0; good && k < KINDS; k++) good = add_primitive(r, l, d, k);
    r->image = good ? memory_of(r, d[IMAGE]) : NULL;
    r->result = good ? memory_of(r, d[RESULT]) : NULL;
    for (int i = 0; i < DESCS; i++) rw_onednn_desc_destroy(&d[i]);
    return good && r->image && r->result;
}

static double theirs_run(struct theirs *r, int kind)
{
    static const int arguments[KINDS][3] = { { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST },
                                             { DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST },
                                             { DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST } };
    const int *const a = arguments[kind];
    const dnnl_exec_arg_t args[] = { { a[0], r->image }, { a[1], r->weight[kind] }, { a[2], r->result } };
    const double begin = now_s();
    dnnl_primitive_execute(r->primitive[kind], r->stream, 3, args);
    dnnl_stream_wait(r->stream);
    return 1e3 * (now_s() - begin);
}

static void theirs_close(struct theirs *r)
{
    for (int k = 0; k < KINDS; k++) {
        if (r->primitive[k]) dnnl_primitive_destroy(r->primitive[k]);
        if (r->weight[k]) dnnl_memory_destroy(r->weight[k]);
    }
    if (r->image) dnnl_memory_destroy(r->image);
    if (r->result) dnnl_memory_destroy(r->result);
    if (r->stream) dnnl_stream_destroy(r->stream);
    if (r->engine) dnnl_engine_destroy(r->engine);
}

/* ---- both ---- */

struct totals {
    double ours[KINDS], theirs[KINDS], worst[KINDS];
};

/* Times one layer with ours and with oneDNN alternately, and adds it to the totals. */
static bool compare(const struct layer *l, rw_dtype dtype, int threads, int rounds, struct totals *sum)
{
    struct ours ours;
    struct theirs theirs = { 0 };
    double ms[KINDS][ROUNDS_MAX], our_ms[KINDS];
    bool good = ours_open(&ours, l, dtype, threads) && theirs_open(&theirs, l, dtype) && !ours_step(&ours, l);
    for (int k = 0; good && k < KINDS; k++) theirs_run(&theirs, k);
    good = good && !rw_profile_begin(ours.ctx);
    for (int i = 0; good && i < rounds; i++) {
        good = !ours_step(&ours, l);
        for (int k = 0; k < KINDS; k++) ms[k][i] = theirs_run(&theirs, k);
    }
    good = good && !rw_profile_end(ours.ctx);
    if (good) ours_read(&ours, our_ms);
    for (int k = 0; good && k < KINDS; k++) {
        const double native = median_of(ms[k], rounds), ratio = our_ms[k] / native;
        printf("# %s, [%lld, %lld, %lld, %lld] to %lld by %lld x %lld, stride %lld, %s: %.2f ms, the library's %.2f, "
               "%.3f times\n", rw_dtype_name(dtype), (long long)l->n, (long long)l->c, (long long)l->side,
               (long long)l->side, (long long)l->oc, (long long)l->k, (long long)l->k, (long long)l->stride, names[k],
               our_ms[k], native, ratio);
        sum->ours[k] += our_ms[k], sum->theirs[k] += native;
        if (!(ratio <= sum->worst[k])) sum->worst[k] = ratio;
    }
    theirs_close(&theirs);
    ours_close(&ours);
    return good;
}

static bool threads_change_nothing(rw_dtype dtype)
{
    double apart = 0, of = 0;
    char what[128];
    for (int i = 0; i < LAYERS && of >= 0; i++, apart += of) of = bytes_apart(&layers[i], dtype);
    snprintf(what, sizeof what, "bytes of dweight that 2 to %d threads change, %s, %d layers", THREADS_MAX,
             rw_dtype_name(dtype), LAYERS);
    if (of >= 0) figure(what, apart, "bytes", 0);
    return of >= 0;
}

int main(int argc, char **argv)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16 };
    const int rounds = argc > 1 ? figure_integer(argv[1], 1, ROUNDS_MAX) : 9;
    const int threads = argc > 2 ? figure_integer(argv[2], 1, 1024) : omp_get_max_threads();
    bool good = rounds >= 1 && rounds <= ROUNDS_MAX && threads >= 1;
    if (!good) fprintf(stderr, "convolutions: usage: convolutions [ROUNDS (1 to %d)] [THREADS]\n", ROUNDS_MAX);
    omp_set_num_threads(good ? threads : 1);
    for (int d = 0; good && d < 2; d++) {
        struct totals sum = { 0 };
        for (int i = 0; good && i < LAYERS; i++) good = compare(&layers[i], types[d], threads, rounds, &sum);
        for (int k = 0; good && k < KINDS; k++) {
            char what[128];
            snprintf(what, sizeof what, "time of %s over the library's own, %s, %d layers together (worst %.2f)",
                     names[k], rw_dtype_name(types[d]), LAYERS, sum.worst[k]);
            figure(what, sum.ours[k] / sum.theirs[k], "times", 1.2);
        }
        good = good && threads_change_nothing(types[d]);
    }
    return answer_end("convolutions", good ? 0 : 1);
}
