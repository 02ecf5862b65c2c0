/* The simulated cuBLASLt: products compared with double, its choices and its checks. */
#include "test.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <math.h>

#include <set>

TestSuite(cudasim_blas, .fini = cudasim_restart); /* frees what a test leaves allocated */

static cublasLtHandle_t handle;

/* A product with its descriptors; members are set before make(). */
struct setup {
    cudaDataType_t in = CUDA_R_32F, out = CUDA_R_32F;
    int other = -1; /* type of B, if it differs from A's */
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cublasOperation_t ta = CUBLAS_OP_N, tb = CUBLAS_OP_N;
    int a_order = CUBLASLT_ORDER_COL, b_order = CUBLASLT_ORDER_COL, d_order = CUBLASLT_ORDER_COL;
    uint64_t m = 32, n = 16, k = 72;
    int64_t pad = 0; /* added to leading dimensions */
    int32_t batch = 1;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    uint64_t workspace = 1 << 20;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    uint32_t alignment = 256;

    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    cublasLtMatmulPreference_t pref = nullptr;
    void *a_ptr = nullptr, *b_ptr = nullptr, *d_ptr = nullptr, *c_ptr = nullptr, *bias_ptr = nullptr,
         *aux_ptr = nullptr;
    void *workspace_ptr = nullptr;
    std::vector<double> a_values, b_values, c_values, bias_values; /* the operands in memory order */
    int64_t aux_ld = 128;

    cublasLtMatrixLayout_t layout(cudaDataType_t type, uint64_t rows, uint64_t cols, int order, int64_t *stride);
    void make();
    int answers(cublasLtMatmulHeuristicResult_t *found, int wanted = 8);
    cublasStatus_t run(const cublasLtMatmulAlgo_t *algo, double alpha = 1, double beta = 0);
};

static bool is_code(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

static size_t bytes_of(cudaDataType_t type)
{
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : is_code(type) ? 1 : 2;
}

/* The value of an FP8 encoding that is a finite number. */
static double value_of_code(unsigned char code, cudaDataType_t type)
{
    const int fraction = type == CUDA_R_8F_E5M2 ? 2 : 3, bias = type == CUDA_R_8F_E5M2 ? 15 : 7;
    const int e = (code & 127) >> fraction, m = code & ((1 << fraction) - 1);
    const double x = e ? ldexp(m + (1 << fraction), e - bias - fraction) : ldexp(m, 1 - bias - fraction);
    return code & 128 ? -x : x;
}

static double read_value(const void *p, cudaDataType_t type, size_t i)
{
    switch (type) {
    case CUDA_R_64F: return ((const double *)p)[i];
    case CUDA_R_32F: return (double)((const float *)p)[i];
    case CUDA_R_16BF: return (double)__bfloat162float(((const __nv_bfloat16 *)p)[i]);
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2: return value_of_code(((const unsigned char *)p)[i], type);
    default: return (double)__half2float(((const __half *)p)[i]);
    }
}

static void write_value(void *p, cudaDataType_t type, size_t i, double v)
{
    switch (type) {
    case CUDA_R_64F: ((double *)p)[i] = v; break;
    case CUDA_R_32F: ((float *)p)[i] = (float)v; break;
    case CUDA_R_16BF: ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn((float)v); break;
    case CUDA_R_8F_E4M3: /* any finite encoding, by its bits */
    case CUDA_R_8F_E5M2:
        ((unsigned char *)p)[i] = (unsigned char)((int)((v + 1) * 0x7a) % 0x7b | (v < -0.25 ? 128 : 0));
        break;
    default: ((__half *)p)[i] = __float2half_rn((float)v); break;
    }
}

/* n numbers in [-1, 1) in device memory; *values receives them as stored. */
static void *random_operand(cudaDataType_t type, size_t n, unsigned seed, std::vector<double> *values)
{
    std::vector<char> bytes(n * bytes_of(type));
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        write_value(bytes.data(), type, i, ldexp((double)(seed >> 8), -23) - 1);
        if (values) values->push_back(read_value(bytes.data(), type, i));
    }
    return device_array(bytes);
}

cublasLtMatrixLayout_t setup::layout(cudaDataType_t type, uint64_t rows, uint64_t cols, int order, int64_t *stride)
{
    cublasLtMatrixLayout_t l;
    const int64_t ld = (int64_t)(order == CUBLASLT_ORDER_COL ? rows : cols) + pad;
    *stride = ld * (int64_t)(order == CUBLASLT_ORDER_COL ? cols : rows);
    OK(cublasLtMatrixLayoutCreate(&l, type, rows, cols, ld));
    OK(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, 4));
    OK(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, 4));
    OK(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride, 8));
    return l;
}

/* Creates the descriptors, and operands of random values. */
void setup::make()
{
    int64_t as, bs, ds;
    const cudaDataType_t scale = in == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F;
    if (!handle) OK(cublasLtCreate(&handle));
    OK(cublasLtMatmulDescCreate(&desc, compute, scale));
    OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, 4));
    OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, 4));
    OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, 4));
    const cudaDataType_t b_type = other < 0 ? in : static_cast<cudaDataType_t>(other);
    a = ta == CUBLAS_OP_N ? layout(in, m, k, a_order, &as) : layout(in, k, m, a_order, &as);
    b = tb == CUBLAS_OP_N ? layout(b_type, k, n, b_order, &bs) : layout(b_type, n, k, b_order, &bs);
    d = layout(out, m, n, d_order, &ds);
    a_ptr = random_operand(in, (size_t)(as * batch), 1, &a_values);
    b_ptr = random_operand(b_type, (size_t)(bs * batch), 2, &b_values);
    c_ptr = random_operand(out, (size_t)(ds * batch), 3, &c_values);
    d_ptr = random_operand(out, (size_t)(ds * batch), 4, nullptr);
    bias_ptr = random_operand(out, m + n, 5, &bias_values);
    aux_ptr = random_operand(out, (size_t)aux_ld * n, 6, nullptr);
    OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_ptr, 8));
    OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux_ptr, 8));
    OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, 8));
    OK(cudaMalloc(&workspace_ptr, 1 << 20));
    OK(cublasLtMatmulPreferenceCreate(&pref));
    OK(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, 8));
    OK(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, 4));
    for (int attr = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; attr <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES;
         attr++)
        OK(cublasLtMatmulPreferenceSetAttribute(pref, (cublasLtMatmulPreferenceAttributes_t)attr, &alignment, 4));
}

int setup::answers(cublasLtMatmulHeuristicResult_t *found, int wanted)
{
    int count = 0;
    OK(cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, d, d, pref, wanted, found, &count));
    return count;
}

cublasStatus_t setup::run(const cublasLtMatmulAlgo_t *algo, double alpha, double beta)
{
    const float alpha_f = (float)alpha, beta_f = (float)beta;
    const bool wide = in == CUDA_R_64F;
    return cublasLtMatmul(handle, desc, wide ? (void *)&alpha : (void *)&alpha_f, a_ptr, a, b_ptr, b,
                          wide ? (void *)&beta : (void *)&beta_f, c_ptr, d, d_ptr, d, algo, workspace_ptr, 1 << 20, 0);
}

static size_t index_of(uint64_t rows, uint64_t cols, int order, int64_t pad, uint64_t r, uint64_t c, int32_t batch)
{
    const uint64_t ld = (order == CUBLASLT_ORDER_COL ? rows : cols) + (uint64_t)pad,
                   outer = order == CUBLASLT_ORDER_COL ? cols : rows;
    return (size_t)batch * ld * outer + (order == CUBLASLT_ORDER_COL ? c * ld + r : r * ld + c);
}

static double reference(const setup &s, uint64_t i, uint64_t j, int32_t batch, double *magnitude)
{
    double sum = 0;
    *magnitude = 0;
    for (uint64_t x = 0; x < s.k; x++) {
        const size_t a = s.ta == CUBLAS_OP_N ? index_of(s.m, s.k, s.a_order, s.pad, i, x, batch)
                                             : index_of(s.k, s.m, s.a_order, s.pad, x, i, batch);
        const size_t b = s.tb == CUBLAS_OP_N ? index_of(s.k, s.n, s.b_order, s.pad, x, j, batch)
                                             : index_of(s.n, s.k, s.b_order, s.pad, j, x, batch);
        sum += s.a_values[a] * s.b_values[b];
        *magnitude += fabs(s.a_values[a] * s.b_values[b]);
    }
    return sum;
}

static std::vector<char> result(const setup &s)
{
    const uint64_t outer = s.d_order == CUBLASLT_ORDER_COL ? s.n : s.m,
                   ld = (s.d_order == CUBLASLT_ORDER_COL ? s.m : s.n) + (uint64_t)s.pad;
    return from_device((const char *)s.d_ptr, (size_t)s.batch * outer * ld * bytes_of(s.out));
}

static double unit_of(cudaDataType_t type)
{
    return ldexp(1, type == CUDA_R_64F ? -53 : type == CUDA_R_32F ? -24 : type == CUDA_R_16F ? -11 : -8);
}

/*
 * In any order of k products and k sums each term is rounded at most k + 1 times in the accumulation type. The result,
 * with alpha, beta and C, is rounded three times there and once in D's type (half's subnormals: 2^-25).
 */
static void check_result(const setup &s, double alpha, double beta, const char *what)
{
    const std::vector<char> d = result(s);
    const double u = unit_of(s.in == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F);
    for (int32_t batch = 0; batch < s.batch; batch++)
        for (uint64_t i = 0; i < s.m; i++)
            for (uint64_t j = 0; j < s.n; j++) {
                double magnitude;
                const size_t at = index_of(s.m, s.n, s.d_order, s.pad, i, j, batch);
                const double c = beta * s.c_values[at], want = alpha * reference(s, i, j, batch, &magnitude) + c;
                const double bound = (double)(s.k + 5) * u * (fabs(alpha) * magnitude + fabs(c)) * 1.01;
                const double got = read_value(d.data(), s.out, at);
                cr_assert_leq(fabs(got - want),
                              bound + unit_of(s.out) * (fabs(want) + bound) + (s.out == CUDA_R_16F ? 0x1p-25 : 0),
                              "%s: (%zu, %zu): %g, not %g", what, (size_t)i, (size_t)j, got, want);
            }
}

static void run_all_answers(setup s, const char *what)
{
    cublasLtMatmulHeuristicResult_t found[8];
    s.make();
    const int n = s.answers(found);
    for (int i = 0; i < n; i++) {
        OK(s.run(&found[i].algo));
        check_result(s, 1, 0, what);
        OK(s.run(&found[i].algo, -0.75, 1.5));
        if (found[i].workspaceSize < 4096) check_result(s, -0.75, 1.5, what);
    }
    cudasim_restart();
    handle = nullptr;
}

Test(cudasim_blas, every_type_transpose_and_order)
{
    const struct { cudaDataType_t in, out; cublasComputeType_t compute; } types[] = {
        { CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F }, { CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F },
        { CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F }, { CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F },
        { CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F }, { CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F } };
    for (const auto &t : types)
        for (int form = 0; form < 32; form++) {
            setup s;
            s.in = t.in, s.out = t.out, s.compute = t.compute;
            s.ta = form & 1 ? CUBLAS_OP_T : CUBLAS_OP_N, s.tb = form & 2 ? CUBLAS_OP_T : CUBLAS_OP_N;
            s.a_order = form >> 2 & 1, s.b_order = form >> 3 & 1, s.d_order = form >> 4 & 1;
            s.m = 9, s.n = 6, s.k = 37;
            s.pad = form % 3, s.batch = 1 + form % 2;
            s.alignment = (uint32_t)bytes_of(t.out);
            s.reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
            char what[100];
            snprintf(what, sizeof what, "types %d %d form %d", t.in, t.out, form);
            run_all_answers(s, what);
        }
}

static uint64_t hash_of(const std::vector<char> &bytes)
{
    uint64_t h = 14695981039346656037u;
    for (char c : bytes) h = (h ^ (unsigned char)c) * 1099511628211u;
    return h;
}

static int config(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t attr)
{
    int v = -1;
    size_t written;
    OK(cublasLtMatmulAlgoConfigGetAttribute(algo, attr, &v, sizeof v, &written));
    return v;
}

Test(cudasim_blas, algorithms_differ_and_repeat)
{
    setup s;
    cublasLtMatmulHeuristicResult_t found[16];
    std::set<uint64_t> different;
    s.make();
    const int n = s.answers(found, 16);
    cr_assert_eq(n, 8);
    for (int i = 0; i < n; i++) {
        std::set<uint64_t> runs;
        for (int run = 0; run < 12; run++) {
            OK(s.run(&found[i].algo));
            runs.insert(hash_of(result(s)));
        }
        const bool in_place = config(&found[i].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) ==
                              CUBLASLT_REDUCTION_SCHEME_INPLACE;
        cr_assert_eq(runs.size() == 1, !in_place, "algorithm %d", config(&found[i].algo, CUBLASLT_ALGO_CONFIG_ID));
        different.insert(*runs.begin());
    }
    cr_assert_geq(different.size(), 7);
}

Test(cudasim_blas, the_mask_keeps_split_sums_out)
{
    setup s;
    cublasLtMatmulHeuristicResult_t found[16];
    s.reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
    s.make();
    const int n = s.answers(found, 16);
    cr_assert_eq(n, 5);
    for (int i = 0; i < n; i++) {
        cr_assert_eq(config(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM), 1);
        cr_assert_eq(config(&found[i].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME), 0);
    }
}

static int first_id(setup s)
{
    cublasLtMatmulHeuristicResult_t found[1];
    s.make();
    cr_assert_eq(s.answers(found, 1), 1);
    return config(&found[0].algo, CUBLASLT_ALGO_CONFIG_ID);
}

Test(cudasim_blas, the_choice_follows_from_shape_alignment_and_workspace)
{
    std::set<int> by_shape, by_alignment, by_workspace;
    for (uint64_t m = 16; m <= 160; m += 16) {
        setup s;
        s.m = m;
        by_shape.insert(first_id(s));
        cr_assert_eq(first_id(s), first_id(s));
    }
    cr_assert_geq(by_shape.size(), 4);
    for (uint64_t k = 32; k <= 128; k += 8) {
        setup s;
        s.k = k;
        const int wide = first_id(s);
        s.alignment = 4;
        by_alignment.insert(first_id(s) - wide);
        s.alignment = 256, s.workspace = 0;
        by_workspace.insert(first_id(s) - wide);
    }
    cr_assert_geq(by_alignment.size(), 2);
    cr_assert_geq(by_workspace.size(), 2);
}

Test(cudasim_blas, rotation_makes_a_second_question_show)
{
    setup s;
    s.make();
    cublasLtMatmulHeuristicResult_t one, two;
    s.answers(&one, 1), s.answers(&two, 1);
    cr_assert(memcmp(&one, &two, sizeof one) == 0);
    cudasim_set_blas_rotation(true);
    s.answers(&one, 1), s.answers(&two, 1);
    cr_assert(memcmp(&one, &two, sizeof one) != 0);
}

static double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

Test(cudasim_blas, epilogues)
{
    const uint32_t kinds[] = { CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU,      CUBLASLT_EPILOGUE_RELU_BIAS,
                               CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS };
    for (uint32_t kind : kinds) {
        setup s;
        cublasLtMatmulHeuristicResult_t found[1];
        s.epilogue = kind;
        s.make();
        s.answers(found, 1);
        OK(s.run(&found[0].algo));
        const std::vector<char> d = result(s), aux = from_device((const char *)s.aux_ptr, (size_t)s.aux_ld * s.n * 4);
        for (uint64_t i = 0; i < s.m; i++)
            for (uint64_t j = 0; j < s.n; j++) {
                double magnitude, x = reference(s, i, j, 0, &magnitude);
                if (kind & 4) x += s.bias_values[i];
                /* 77 roundings as in check_result, then a few of the function, whose slope stays below 1.13 */
                const double bound = 1.13 * 90 * 0x1p-24 * (magnitude + 1);
                if (kind & 128)
                    cr_assert_leq(fabs(read_value(aux.data(), CUDA_R_32F, j * (size_t)s.aux_ld + i) - x), bound);
                const double want = kind & 2 ? (x > 0 ? x : 0) : kind & 32 ? gelu(x) : x;
                cr_assert_leq(fabs(read_value(d.data(), CUDA_R_32F, j * s.m + i) - want), bound, "epilogue %u", kind);
            }
    }
}

Test(cudasim_blas, gradients_of_epilogues)
{
    for (uint32_t kind : { CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB,
                           CUBLASLT_EPILOGUE_DRELU }) {
        setup s;
        cublasLtMatmulHeuristicResult_t found[1];
        s.epilogue = kind;
        s.make();
        s.answers(found, 1);
        const std::vector<char> aux = from_device((const char *)s.aux_ptr, (size_t)s.aux_ld * s.n * 4);
        OK(s.run(&found[0].algo));
        const std::vector<char> d = result(s), bias = from_device((const char *)s.bias_ptr, (s.m + s.n) * 4);
        std::vector<double> sums(s.m + s.n);
        for (uint64_t i = 0; i < s.m; i++)
            for (uint64_t j = 0; j < s.n; j++) {
                double magnitude, x = reference(s, i, j, 0, &magnitude);
                const size_t bit = j * (size_t)s.aux_ld + i;
                if (kind & 64) {
                    const double z = read_value(aux.data(), CUDA_R_32F, bit), h = 1e-5;
                    x *= (gelu(z + h) - gelu(z - h)) / (2 * h); /* the error is less than 1e-9 */
                }
                if (kind & 8) x = aux[bit / 8] >> bit % 8 & 1 ? x : 0;
                sums[i] += x;
                cr_assert_leq(fabs(read_value(d.data(), CUDA_R_32F, j * s.m + i) - x),
                              1.13 * 90 * 0x1p-24 * (magnitude + 1) + 1e-8);
            }
        if (kind & 256)
            for (uint64_t i = 0; i < s.m; i++) {
                sums[i] = 0;
                for (uint64_t x = 0; x < s.k; x++) sums[i] += s.a_values[x * s.m + i];
            }
        if (kind & 512)
            for (uint64_t j = 0; j < s.n; j++) {
                sums[j] = 0;
                for (uint64_t x = 0; x < s.k; x++) sums[j] += s.b_values[j * s.k + x];
            }
        /* At most 72 terms of at most 72, each with the error above and rounded 72 times in a sum. */
        for (uint64_t i = 0; i < (kind & 512 ? s.n : s.m) && kind != CUBLASLT_EPILOGUE_DRELU; i++)
            cr_assert_leq(fabs(read_value(bias.data(), CUDA_R_32F, i) - sums[i]), 72 * 73 * 162 * 0x1p-24 * 1.13,
                          "epilogue %u", kind);
    }
}

Test(cudasim_blas, beta_zero_does_not_read_c)
{
    setup s;
    cublasLtMatmulHeuristicResult_t found[1];
    s.make();
    s.answers(found, 1);
    OK(cudaMemset(s.c_ptr, 0xff, s.m * s.n * 4));
    OK(s.run(&found[0].algo, 1, 0));
    check_result(s, 1, 0, "C is NaN");
    s.c_ptr = nullptr;
    OK(s.run(&found[0].algo, 1, 0));
    GIVES(s.run(&found[0].algo, 1, 1), CUBLAS_STATUS_INVALID_VALUE);
}

Test(cudasim_blas, what_the_choice_was_promised_is_checked)
{
    setup s;
    cublasLtMatmulHeuristicResult_t found[1];
    cudasim_set_fatal(false);
    s.n = 15;
    s.make();
    s.answers(found, 1);
    char *const b = (char *)s.b_ptr, *const d = (char *)s.d_ptr, *const a = (char *)s.a_ptr;
    s.b_ptr = b + 16;
    GIVES(s.run(&found[0].algo), CUBLAS_STATUS_INVALID_VALUE);
    cr_assert(reported("B is not aligned to the 256 bytes that the choice was promised"), "%s", cudasim_last_report());
    s.b_ptr = b + 256;
    GIVES(s.run(&found[0].algo), CUBLAS_STATUS_INVALID_VALUE);
    cr_assert(reported("B, 4320 bytes, is not in one device allocation"), "%s", cudasim_last_report());
    s.b_ptr = b, s.d_ptr = a;
    GIVES(s.run(&found[0].algo), CUBLAS_STATUS_INVALID_VALUE);
    cr_assert(reported("D overlaps A or B"));
    s.d_ptr = d;
    cublasLtMatmulAlgo_t forged = found[0].algo;
    forged.data[1] ^= 1;
    GIVES(s.run(&forged), CUBLAS_STATUS_INVALID_VALUE);
    OK(s.run(&found[0].algo));
}

Test(cudasim_blas, wrong_problems_are_refused)
{
    setup s;
    cublasLtMatmulHeuristicResult_t found[1];
    int count;
    uint32_t v32 = CUDA_R_16BF;
    s.make();
#define ASK() cublasLtMatmulAlgoGetHeuristic(handle, s.desc, s.a, s.b, s.d, s.d, s.pref, 1, found, &count)
    OK(ASK());
    OK(cublasLtMatrixLayoutSetAttribute(s.a, CUBLASLT_MATRIX_LAYOUT_TYPE, &v32, 4));
    GIVES(ASK(), CUBLAS_STATUS_NOT_SUPPORTED);
    v32 = CUDA_R_32F;
    OK(cublasLtMatrixLayoutSetAttribute(s.a, CUBLASLT_MATRIX_LAYOUT_TYPE, &v32, 4));
    GIVES(cublasLtMatrixLayoutSetAttribute(s.a, CUBLASLT_MATRIX_LAYOUT_TYPE, &v32, 8), CUBLAS_STATUS_INVALID_VALUE);
    int64_t ld = 31;
    OK(cublasLtMatrixLayoutSetAttribute(s.a, CUBLASLT_MATRIX_LAYOUT_LD, &ld, 8));
    GIVES(ASK(), CUBLAS_STATUS_INVALID_VALUE);
    ld = 32;
    OK(cublasLtMatrixLayoutSetAttribute(s.a, CUBLASLT_MATRIX_LAYOUT_LD, &ld, 8));
    uint64_t k = 71;
    OK(cublasLtMatrixLayoutSetAttribute(s.a, CUBLASLT_MATRIX_LAYOUT_COLS, &k, 8));
    GIVES(ASK(), CUBLAS_STATUS_INVALID_VALUE);
    k = 72;
    OK(cublasLtMatrixLayoutSetAttribute(s.a, CUBLASLT_MATRIX_LAYOUT_COLS, &k, 8));
    OK(ASK());
    OK(cublasLtMatrixLayoutDestroy(s.a));
    GIVES(ASK(), CUBLAS_STATUS_INVALID_VALUE);
    GIVES(cublasLtMatrixLayoutDestroy(s.a), CUBLAS_STATUS_INVALID_VALUE);
    GIVES(ASK(), CUBLAS_STATUS_INVALID_VALUE);
}

/* ---- FP8 data ---- */

static setup of_codes(cudaDataType_t a, cudaDataType_t b, cudaDataType_t out)
{
    setup s;
    s.in = a, s.other = b, s.out = out;
    s.ta = CUBLAS_OP_T;
    s.n = 16, s.k = 80;
    s.reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
    return s;
}

static cublasStatus_t asked(setup *s)
{
    cublasLtMatmulHeuristicResult_t found[1];
    int count;
    return cublasLtMatmulAlgoGetHeuristic(handle, s->desc, s->a, s->b, s->d, s->d, s->pref, 1, found, &count);
}

static const cudaDataType_t E4M3 = CUDA_R_8F_E4M3, E5M2 = CUDA_R_8F_E5M2;

/* A is 32 by 72: the largest of the operands. */
Test(cudasim_blas, counts_that_an_int32_does_not_hold_are_reported)
{
    setup s;
    cublasLtMatmulHeuristicResult_t found[1];
    int count;
    cudasim_set_fatal(false);
    s.make();
    for (const int64_t ld : { int64_t(1) << 31, int64_t(1) << 25, int64_t(32) }) {
        OK(cublasLtMatrixLayoutSetAttribute(s.a, CUBLASLT_MATRIX_LAYOUT_LD, &ld, 8));
        GIVES(ASK(), ld == 32 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE);
        cr_assert_eq(reported("more than 2147483647"), ld != 32);
        cudasim_clear_report();
    }
    for (const int most : { 32 * 72 - 1, 32 * 72 }) {
        cudasim_set_max_count(most);
        GIVES(ASK(), most == 32 * 72 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE);
        cr_assert_eq(reported("32 by 72, 32 apart"), most != 32 * 72);
        cudasim_clear_report();
    }
}

Test(cudasim_blas, products_of_codes)
{
    for (int mixed = 0; mixed < 3; mixed++)
        for (cudaDataType_t out : { CUDA_R_16BF, CUDA_R_32F })
            run_all_answers(of_codes(mixed == 1 ? E5M2 : E4M3, mixed == 2 ? E5M2 : E4M3, out), "codes");
}

/* A and B are multiplied by floats that are read on the device when the product runs. */
Test(cudasim_blas, scales_of_codes)
{
    cublasLtMatmulHeuristicResult_t found[1];
    setup s = of_codes(E4M3, E5M2, CUDA_R_32F);
    const std::vector<float> scales = { 0.25f, -2.0f };
    cudasim_set_fatal(false);
    s.make();
    float *const at = (float *)device_array(scales), *const second = at + 1;
    OK(cublasLtMatmulDescSetAttribute(s.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &at, 8));
    OK(cublasLtMatmulDescSetAttribute(s.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &second, 8));
    cr_assert_eq(s.answers(found, 1), 1);
    OK(s.run(&found[0].algo, 1, 0.5));
    check_result({ s }, -0.5, 0.5, "scales");
    const float *const nowhere = &scales[0];
    OK(cublasLtMatmulDescSetAttribute(s.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &nowhere, 8));
    GIVES(s.run(&found[0].algo), CUBLAS_STATUS_INVALID_VALUE);
    cr_assert(reported("a scale is not a float on the device"));
    setup plain;
    plain.make();
    OK(cublasLtMatmulDescSetAttribute(plain.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &at, 8));
    GIVES(asked(&plain), CUBLAS_STATUS_INVALID_VALUE);
}

/* The requirements of the documentation of cublasLtMatmul() for FP8. */
Test(cudasim_blas, codes_that_are_refused)
{
    for (int way = 0; way < 11; way++) {
        setup s = of_codes(E4M3, E4M3, CUDA_R_16BF);
        bool fits = false;
        switch (way) {
        case 0: fits = true; break;
        case 1: s.in = E5M2, s.other = E5M2; break;
        case 2: s.ta = CUBLAS_OP_N; break;
        case 3: s.tb = CUBLAS_OP_T; break;
        case 4: s.k = 72; break;
        case 5: s.n = 8; break;
        case 6: s.m = 24; break;
        case 7: s.pad = 8; break;
        case 8: s.other = CUDA_R_16BF; break;
        case 9: s.compute = CUBLAS_COMPUTE_32F_FAST_TF32; break;
        default: cudasim_set_capability(8, 6); break;
        }
        s.make();
        cr_expect_eq(asked(&s) == CUBLAS_STATUS_SUCCESS, fits, "way %d", way);
        cudasim_restart();
        handle = nullptr;
    }
    cudasim_set_capability(10, 0);
    setup s = of_codes(E4M3, E4M3, CUDA_R_16BF);
    s.tb = CUBLAS_OP_T, s.n = 32;
    s.make();
    OK(asked(&s));
}

/* Fast accumulation loses bits of long sums, which is the reason to refuse it. */
Test(cudasim_blas, fast_accumulation_shows)
{
    cublasLtMatmulHeuristicResult_t found[1];
    std::vector<char> ways[2];
    for (int fast = 0; fast < 2; fast++) {
        setup s = of_codes(E4M3, E4M3, CUDA_R_32F);
        const int8_t value = (int8_t)fast;
        s.make();
        OK(cublasLtMatmulDescSetAttribute(s.desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &value, 1));
        cr_assert_eq(s.answers(found, 1), 1);
        OK(s.run(&found[0].algo));
        if (!fast) check_result(s, 1, 0, "exact");
        ways[fast] = result(s);
        cudasim_restart();
        handle = nullptr;
    }
    cr_expect(ways[0] != ways[1]);
}

Test(cudasim_blas, an_auxiliary_output_is_checked)
{
    setup s;
    cublasLtMatmulHeuristicResult_t found[1];
    int count;
    cudasim_set_fatal(false);
    s.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    s.make();
    const auto set = [&s](cublasLtMatmulDescAttributes_t attr, const void *value, size_t size) {
        OK(cublasLtMatmulDescSetAttribute(s.desc, attr, value, size));
    };
    for (int64_t ld : { int64_t(s.m) + 4, int64_t(s.m) - 8 }) { /* not a multiple of 8, and too short */
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, 8);
        GIVES(ASK(), CUBLAS_STATUS_INVALID_VALUE);
    }
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &s.aux_ld, 8);
    for (cublasLtMatmulDescAttributes_t attr : { CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE,
                                                 CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE }) {
        const int32_t half = CUDA_R_16F, own = CUDA_R_32F;
        set(attr, &half, 4);
        GIVES(ASK(), CUBLAS_STATUS_NOT_SUPPORTED);
        set(attr, &own, 4);
        OK(ASK());
    }
    char *const aux = (char *)s.aux_ptr, *const bias = (char *)s.bias_ptr;
    const auto gives = [&](void *at_aux, void *at_bias, const char *why) {
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &at_aux, 8);
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at_bias, 8);
        GIVES(s.run(&found[0].algo), CUBLAS_STATUS_INVALID_VALUE);
        cr_assert(reported(why), "%s", cudasim_last_report());
    };
    gives(aux + 4, bias, "aux is not aligned as the choice was promised");
    gives(aux + 1024, bias, "aux is not in one device allocation");
    gives(s.d_ptr, bias, "aux is not in one device allocation");
    gives(aux, bias + 4, "the bias is not aligned as the choice was promised");
    gives(aux, bias + 128, "the bias is not in one device allocation");
    int64_t ld = 32;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, 8);
    gives(s.d_ptr, bias, "aux overlaps A, B or D");
    ld = s.aux_ld;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, 8);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &s.aux_ptr, 8);
    OK(s.run(&found[0].algo));
}

Test(cudasim_blas, workspaces_are_checked_and_spoiled)
{
    setup s;
    cublasLtMatmulHeuristicResult_t found[16];
    s.make();
    const int n = s.answers(found, 16);
    const float one = 1, zero = 0;
    int with_workspace = 0;
    for (int i = 0; i < n; i++) {
        const size_t size = found[i].workspaceSize;
        if (!size) continue;
        with_workspace++;
#define RUN(at, bytes)                                                                                                 \
    cublasLtMatmul(handle, s.desc, &one, s.a_ptr, s.a, s.b_ptr, s.b, &zero, s.d_ptr, s.d, s.d_ptr, s.d,                \
                   &found[i].algo, at, bytes, 0)
        GIVES(RUN(s.workspace_ptr, size - 1), CUBLAS_STATUS_INVALID_VALUE);
        GIVES(RUN((char *)s.workspace_ptr + 128, size), CUBLAS_STATUS_INVALID_VALUE);
        GIVES(RUN(nullptr, size), CUBLAS_STATUS_INVALID_VALUE);
        OK(RUN(s.workspace_ptr, size));
    }
    cr_assert_eq(with_workspace, 4);
}

Test(cudasim_blas, planted_and_lost_contexts)
{
    setup s;
    cublasLtMatmulHeuristicResult_t found[1];
    s.make();
    s.answers(found, 1);
    cudasim_fail_call("cublasLtMatmul", 1, CUBLAS_STATUS_INTERNAL_ERROR);
    GIVES(s.run(&found[0].algo), CUBLAS_STATUS_INTERNAL_ERROR);
    OK(s.run(&found[0].algo));
    cudasim_break(cudaErrorIllegalAddress);
    GIVES(s.run(&found[0].algo), CUBLAS_STATUS_EXECUTION_FAILED);
    cudasim_restart();
    cr_assert_eq(cudasim_live_allocations(), 0);
    cudasim_set_driver(false);
    cublasLtHandle_t h;
    GIVES(cublasLtCreate(&h), CUBLAS_STATUS_NOT_INITIALIZED);
    cr_assert_str_eq(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
}

Test(cudasim_blas, products_are_captured)
{
    setup s;
    cublasLtMatmulHeuristicResult_t found[1];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    float alpha = 1, beta = 0;
    s.make();
    s.answers(found, 1);
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(cublasLtMatmul(handle, s.desc, &alpha, s.a_ptr, s.a, s.b_ptr, s.b, &beta, s.d_ptr, s.d, s.d_ptr, s.d,
                      &found[0].algo, s.workspace_ptr, 1 << 20, stream));
    alpha = 100; /* the captured value is unchanged */
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    check_result(s, 1, 0, "from a graph");
}
