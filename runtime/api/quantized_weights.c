/* Quantized weights: their buffers, and quantization and dequantization on the host. */
#include <rewind/quantized.h>

#include "base/alloc.h"
#include "base/quantized_formats.h"
#include "record/context.h"
#include "record/param.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const float nf4_numbers[] = { RW_NF4_NUMBERS };
static const float dynamic_numbers[] = { RW_DYNAMIC_NUMBERS };

/* ---- the buffer ---- */

static rw_status shape_fault(rw_quantized_kind kind, rw_shape shape, char *text, size_t size)
{
    const rw_status status = rw_shape_fault(RW_F32, shape, text, size);
    if (status) return status;
    if (shape.rank != 2) {
        snprintf(text, size, "shape: expected [out, in], got rank %d", shape.rank);
        return RW_ERR_SHAPE;
    }
    if (kind != RW_NF4 || shape.dim[1] % RW_NF4_BLOCK == 0) return RW_OK;
    snprintf(text, size, "shape: expected rows of a multiple of %d numbers, got %lld", RW_NF4_BLOCK,
             (long long)shape.dim[1]);
    return RW_ERR_SHAPE;
}

static struct rw_quantized_parts parts_of(rw_quantized_kind kind, int64_t out, int64_t in)
{
    return kind == RW_NF4 ? rw_parts_of_nf4(out * in) : rw_parts_of_int8(out * in, out);
}

size_t rw_quantized_bytes(rw_quantized_kind kind, rw_shape shape)
{
    RW_LOOKS_ONLY;
    char text[RW_FAULT_MAX];
    if ((unsigned)kind >= RW_QUANTIZED_KIND_COUNT || shape_fault(kind, shape, text, sizeof text)) return 0;
    return (size_t)parts_of(kind, shape.dim[0], shape.dim[1]).bytes;
}

/* Checks kind and shape, and creates the buffer of words. */
rw_status rw_quantized_create_at(rw_site at, rw_context *ctx, const char *name, rw_quantized_kind kind, rw_shape shape,
                                 rw_quantized *ret_weight)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    static const char what[] = "rw_quantized_create";
    char text[RW_FAULT_MAX];
    if (!ctx) return rw_fail_null(NULL, "rw_quantized_create", "ctx");
    if (ctx->status) return ctx->status;
    if (!ret_weight) return rw_fail_null(ctx, what, "ret_weight");
    if ((unsigned)kind >= RW_QUANTIZED_KIND_COUNT)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s at %s:%d: kind: expected RW_NF4 (%d) or RW_INT8 (%d), got %d", what,
                       rw_file_of(at), at.line, RW_NF4, RW_INT8, (int)kind);
    const rw_status status = shape_fault(kind, shape, text, sizeof text);
    if (status) return rw_fail(ctx, status, "%s at %s:%d: %s", what, rw_file_of(at), at.line, text);
    const int64_t out = shape.dim[0], in = shape.dim[1];
    rw_tensor *const words = rw_buffer_at(at, ctx, name, RW_I32, RW_SHAPE(parts_of(kind, out, in).bytes / 4));
    if (!words) return ctx->status;
    *ret_weight = (rw_quantized){ kind, out, in, words };
    return RW_OK;
}

/* ---- quantization ---- */

/* Was it made by rw_quantized_create()? An error of a weight without a context is not recorded. */
static rw_status look(const rw_quantized *w, const char *what)
{
    rw_context *const ctx = w ? rw_tensor_context(w->words) : NULL;
    char text[RW_FAULT_MAX];
    const bool sound = ctx && rw_param_of(w->words) && (unsigned)w->kind < RW_QUANTIZED_KIND_COUNT &&
                       !shape_fault(w->kind, RW_SHAPE(w->out, w->in), text, sizeof text) &&
                       rw_tensor_dtype(w->words) == RW_I32 &&
                       rw_tensor_bytes(w->words) == (size_t)parts_of(w->kind, w->out, w->in).bytes;
    return sound ? RW_OK : rw_fail(ctx, RW_ERR_ARGUMENT, "%s(weight): expected a weight from "
                                                             "rw_quantized_create(), got other members", what);
}

/* Number i as float32. */
static float number_of(const void *data, rw_dtype dtype, int64_t i)
{
    switch (dtype) {
    case RW_F64: return (float)((const double *)data)[i];
    case RW_F16: return (float)((const _Float16 *)data)[i];
    case RW_F32: return ((const float *)data)[i];
    default: break;
    }
    const uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float largest_of(const void *data, rw_dtype dtype, int64_t first, int64_t n)
{
    float most = 0;
    for (int64_t i = first; i < first + n; i++) {
        const float x = fabsf(number_of(data, dtype, i));
        if (x > most) most = x;
    }
    return most;
}

/*
 * Quantizes x to one of n numbers from -1 to 1, scaled by `largest`. Rounds as bitsandbytes does, with the rounded
 * inverse.
 */
static uint8_t code_of(const float *numbers, int n, float x, float largest)
{
    const float inverse = 1 / (largest < 1e-38f ? 1e-38f : largest), scaled = x * inverse;
    return (uint8_t)rw_nearest_code(numbers, n, scaled < -1 ? -1 : scaled > 1 ? 1 : scaled);
}

/* Quantizes the scales [n]. Also returns their mean, and the largest distance from it in each group. */
static void quantize_scales(const float *scales, int64_t n, uint8_t *codes, float *mean, float *largest)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += scales[i];
    *mean = n ? (float)(sum / (double)n) : 0;
    for (int64_t first = 0; first < n; first += RW_NF4_GROUP) {
        const int64_t end = n - first < RW_NF4_GROUP ? n : first + RW_NF4_GROUP;
        float most = 0;
        for (int64_t i = first; i < end; i++) most = fmaxf(most, fabsf(scales[i] - *mean));
        largest[first / RW_NF4_GROUP] = most;
        for (int64_t i = first; i < end; i++) codes[i] = code_of(dynamic_numbers, 256, scales[i] - *mean, most);
    }
}

static void quantize_nf4(const void *data, rw_dtype dtype, int64_t n, float *scales, uint8_t *codes)
{
    for (int64_t first = 0; first < n; first += RW_NF4_BLOCK) {
        const float largest = largest_of(data, dtype, first, RW_NF4_BLOCK);
        scales[first / RW_NF4_BLOCK] = largest;
        for (int64_t i = first; i < first + RW_NF4_BLOCK; i += 2) {
            const uint8_t high = code_of(nf4_numbers, 16, number_of(data, dtype, i), largest);
            const uint8_t low = code_of(nf4_numbers, 16, number_of(data, dtype, i + 1), largest);
            codes[i / 2] = (uint8_t)(high << 4 | low);
        }
    }
}

static void quantize_int8(const void *data, rw_dtype dtype, int64_t out, int64_t in, float *largest, int8_t *codes)
{
    for (int64_t r = 0; r < out; r++) {
        largest[r] = largest_of(data, dtype, r * in, in);
        const float up = largest[r] < 0x1p-120f ? 0x1p100f : 1; /* where 127 / largest would be infinite */
        const float steps = largest[r] > 0 ? 127 / (largest[r] * up) : 0;
        for (int64_t i = r * in; i < (r + 1) * in; i++) {
            const float x = rintf(number_of(data, dtype, i) * up * steps);
            codes[i] = (int8_t)(x > 127 ? 127 : x < -127 ? -127 : x);
        }
    }
}

/* Quantizes into words, which are zero at first; false without memory. */
static bool quantize(const rw_quantized *w, rw_dtype dtype, const void *data, uint8_t *words)
{
    const int64_t n = w->out * w->in, blocks = rw_nf4_blocks(n);
    const struct rw_quantized_parts p = parts_of(w->kind, w->out, w->in);
    float *const largest = (float *)(words + p.largest);
    if (w->kind == RW_INT8) {
        quantize_int8(data, dtype, w->out, w->in, largest, (int8_t *)words);
        return true;
    }
    float *const scales = rw_malloc((size_t)(blocks + 1) * sizeof *scales);
    if (!scales) return false;
    quantize_nf4(data, dtype, n, scales, words);
    quantize_scales(scales, blocks, words + p.scales, (float *)(words + p.mean), largest);
    rw_free(scales);
    return true;
}

/* Checks type and size of the data, and that all numbers are finite. */
static rw_status data_fault(const rw_quantized *w, rw_dtype dtype, const void *data, size_t bytes)
{
    static const char what[] = "rw_quantized_write";
    rw_context *const ctx = rw_tensor_context(w->words);
    const int64_t n = w->out * w->in;
    const size_t takes = (size_t)n * rw_dtype_size(dtype);
    if (!rw_dtype_is_float(dtype))
        return rw_fail(ctx, RW_ERR_DTYPE, "%s(dtype): expected a floating-point type, got %s", what,
                       rw_dtype_name(dtype));
    if (!data) return rw_fail_null(ctx, what, "data");
    if (bytes != takes)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s(bytes): expected %zu for \"%s\", got %zu", what, takes,
                       rw_tensor_name(w->words), bytes);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(number_of(data, dtype, i)))
            return rw_fail(ctx, RW_ERR_ARGUMENT, "%s(data): expected finite numbers for \"%s\", got another at "
                           "%lld", what,
                           rw_tensor_name(w->words), (long long)i);
    return RW_OK;
}

/* Quantizes on the host and writes the words. */
rw_status rw_quantized_write(const rw_quantized *weight, rw_dtype dtype, const void *data, size_t bytes)
{
    RW_ENTER(rw_tensor_context(weight ? weight->words : NULL), RW_ERR_ARGUMENT);
    rw_status status = look(weight, "rw_quantized_write");
    if (!status) status = data_fault(weight, dtype, data, bytes);
    if (status) return status;
    const size_t takes = rw_tensor_bytes(weight->words);
    uint8_t *const words = rw_calloc(takes + 1, 1);
    if (!words || !quantize(weight, dtype, data, words)) {
        rw_free(words);
        return rw_fail(rw_tensor_context(weight->words), RW_ERR_MEMORY, "rw_quantized_write: out of memory");
    }
    status = rw_write(weight->words, words, takes);
    rw_free(words);
    return status;
}

/* ---- dequantization ---- */

static void dequantize(const rw_quantized *w, const uint8_t *words, float *to)
{
    const struct rw_quantized_parts p = parts_of(w->kind, w->out, w->in);
    const float *const mean = (const float *)(words + p.mean), *const largest = (const float *)(words + p.largest);
    for (int64_t i = 0; i < w->out * w->in && w->kind == RW_INT8; i++)
        to[i] = (float)((const int8_t *)words)[i] * largest[i / w->in] * RW_INT8_STEP;
    for (int64_t i = 0; i < w->out * w->in && w->kind == RW_NF4; i++) {
        const int64_t block = i / RW_NF4_BLOCK;
        const float scale = dynamic_numbers[words[p.scales + block]] * largest[block / RW_NF4_GROUP] + *mean;
        to[i] = nf4_numbers[i % 2 ? words[i / 2] & 15 : words[i / 2] >> 4] * scale;
    }
}

/* Reads the words and dequantizes on the host. */
rw_status rw_quantized_read(const rw_quantized *weight, float *data, size_t bytes)
{
    RW_ENTER(rw_tensor_context(weight ? weight->words : NULL), RW_ERR_ARGUMENT);
    static const char what[] = "rw_quantized_read";
    rw_status status = look(weight, what);
    if (status) return status;
    rw_context *const ctx = rw_tensor_context(weight->words);
    const size_t takes = (size_t)(weight->out * weight->in) * sizeof *data, holds = rw_tensor_bytes(weight->words);
    if (!data) return rw_fail_null(ctx, what, "data");
    if (bytes != takes)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s(bytes): expected %zu for \"%s\", got %zu", what, takes,
                       rw_tensor_name(weight->words), bytes);
    const rw_status runs = rw_check_runs(ctx, "rw_quantized_read");
    if (runs) return runs;
    uint8_t *const words = rw_malloc(holds + 1);
    if (!words) return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory", what);
    status = rw_read(NULL, weight->words, words, holds);
    if (!status) dequantize(weight, words, data);
    rw_free(words);
    return status;
}
