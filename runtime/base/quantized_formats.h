/*
 * Quantized weights: the values of INT8 and NF4 data, and quantization of a number. Kernels of all devices include
 * this, so equal data means equal bits everywhere.
 *
 * NF4: Dettmers, Pagnoni, Holtzman, Zettlemoyer, "QLoRA: Efficient Finetuning of Quantized LLMs", arXiv 2305.14314;
 * tables and order of rounding as in bitsandbytes 0.50.2. The scale of a block of 64 numbers is its largest magnitude.
 * Scales are quantized to eight bits themselves: scale - offset, divided by the largest of 256 such differences.
 */
#ifndef RW_BASE_QUANTIZED_FORMATS_H
#define RW_BASE_QUANTIZED_FORMATS_H

#include <stdint.h>

#define RW_NF4_BLOCK 64   /* numbers with one scale */
#define RW_NF4_GROUP 256  /* scales with one largest */
#define RW_INT8_STEP 7.874015718698502e-3f /* 1 / 127, as bitsandbytes writes it */

/* Values of 4-bit data: quantiles of the normal distribution. */
#define RW_NF4_NUMBERS \
    -1.0f, -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.091050036f, 0.0f, 0.0795803f, \
    0.1609302f, 0.2461123f, 0.33791524f, 0.44070983f, 0.562617f, 0.72295684f, 1.0f

/* Values of 8-bit data: bitsandbytes' dynamic map. */
#define RW_DYNAMIC_NUMBERS \
    -0.99296874f, -0.9789063f, -0.96484375f, -0.9507812f, -0.93671876f, -0.92265624f, -0.9085938f, -0.89453125f, \
    -0.8804687f, -0.86640626f, -0.85234374f, -0.8382813f, -0.82421875f, -0.8101562f, -0.79609376f, -0.78203124f, \
    -0.7679688f, -0.75390625f, -0.7398437f, -0.72578126f, -0.7117188f, -0.6976563f, -0.68359375f, -0.6695312f, \
    -0.65546876f, -0.6414063f, -0.6273438f, -0.61328125f, -0.5992187f, -0.58515626f, -0.5710938f, -0.5570313f, \
    -0.54296875f, -0.5289062f, -0.5148437f, -0.50078124f, -0.4867187f, -0.47265625f, -0.45859373f, -0.44453126f, \
    -0.43046874f, -0.41640624f, -0.40234375f, -0.38828123f, -0.37421876f, -0.36015624f, -0.34609374f, -0.33203125f, \
    -0.31796873f, -0.30390626f, -0.28984374f, -0.27578127f, -0.26171875f, -0.24765624f, -0.23359375f, -0.21953125f, \
    -0.20546874f, -0.19140625f, -0.17734376f, -0.16328125f, -0.14921875f, -0.13515624f, -0.12109375f, -0.107031256f, \
    -0.09859375f, -0.09578126f, -0.092968754f, -0.09015625f, -0.08734375f, -0.08453125f, -0.08171876f, -0.07890625f, \
    -0.07609375f, -0.07328125f, -0.070468746f, -0.067656256f, -0.06484375f, -0.06203125f, -0.059218753f, \
    -0.05640625f, -0.05359375f, -0.05078125f, -0.04796875f, -0.04515625f, -0.042343747f, -0.03953125f, \
    -0.036718752f, -0.03390625f, -0.03109375f, -0.028281251f, -0.02546875f, -0.02265625f, -0.019843752f, \
    -0.01703125f, -0.01421875f, -0.01140625f, -0.00971875f, -0.009156249f, -0.00859375f, -0.00803125f, -0.00746875f, \
    -0.00690625f, -0.00634375f, -0.00578125f, -0.0052187503f, -0.0046562497f, -0.00409375f, -0.0035312497f, \
    -0.00296875f, -0.00240625f, -0.00184375f, -0.0012812499f, -0.0009437501f, -0.00083125f, -0.00071875006f, \
    -0.0006062501f, -0.00049375003f, -0.00038125002f, -0.00026875004f, -0.00015625001f, -8.875e-05f, -6.625e-05f, \
    -4.375e-05f, -2.1249998e-05f, -7.75e-06f, -3.2500002e-06f, -5.5000004e-07f, 0.0f, 5.5000004e-07f, \
    3.2500002e-06f, 7.75e-06f, 2.1249998e-05f, 4.375e-05f, 6.625e-05f, 8.875e-05f, 0.00015625001f, 0.00026875004f, \
    0.00038125002f, 0.00049375003f, 0.0006062501f, 0.00071875006f, 0.00083125f, 0.0009437501f, 0.0012812499f, \
    0.00184375f, 0.00240625f, 0.00296875f, 0.0035312497f, 0.00409375f, 0.0046562497f, 0.0052187503f, 0.00578125f, \
    0.00634375f, 0.00690625f, 0.00746875f, 0.00803125f, 0.00859375f, 0.009156249f, 0.00971875f, 0.01140625f, \
    0.01421875f, 0.01703125f, 0.019843752f, 0.02265625f, 0.02546875f, 0.028281251f, 0.03109375f, 0.03390625f, \
    0.036718752f, 0.03953125f, 0.042343747f, 0.04515625f, 0.04796875f, 0.05078125f, 0.05359375f, 0.05640625f, \
    0.059218753f, 0.06203125f, 0.06484375f, 0.067656256f, 0.070468746f, 0.07328125f, 0.07609375f, 0.07890625f, \
    0.08171876f, 0.08453125f, 0.08734375f, 0.09015625f, 0.092968754f, 0.09578126f, 0.09859375f, 0.107031256f, \
    0.12109375f, 0.13515624f, 0.14921875f, 0.16328125f, 0.17734376f, 0.19140625f, 0.20546874f, 0.21953125f, \
    0.23359375f, 0.24765624f, 0.26171875f, 0.27578127f, 0.28984374f, 0.30390626f, 0.31796873f, 0.33203125f, \
    0.34609374f, 0.36015624f, 0.37421876f, 0.38828123f, 0.40234375f, 0.41640624f, 0.43046874f, 0.44453126f, \
    0.45859373f, 0.47265625f, 0.4867187f, 0.50078124f, 0.5148437f, 0.5289062f, 0.54296875f, 0.5570313f, 0.5710938f, \
    0.58515626f, 0.5992187f, 0.61328125f, 0.6273438f, 0.6414063f, 0.65546876f, 0.6695312f, 0.68359375f, 0.6976563f, \
    0.7117188f, 0.72578126f, 0.7398437f, 0.75390625f, 0.7679688f, 0.78203124f, 0.79609376f, 0.8101562f, 0.82421875f, \
    0.8382813f, 0.85234374f, 0.86640626f, 0.8804687f, 0.89453125f, 0.9085938f, 0.92265624f, 0.93671876f, 0.9507812f, \
    0.96484375f, 0.9789063f, 0.99296874f, 1.0f

/*
 * Index of the nearest of n ascending numbers, of the lower one for a tie: the midpoint is computed in float32. A
 * number beyond the last one gives the last.
 */
static inline int rw_nearest_code(const float *numbers, int n, float x)
{
    int low = 0, high = n - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        const float between = (numbers[middle] + numbers[middle + 1]) / 2;
        if (x > between) low = middle + 1;
        else high = middle;
    }
    return low;
}

static inline int64_t rw_nf4_blocks(int64_t n)
{
    return (n + RW_NF4_BLOCK - 1) / RW_NF4_BLOCK;
}

static inline int64_t rw_nf4_groups(int64_t n)
{
    return (rw_nf4_blocks(n) + RW_NF4_GROUP - 1) / RW_NF4_GROUP;
}

/* Offsets in bytes, from the start of the data, of the parts of a weight with so many numbers in so many rows. */
struct rw_quantized_parts {
    int64_t scales;  /* of NF4: a byte for each block */
    int64_t mean;    /* of NF4: float32 */
    int64_t largest; /* float32: of each group, of INT8 of each row */
    int64_t bytes;   /* of all: a multiple of 4 */
};

static inline struct rw_quantized_parts rw_parts_of_nf4(int64_t n)
{
    struct rw_quantized_parts p;
    p.scales = n / 2;
    p.mean = (p.scales + rw_nf4_blocks(n) + 3) / 4 * 4;
    p.largest = p.mean + 4;
    p.bytes = p.largest + 4 * rw_nf4_groups(n);
    return p;
}

static inline struct rw_quantized_parts rw_parts_of_int8(int64_t n, int64_t rows)
{
    struct rw_quantized_parts p;
    p.scales = p.mean = 0;
    p.largest = (n + 3) / 4 * 4;
    p.bytes = p.largest + 4 * rows;
    return p;
}

#endif
