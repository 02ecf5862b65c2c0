/*
 * The choice of an algorithm. Several algorithms differ in their order of summation, so that a product whose algorithm
 * changes between forward and replay gives other bytes. The order of the answers depends on the same inputs as in
 * cuBLASLt: shapes, types, leading dimensions, transposes, epilogue, promised alignments, the alignments of the
 * addresses of the bias and of the auxiliary output, and workspace; but not beta.
 */
#include "blas.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

namespace cudasim {

static const algorithm algorithms[] = {
    { 0, order::one, 1, 1, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0 },
    { 21, order::blocks, 8, 8, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0 },
    { 23, order::blocks, 16, 16, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 32 << 10 },
    { 24, order::lanes, 4, 16, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0 },
    { 25, order::backwards, 4, 4, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0 },
    { 31, order::one, 1, 8, 4, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 0 },
    { 32, order::one, 1, 8, 3, CUBLASLT_REDUCTION_SCHEME_INPLACE, 1 << 10 },
    { 33, order::one, 1, 8, 3, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 0 },
};

static const uint64_t magic = 0x63756461;
static uint64_t questions;
static bool rotates, rotates_known;

size_t size_of_type(uint32_t type)
{
    switch (type) {
    case CUDA_R_64F: return 8;
    case CUDA_R_32F: return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2;
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2: return 1;
    default: return 0;
    }
}

bool is_8f(uint32_t type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

static uint64_t rows_of(const layout &l, int32_t trans)
{
    return trans == CUBLAS_OP_N ? l.rows : l.cols;
}

uint64_t rows_of_a(const problem &p)
{
    return rows_of(*p.a, p.desc->transa);
}

uint64_t inner(const problem &p)
{
    return rows_of(*p.b, p.desc->transb);
}

/* The table of the documentation, for D of 16 or 32 bits. */
static bool types_of_8f_go_together(const problem &p)
{
    const uint32_t out = p.d->type;
    if (!is_8f(p.a->type) || !is_8f(p.b->type) || p.c->type != out) return false;
    if (p.a->type == CUDA_R_8F_E5M2 && p.b->type == CUDA_R_8F_E5M2) return false;
    return p.desc->compute == CUBLAS_COMPUTE_32F && p.desc->scale == CUDA_R_32F &&
           (out == CUDA_R_16BF || out == CUDA_R_16F || out == CUDA_R_32F);
}

/* FP8 data: from 8.9 on; before 10, and on 12, A transposed and B not; everything a multiple of 16 bytes. */
static bool has_kernels_of_8f(const problem &p)
{
    const int capability = 10 * config.major + config.minor;
    const bool any_order = config.major == 10 || config.major == 11;
    const bool transposed = p.desc->transa == CUBLAS_OP_T && p.desc->transb == CUBLAS_OP_N;
    if (capability < 89 || (!any_order && !transposed)) return false;
    for (const layout *l : { p.a, p.b, p.c, p.d }) {
        const uint64_t size = size_of_type(l->type);
        if (l->rows * size % 16 || l->cols * size % 16 || static_cast<uint64_t>(l->ld) * size % 16) return false;
    }
    return true;
}

/* Only 8-bit operands have scales. */
static bool scales_go_together(const problem &p)
{
    const layout *const all[] = { p.a, p.b, p.c, p.d };
    for (int i = 0; i < 4; i++)
        if (p.desc->scale_pointer[i] && !is_8f(all[i]->type)) return false;
    return true;
}

/* The combinations of types that cuBLASLt documents. */
static bool types_go_together(const problem &p)
{
    const uint32_t in = p.a->type, out = p.d->type;
    if (is_8f(in) || is_8f(p.b->type)) return types_of_8f_go_together(p);
    if (p.b->type != in || p.c->type != out) return false;
    switch (p.desc->compute) {
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC: return p.desc->scale == CUDA_R_64F && in == CUDA_R_64F && out == CUDA_R_64F;
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
        if (p.desc->scale != CUDA_R_32F) return false;
        if (in == CUDA_R_16BF || in == CUDA_R_16F) return out == in || out == CUDA_R_32F;
        return in == CUDA_R_32F && out == CUDA_R_32F;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
        return p.desc->scale == CUDA_R_32F && in == CUDA_R_32F && out == CUDA_R_32F;
    default: return false;
    }
}

/* Extents, strides, and elements from the first to the last. What the library does beyond is not documented. */
static bool is_counted(const layout &l)
{
    const uint64_t most = config.max_count, ld = static_cast<uint64_t>(l.ld), stride = static_cast<uint64_t>(l.stride);
    const bool by_cols = l.order == CUBLASLT_ORDER_COL;
    if (l.rows > most || l.cols > most || ld > most || (l.batch > 1 && stride > most)) return false;
    const uint64_t one = ((by_cols ? l.cols : l.rows) - 1) * ld + (by_cols ? l.rows : l.cols);
    return (static_cast<uint64_t>(l.batch) - 1) * stride + one <= most;
}

static cublasStatus_t check_layout(const layout &l)
{
    if (l.order != CUBLASLT_ORDER_COL && l.order != CUBLASLT_ORDER_ROW) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!l.rows || !l.cols || l.batch < 1 || l.stride < 0) return CUBLAS_STATUS_INVALID_VALUE;
    const uint64_t within = l.order == CUBLASLT_ORDER_COL ? l.rows : l.cols;
    if (l.ld < static_cast<int64_t>(within)) return CUBLAS_STATUS_INVALID_VALUE;
    if (is_counted(l)) return CUBLAS_STATUS_SUCCESS;
    report("cublasLt: %llu by %llu, %lld apart, %d in a batch, %lld apart: more than %llu",
           static_cast<unsigned long long>(l.rows), static_cast<unsigned long long>(l.cols),
           static_cast<long long>(l.ld), l.batch, static_cast<long long>(l.stride),
           static_cast<unsigned long long>(config.max_count));
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* -1: the type of D itself. */
static bool is_type(int32_t type, const layout &l)
{
    return type < 0 || static_cast<uint32_t>(type) == l.type;
}

/* The epilogue's requirements on types and operands. */
static cublasStatus_t check_epilogue(const problem &p)
{
    static const uint32_t known[] = { CUBLASLT_EPILOGUE_DEFAULT,   CUBLASLT_EPILOGUE_RELU,
                                      CUBLASLT_EPILOGUE_RELU_AUX,  CUBLASLT_EPILOGUE_BIAS,
                                      CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
                                      CUBLASLT_EPILOGUE_DRELU,     CUBLASLT_EPILOGUE_DRELU_BGRAD,
                                      CUBLASLT_EPILOGUE_GELU,      CUBLASLT_EPILOGUE_GELU_AUX,
                                      CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                      CUBLASLT_EPILOGUE_DGELU,     CUBLASLT_EPILOGUE_DGELU_BGRAD,
                                      CUBLASLT_EPILOGUE_BGRADA,    CUBLASLT_EPILOGUE_BGRADB };
    const uint32_t e = p.desc->epilogue;
    const bool function = e & (2 | 8 | 32 | 64), bias = e & (4 | 16);
    if (std::find(std::begin(known), std::end(known), e) == std::end(known)) return CUBLAS_STATUS_INVALID_VALUE;
    if (e & (4 | 16 | 256 | 512) && !p.desc->bias) return CUBLAS_STATUS_INVALID_VALUE;
    if (e & 128 && !p.desc->aux) return CUBLAS_STATUS_INVALID_VALUE;
    if (e & 128 && p.desc->aux_ld % (e & (32 | 64) ? 8 : 128)) return CUBLAS_STATUS_INVALID_VALUE;
    if (e & 128 && p.desc->aux_ld < static_cast<int64_t>(p.d->rows)) return CUBLAS_STATUS_INVALID_VALUE;
    if (e & 128 && p.d->batch > 1 && p.desc->aux_stride < p.desc->aux_ld * static_cast<int64_t>(p.d->cols))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (is_8f(p.a->type) && e & (4 | 16) && p.d->type != CUDA_R_16F && p.desc->bias_type != CUDA_R_16BF &&
        !(p.desc->bias_type < 0 && p.d->type == CUDA_R_16BF))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!is_8f(p.a->type) && e & (4 | 16 | 256 | 512) && !is_type(p.desc->bias_type, *p.d) &&
        !is_type(p.desc->bias_type, *p.a))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (e & 128 && e & (32 | 64) && !is_type(p.desc->aux_type, *p.d)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (function && p.d->type == CUDA_R_64F) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (function && bias && p.d->order == CUBLASLT_ORDER_ROW) return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_problem(const problem &p)
{
    const layout *const all[] = { p.a, p.b, p.c, p.d };
    for (const layout *l : all)
        if (const cublasStatus_t s = check_layout(*l)) return s;
    for (const layout *l : all)
        if (l->batch != p.d->batch) return CUBLAS_STATUS_INVALID_VALUE;
    if (p.d->batch > 1 && p.d->stride == 0) return CUBLAS_STATUS_INVALID_VALUE;
    const uint64_t k = rows_of(*p.a, p.desc->transa == CUBLAS_OP_N ? CUBLAS_OP_T : CUBLAS_OP_N);
    const uint64_t n = rows_of(*p.b, p.desc->transb == CUBLAS_OP_N ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (inner(p) != k || p.d->rows != rows_of_a(p) || p.d->cols != n) return CUBLAS_STATUS_INVALID_VALUE;
    if (p.c->rows != p.d->rows || p.c->cols != p.d->cols || p.c->order != p.d->order)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p.desc->pointer_mode > CUBLASLT_POINTER_MODE_DEVICE || p.desc->transc != CUBLAS_OP_N)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!types_go_together(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!scales_go_together(p)) return CUBLAS_STATUS_INVALID_VALUE;
    if (is_8f(p.a->type) && !has_kernels_of_8f(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    return check_epilogue(p);
}

size_t workspace_of(const algorithm &algo, const problem &p)
{
    const size_t element = p.a->type == CUDA_R_64F ? 8 : 4;
    const size_t parts = algo.splits > 1 && algo.scheme != CUBLASLT_REDUCTION_SCHEME_INPLACE
                             ? static_cast<size_t>(algo.splits)
                             : 0;
    return algo.workspace + parts * element * p.d->rows * p.d->cols * static_cast<size_t>(p.d->batch);
}

/* The largest power of two up to 256 that divides the start of every vector of a matrix. */
static unsigned alignment_of(const layout &l, unsigned promised)
{
    const uint64_t size = size_of_type(l.type), all = (promised ? promised : 1) | static_cast<uint64_t>(l.ld) * size |
                          (l.batch > 1 ? static_cast<uint64_t>(l.stride) * size : 0) | 256;
    return static_cast<unsigned>(all & -all);
}

cublasStatus_t check_algorithm(const algorithm &algo, const problem &p)
{
    for (const layout *l : { p.a, p.b, p.c, p.d })
        if (alignment_of(*l, 256) < algo.alignment) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (algo.splits > 1 && static_cast<uint64_t>(algo.splits) > inner(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (algo.splits > 1 && p.desc->epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.desc->epilogue != CUBLASLT_EPILOGUE_BIAS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t checksum(const cublasLtMatmulAlgo_t &packed)
{
    uint64_t h = magic;
    for (int i = 0; i < 7; i++) h = mix(h, packed.data[i]);
    return h;
}

/* The alignment that an address in a descriptor promises, at most 16. */
static unsigned address_alignment(uint64_t address)
{
    return static_cast<unsigned>((address | 16) & -(address | 16));
}

/* Words: 0 library, 1 id, 2 splits, 3 scheme, 4 promised alignments, 5 those of bias and aux, 7 checksum. */
static cublasLtMatmulAlgo_t pack(const algorithm &algo, const unsigned promised[4], const matmul_desc *desc)
{
    cublasLtMatmulAlgo_t packed = { { magic << 32 | CUBLAS_VERSION, static_cast<uint64_t>(algo.id),
                                      static_cast<uint64_t>(algo.splits), algo.scheme, 0, 0, 0, 0 } };
    for (int i = 0; i < 4; i++) packed.data[4] |= static_cast<uint64_t>(promised[i]) << (16 * i);
    if (desc && desc->epilogue & 4) packed.data[5] |= address_alignment(desc->bias);
    if (desc && desc->epilogue & 128) packed.data[5] |= static_cast<uint64_t>(address_alignment(desc->aux)) << 16;
    packed.data[7] = checksum(packed);
    return packed;
}

bool unpack(const cublasLtMatmulAlgo_t *packed, algorithm *algo, unsigned promised[6])
{
    if (!packed || packed->data[0] != (magic << 32 | CUBLAS_VERSION) || packed->data[7] != checksum(*packed))
        return false;
    for (const algorithm &known : algorithms) {
        if (static_cast<uint64_t>(known.id) != packed->data[1]) continue;
        *algo = known;
        algo->splits = static_cast<int>(packed->data[2]);
        algo->scheme = static_cast<unsigned>(packed->data[3]);
        for (int i = 0; i < 4; i++) promised[i] = static_cast<unsigned>(packed->data[4] >> (16 * i) & 0xffff);
        for (int i = 0; i < 2; i++) promised[4 + i] = static_cast<unsigned>(packed->data[5] >> (16 * i) & 0xffff);
        return algo->splits >= 1 && (algo->splits == 1 || known.splits > 1) &&
               (algo->splits == 1) == (algo->scheme == 0);
    }
    return false;
}

/* A hash of everything on which the order of the answers depends. */
static uint64_t signature(const problem &p, const preference &pref, const unsigned alignment[4])
{
    const matmul_desc &d = *p.desc;
    uint64_t h = magic;
    for (int64_t x : { int64_t(d.compute), int64_t(d.scale), int64_t(d.transa), int64_t(d.transb), int64_t(d.epilogue),
                       int64_t(d.pointer_mode), int64_t(d.bias_type), int64_t(d.sm_target) })
        h = mix(h, static_cast<uint64_t>(x));
    if (is_8f(p.a->type)) h = mix(h, static_cast<uint64_t>(d.fast_accumulation));
    for (const layout *l : { p.a, p.b, p.c, p.d })
        for (uint64_t x :
             { uint64_t(l->type), uint64_t(l->order), l->rows, l->cols, uint64_t(l->ld), uint64_t(l->batch) })
            h = mix(h, x);
    for (int i = 0; i < 4; i++) h = mix(h, std::min(alignment[i], 16u));
    if (d.epilogue & 4) h = mix(h, address_alignment(d.bias));
    if (d.epilogue & 128) h = mix(h, address_alignment(d.aux));
    return mix(h, pref.workspace);
}

static bool fits(const algorithm &algo, const problem &p, const preference &pref, const unsigned alignment[4])
{
    if (algo.scheme && !(algo.scheme & pref.reductions)) return false;
    if (p.d->batch > 65535) return false; /* some of the library's algorithms refuse it; here all do */
    if (workspace_of(algo, p) > pref.workspace) return false;
    for (int i = 0; i < 4; i++)
        if (alignment[i] < algo.alignment) return false;
    return check_algorithm(algo, p) == CUBLAS_STATUS_SUCCESS;
}

bool blas_rotates()
{
    if (!rotates_known) {
        const char *v = getenv("CUDASIM_BLAS_ROTATE");
        rotates = v && *v == '1';
        rotates_known = true;
    }
    return rotates;
}

/* Writes the algorithms of a problem in their order; returns their number. */
static int answer(const problem &p, const preference &pref, int requested, cublasLtMatmulHeuristicResult_t *results)
{
    const layout *const all[] = { p.a, p.b, p.c, p.d };
    unsigned alignment[4];
    for (int i = 0; i < 4; i++) alignment[i] = alignment_of(*all[i], pref.alignment[i]);
    std::vector<const algorithm *> found;
    for (const algorithm &algo : algorithms)
        if (fits(algo, p, pref, alignment)) found.push_back(&algo);
    uint64_t first = signature(p, pref, alignment);
    if (blas_rotates()) first += questions;
    questions++;
    int n = 0;
    for (; n < requested && n < static_cast<int>(found.size()); n++) {
        const algorithm &algo = *found[(first + static_cast<uint64_t>(n)) % found.size()];
        results[n] = { pack(algo, pref.alignment, p.desc), workspace_of(algo, p), CUBLAS_STATUS_SUCCESS, 1.0f,
                       { 0, 0, 0, 0 } };
    }
    return n;
}

static const preference default_preference = { 0, 0,           CUBLASLT_REDUCTION_SCHEME_MASK, { 256, 256, 256, 256 },
                                               0, ~uint64_t(0) };

cublasStatus_t default_algorithm(const problem &p, cublasLtMatmulAlgo_t *packed)
{
    cublasLtMatmulHeuristicResult_t result;
    if (!answer(p, default_preference, 1, &result)) return CUBLAS_STATUS_NOT_SUPPORTED;
    *packed = result.algo;
    return CUBLAS_STATUS_SUCCESS;
}

/* Integers of 4 bytes, as all of these attributes except the last. */
static cublasStatus_t give_attribute(uint64_t value, size_t own, void *buf, size_t size, size_t *written)
{
    if (written) *written = own;
    if (size == 0 && written) return CUBLAS_STATUS_SUCCESS;
    if (!buf || size != own) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(buf, &value, size);
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace cudasim

using namespace cudasim;

extern "C" {

void cudasim_set_blas_rotation(bool on)
{
    rotates = on;
    rotates_known = true;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t pref, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *count)
{
    blas_entry here(__func__);
    if (here.refused()) return here.refused();
    for (const void *object :
         { static_cast<const void *>(handle), static_cast<const void *>(operation), static_cast<const void *>(a),
           static_cast<const void *>(b), static_cast<const void *>(c), static_cast<const void *>(d) })
        if (!blas_is_alive(object)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!blas_is_alive(pref) || requested < 1 || !results || !count) return CUBLAS_STATUS_INVALID_VALUE;
    *count = 0;
    const problem p = { operation, a, b, c, d };
    if (const cublasStatus_t s = check_problem(p)) return s;
    *count = answer(p, *pref, requested, results);
    return *count ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t handle, cublasComputeType_t, cudaDataType_t, cudaDataType_t,
                                        cudaDataType_t, cudaDataType_t, cudaDataType_t, int requested, int ids[],
                                        int *count)
{
    blas_entry here(__func__);
    if (here.refused()) return here.refused();
    if (!blas_is_alive(handle) || requested < 1 || !ids || !count) return CUBLAS_STATUS_INVALID_VALUE;
    *count = 0;
    for (const algorithm &algo : algorithms)
        if (*count < requested) ids[(*count)++] = algo.id;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t, cudaDataType_t, cudaDataType_t,
                                      cudaDataType_t, cudaDataType_t, cudaDataType_t, int id,
                                      cublasLtMatmulAlgo_t *packed)
{
    blas_entry here(__func__);
    if (here.refused()) return here.refused();
    if (!blas_is_alive(handle) || !packed) return CUBLAS_STATUS_INVALID_VALUE;
    for (const algorithm &algo : algorithms) {
        if (algo.id != id) continue;
        const unsigned needed[4] = { algo.alignment, algo.alignment, algo.alignment, algo.alignment };
        *packed = pack(algo, needed, nullptr);
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *packed,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    blas_entry here(__func__);
    if (here.refused()) return here.refused();
    for (const void *object :
         { static_cast<const void *>(handle), static_cast<const void *>(operation), static_cast<const void *>(a),
           static_cast<const void *>(b), static_cast<const void *>(c), static_cast<const void *>(d) })
        if (!blas_is_alive(object)) return CUBLAS_STATUS_INVALID_VALUE;
    const problem p = { operation, a, b, c, d };
    algorithm algo;
    unsigned promised[6];
    if (!result || !unpack(packed, &algo, promised)) return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t s = check_problem(p);
    if (!s) s = check_algorithm(algo, p);
    *result = { *packed, s ? 0 : workspace_of(algo, p), s, 1.0f, { 0, 0, 0, 0 } };
    return s;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *packed,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr, void *buf, size_t size,
                                                    size_t *written)
{
    algorithm algo;
    unsigned promised[6];
    if (!unpack(packed, &algo, promised)) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attr) {
    case CUBLASLT_ALGO_CONFIG_ID: return give_attribute(static_cast<uint64_t>(algo.id), 4, buf, size, written);
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
        return give_attribute(static_cast<uint64_t>(algo.splits), 4, buf, size, written);
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: return give_attribute(algo.scheme, 4, buf, size, written);
    case CUBLASLT_ALGO_CONFIG_TILE_ID: return give_attribute(static_cast<uint64_t>(algo.block), 4, buf, size, written);
    case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING:
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION:
    case CUBLASLT_ALGO_CONFIG_STAGES_ID: return give_attribute(0, 4, buf, size, written);
    case CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID:
    case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID: return give_attribute(0, 2, buf, size, written);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *packed,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr, const void *buf,
                                                    size_t size)
{
    uint32_t value;
    if (!packed || !buf || size != 4 || packed->data[7] != checksum(*packed)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&value, buf, 4);
    if (attr == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) packed->data[2] = value;
    else if (attr == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) packed->data[3] = value;
    else return CUBLAS_STATUS_INVALID_VALUE;
    packed->data[7] = checksum(*packed);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *packed,
                                                 cublasLtMatmulAlgoCapAttributes_t attr, void *buf, size_t size,
                                                 size_t *written)
{
    algorithm algo;
    unsigned promised[6];
    if (!unpack(packed, &algo, promised)) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attr) {
    case CUBLASLT_ALGO_CAP_SPLITK_SUPPORT: return give_attribute(algo.splits > 1, 4, buf, size, written);
    case CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK: return give_attribute(algo.scheme, 4, buf, size, written);
    case CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT:
    case CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT: return give_attribute(1, 4, buf, size, written);
    case CUBLASLT_ALGO_CAP_POINTER_MODE_MASK: return give_attribute(3, 4, buf, size, written);
    case CUBLASLT_ALGO_CAP_EPILOGUE_MASK: return give_attribute(algo.splits > 1 ? 5 : 1023, 4, buf, size, written);
    case CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS: return give_attribute(0, 8, buf, size, written);
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES: return give_attribute(algo.alignment, 4, buf, size, written);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

} // extern "C"
