/* cuBLASLt's calls: objects, attributes and the checks before a product. Choice: algos.cc. Arithmetic: gemm.cc. */
#include "blas.h"

#include <stddef.h>
#include <string.h>

#include <map>
#include <string>

namespace cudasim {

static std::map<const void *, void (*)(const void *)> alive; /* object and its deleter */

template <typename T> static void delete_object(const void *object)
{
    delete static_cast<const T *>(object);
}

template <typename T> static cublasStatus_t keep(T **ret, T *object)
{
    alive[object] = delete_object<T>;
    *ret = object;
    return CUBLAS_STATUS_SUCCESS;
}

void free_all_blas()
{
    for (const auto &object : alive) object.second(object.first);
    alive.clear();
}

void count_blas(struct cudasim_live *live)
{
    live->blas_objects = alive.size();
}

static bool is_alive(const void *object)
{
    return alive.count(object) != 0;
}

#define BLAS_ENTER                    \
    cudasim::blas_entry here(__func__); \
    if (here.planted()) return here.planted()

struct field {
    int attr;
    size_t offset, size;
};

#define FIELD(attr, type, member) { attr, offsetof(type, member), sizeof(type::member) }

static const field desc_fields[] = {
    FIELD(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, matmul_desc, compute),
    FIELD(CUBLASLT_MATMUL_DESC_SCALE_TYPE, matmul_desc, scale),
    FIELD(CUBLASLT_MATMUL_DESC_POINTER_MODE, matmul_desc, pointer_mode),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSA, matmul_desc, transa),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSB, matmul_desc, transb),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSC, matmul_desc, transc),
    FIELD(CUBLASLT_MATMUL_DESC_FILL_MODE, matmul_desc, fill),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, matmul_desc, epilogue),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, matmul_desc, bias),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, matmul_desc, bias_stride),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, matmul_desc, aux),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, matmul_desc, aux_ld),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, matmul_desc, aux_stride),
    FIELD(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, matmul_desc, sm_target),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, matmul_desc, aux_type),
    FIELD(CUBLASLT_MATMUL_DESC_FAST_ACCUM, matmul_desc, fast_accumulation),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, matmul_desc, bias_type),
    FIELD(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, matmul_desc, scale_pointer[0]),
    FIELD(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, matmul_desc, scale_pointer[1]),
    FIELD(CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, matmul_desc, scale_pointer[2]),
    FIELD(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, matmul_desc, scale_pointer[3]),
};

static const field layout_fields[] = {
    FIELD(CUBLASLT_MATRIX_LAYOUT_TYPE, layout, type),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, layout, order),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ROWS, layout, rows),
    FIELD(CUBLASLT_MATRIX_LAYOUT_COLS, layout, cols),
    FIELD(CUBLASLT_MATRIX_LAYOUT_LD, layout, ld),
    FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, layout, batch),
    FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, layout, stride),
    FIELD(CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, layout, plane),
};

static const field preference_fields[] = {
    FIELD(CUBLASLT_MATMUL_PREF_SEARCH_MODE, preference, search),
    FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, preference, workspace),
    FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, preference, reductions),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, preference, alignment[0]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, preference, alignment[1]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, preference, alignment[2]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, preference, alignment[3]),
    FIELD(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, preference, waves),
    FIELD(CUBLASLT_MATMUL_PREF_IMPL_MASK, preference, implementations),
};

template <size_t N>
static cublasStatus_t set(const field (&fields)[N], void *object, int attr, const void *buf, size_t size)
{
    if (!is_alive(object) || !buf) return CUBLAS_STATUS_INVALID_VALUE;
    for (const field &f : fields) {
        if (f.attr != attr) continue;
        if (size != f.size) return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(static_cast<char *>(object) + f.offset, buf, size);
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

template <size_t N>
static cublasStatus_t get(const field (&fields)[N], const void *object, int attr, void *buf, size_t size,
                          size_t *written)
{
    if (!is_alive(object) || (!size && !written)) return CUBLAS_STATUS_INVALID_VALUE;
    for (const field &f : fields) {
        if (f.attr != attr) continue;
        if (written) *written = f.size;
        if (size == 0) return CUBLAS_STATUS_SUCCESS;
        if (size != f.size || !buf) return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(buf, static_cast<const char *>(object) + f.offset, size);
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

template <typename T> static cublasStatus_t destroy(T *object)
{
    if (!alive.erase(object)) return CUBLAS_STATUS_INVALID_VALUE;
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

/* Bytes from the first element to the end of the last. */
static size_t extent(const layout &l)
{
    const bool by_cols = l.order == CUBLASLT_ORDER_COL;
    const uint64_t outer = by_cols ? l.cols : l.rows, within = by_cols ? l.rows : l.cols;
    const uint64_t one = (outer - 1) * static_cast<uint64_t>(l.ld) + within;
    return (static_cast<uint64_t>(l.batch - 1) * static_cast<uint64_t>(l.stride) + one) * size_of_type(l.type);
}

static cublasStatus_t wrong(const std::string &what)
{
    report("cublasLtMatmul: %s", what.c_str());
    return CUBLAS_STATUS_INVALID_VALUE;
}

/*
 * Checks operands against the alignment that the choice was promised and against allocations. A violation is reported,
 * because it is an error of the program, to which a device responds with anything from wrong numbers to a lost context.
 */
static cublasStatus_t check_operand(const char *name, const void *ptr, const layout &l, unsigned promised)
{
    if (reinterpret_cast<uintptr_t>(ptr) % promised)
        return wrong(std::string(name) + " is not aligned to the " + std::to_string(promised) +
                     " bytes that the choice was promised");
    if (!is_device(ptr, extent(l)) && !is_pinned(ptr, extent(l)))
        return wrong(std::string(name) + ", " + std::to_string(extent(l)) + " bytes, is not in one device allocation");
    return CUBLAS_STATUS_SUCCESS;
}

static bool overlap(const void *a, size_t a_size, const void *b, size_t b_size)
{
    const uintptr_t x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
    return x < y + b_size && y < x + a_size;
}

static bool same_places(const layout &a, const layout &b)
{
    return a.type == b.type && a.order == b.order && a.ld == b.ld && (a.batch == 1 || a.stride == b.stride);
}

static cublasStatus_t check_places(const product &p, bool reads_c)
{
    if (overlap(p.d_ptr, extent(p.d), p.a_ptr, extent(p.a)) || overlap(p.d_ptr, extent(p.d), p.b_ptr, extent(p.b)))
        return wrong("D overlaps A or B");
    if (!reads_c || !overlap(p.d_ptr, extent(p.d), p.c_ptr, extent(p.c))) return CUBLAS_STATUS_SUCCESS;
    return p.c_ptr == p.d_ptr && same_places(p.c, p.d) ? CUBLAS_STATUS_SUCCESS : wrong("D overlaps C, and is not C");
}

/* Checks the operands of an epilogue other than C and D. The sanitizers check the bits of ReLU. */
static cublasStatus_t check_epilogue_operands(const product &p, unsigned bias_promised, unsigned aux_promised)
{
    const uint32_t e = p.desc.epilogue;
    const auto wide = [&p](int32_t type) { return size_of_type(type < 0 ? p.d.type : static_cast<uint32_t>(type)); };
    const size_t bias = p.d.rows * wide(p.desc.bias_type);
    const void *const bias_ptr = reinterpret_cast<const void *>(p.desc.bias);
    const void *const aux_ptr = reinterpret_cast<const void *>(p.desc.aux);
    if (e & 4 && bias_promised && p.desc.bias % bias_promised)
        return wrong("the bias is not aligned as the choice was promised");
    if (e & 4 && !is_device(bias_ptr, bias)) return wrong("the bias is not in one device allocation");
    if (!(e & 128) || !(e & (32 | 64))) return CUBLAS_STATUS_SUCCESS;
    const uint64_t last = static_cast<uint64_t>(p.d.batch - 1) * static_cast<uint64_t>(p.desc.aux_stride) +
                          (p.d.cols - 1) * static_cast<uint64_t>(p.desc.aux_ld) + p.d.rows;
    const size_t aux = last * wide(p.desc.aux_type);
    if (aux_promised && p.desc.aux % aux_promised) return wrong("aux is not aligned as the choice was promised");
    if (!is_device(aux_ptr, aux)) return wrong("aux is not in one device allocation");
    if (overlap(aux_ptr, aux, p.d_ptr, extent(p.d)) || overlap(aux_ptr, aux, p.a_ptr, extent(p.a)) ||
        overlap(aux_ptr, aux, p.b_ptr, extent(p.b)))
        return wrong("aux overlaps A, B or D");
    return CUBLAS_STATUS_SUCCESS;
}

/* One float each, if the descriptor has them. */
static cublasStatus_t check_scales(const product &p)
{
    for (const uint64_t at : p.desc.scale_pointer)
        if (at && (at % sizeof(float) || !is_device(reinterpret_cast<const void *>(at), sizeof(float))))
            return wrong("a scale is not a float on the device");
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_workspace(const product &p, const problem &q, size_t given)
{
    const size_t needed = workspace_of(p.algo, q);
    if (!needed) return CUBLAS_STATUS_SUCCESS;
    if (!p.workspace || given < needed || reinterpret_cast<uintptr_t>(p.workspace) % 256)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_device(p.workspace, given)) return wrong("the workspace is not in one device allocation");
    return CUBLAS_STATUS_SUCCESS;
}

static double scalar(const void *at, int32_t scale)
{
    if (scale == CUDA_R_64F) return *static_cast<const double *>(at);
    return static_cast<double>(*static_cast<const float *>(at));
}

static cublasStatus_t status_of(cudaError_t e)
{
    return e ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

/* Copies the arguments of a call and checks them. */
static cublasStatus_t start_product(product *p, const cublasLtMatmulAlgo_t *algo, size_t workspace_size,
                                    cudaStream_t stream)
{
    const problem q = { &p->desc, &p->a, &p->b, &p->c, &p->d };
    cublasLtMatmulAlgo_t chosen; /* the algorithm of a call without one */
    unsigned promised[6];
    cublasStatus_t s = check_problem(q);
    if (!s && !algo) s = default_algorithm(q, &chosen);
    if (s) return s;
    if (!unpack(algo ? algo : &chosen, &p->algo, promised)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!algo) promised[0] = promised[1] = promised[2] = promised[3] = p->algo.alignment, promised[4] = promised[5] = 1;
    s = check_algorithm(p->algo, q);
    const bool reads_c = p->desc.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE || p->beta != 0;
    if (!s && reads_c && !p->c_ptr) s = CUBLAS_STATUS_INVALID_VALUE;
    if (!s) s = check_operand("A", p->a_ptr, p->a, promised[0]);
    if (!s) s = check_operand("B", p->b_ptr, p->b, promised[1]);
    if (!s && reads_c) s = check_operand("C", p->c_ptr, p->c, promised[2]);
    if (!s) s = check_operand("D", p->d_ptr, p->d, promised[3]);
    if (!s) s = check_places(*p, reads_c);
    if (!s) s = check_epilogue_operands(*p, promised[4], promised[5]);
    if (!s) s = check_scales(*p);
    if (!s) s = check_workspace(*p, q, workspace_size);
    if (s) return s;
    const auto copy = std::make_shared<product>(*p);
    return status_of(enqueue(stream, cudaGraphNodeTypeKernel, [copy] {
        device_access access;
        return run_product(*copy);
    }));
}

} // namespace cudasim

using namespace cudasim;

bool cudasim::blas_is_alive(const void *object)
{
    return is_alive(object);
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    blas_entry here(__func__);
    if (here.refused()) return here.refused();
    if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
    if (refuse_legacy()) return CUBLAS_STATUS_NOT_INITIALIZED; /* it initializes on the legacy stream */
    return keep(handle, new cublasLtContext{ 0 });
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    BLAS_ENTER;
    return destroy(handle);
}

#define CUBLAS_STATUSES(X)                                                                      \
    X(SUCCESS, "the operation completed successfully")                                          \
    X(NOT_INITIALIZED, "the library was not initialized")                                       \
    X(ALLOC_FAILED, "the resource allocation failed")                                           \
    X(INVALID_VALUE, "an unsupported numerical value was passed to the function")               \
    X(ARCH_MISMATCH, "the function requires an architectural feature absent from the device")   \
    X(MAPPING_ERROR, "an access to GPU memory space failed")                                    \
    X(EXECUTION_FAILED, "the GPU program failed to execute")                                    \
    X(INTERNAL_ERROR, "an internal operation failed")                                           \
    X(NOT_SUPPORTED, "the functionality requested is not supported")                            \
    X(LICENSE_ERROR, "the functionality requested requires some license")

const char *cublasLtGetStatusName(cublasStatus_t status)
{
#define STATUS_NAME(name, text) if (status == CUBLAS_STATUS_##name) return "CUBLAS_STATUS_" #name;
    CUBLAS_STATUSES(STATUS_NAME)
    return "unknown status";
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
#define STATUS_TEXT(name, text) if (status == CUBLAS_STATUS_##name) return text;
    CUBLAS_STATUSES(STATUS_TEXT)
    return "unknown status";
}

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion(void) { return CUDART_VERSION; }

cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int *value)
{
    if (!value || type > PATCH_LEVEL) return CUBLAS_STATUS_INVALID_VALUE;
    *value = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : type == MINOR_VERSION ? CUBLAS_VER_MINOR : CUBLAS_VER_PATCH;
    return CUBLAS_STATUS_SUCCESS;
}

static size_t cache_capacity = 8192;

cublasStatus_t cublasLtHeuristicsCacheGetCapacity(size_t *capacity)
{
    if (!capacity) return CUBLAS_STATUS_INVALID_VALUE;
    *capacity = cache_capacity;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtHeuristicsCacheSetCapacity(size_t capacity)
{
    cache_capacity = capacity;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *ret, cublasComputeType_t compute, cudaDataType_t scale)
{
    BLAS_ENTER;
    if (!ret) return CUBLAS_STATUS_INVALID_VALUE;
    return keep(
        ret, new matmul_desc{ compute, scale, 0, 0, 0, 0, 2, CUBLASLT_EPILOGUE_DEFAULT, 0, 0, 0, 0, 0, 0, -1, -1, 0,
                             { 0, 0, 0, 0 } });
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t object)
{
    BLAS_ENTER;
    return destroy(object);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t object, cublasLtMatmulDescAttributes_t attr,
                                              const void *buf, size_t size)
{
    BLAS_ENTER;
    return set(desc_fields, object, attr, buf, size);
}

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t object, cublasLtMatmulDescAttributes_t attr,
                                              void *buf, size_t size, size_t *written)
{
    BLAS_ENTER;
    return get(desc_fields, object, attr, buf, size, written);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *ret, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    BLAS_ENTER;
    if (!ret) return CUBLAS_STATUS_INVALID_VALUE;
    return keep(ret, new layout{ static_cast<uint32_t>(type), CUBLASLT_ORDER_COL, rows, cols, ld, 1, 0, 0 });
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t object)
{
    BLAS_ENTER;
    return destroy(object);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t object, cublasLtMatrixLayoutAttribute_t attr,
                                                const void *buf, size_t size)
{
    BLAS_ENTER;
    return set(layout_fields, object, attr, buf, size);
}

cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t object, cublasLtMatrixLayoutAttribute_t attr,
                                                void *buf, size_t size, size_t *written)
{
    BLAS_ENTER;
    return get(layout_fields, object, attr, buf, size, written);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret)
{
    BLAS_ENTER;
    if (!ret) return CUBLAS_STATUS_INVALID_VALUE;
    return keep(ret, new preference{ 0, 0, CUBLASLT_REDUCTION_SCHEME_MASK, { 256, 256, 256, 256 }, 0, ~uint64_t(0) });
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t object)
{
    BLAS_ENTER;
    return destroy(object);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t object,
                                                    cublasLtMatmulPreferenceAttributes_t attr, const void *buf,
                                                    size_t size)
{
    BLAS_ENTER;
    return set(preference_fields, object, attr, buf, size);
}

cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t object,
                                                    cublasLtMatmulPreferenceAttributes_t attr, void *buf, size_t size,
                                                    size_t *written)
{
    BLAS_ENTER;
    return get(preference_fields, object, attr, buf, size, written);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_size, cudaStream_t stream)
{
    blas_entry here(__func__);
    if (here.refused()) return here.refused();
    if (!is_here(stream)) return CUBLAS_STATUS_EXECUTION_FAILED;
    for (const void *object : { static_cast<const void *>(handle), static_cast<const void *>(operation),
                                static_cast<const void *>(a_layout), static_cast<const void *>(b_layout),
                                static_cast<const void *>(c_layout), static_cast<const void *>(d_layout) })
        if (!is_alive(object)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!alpha || !beta || !a || !b || !d || !is_stream(stream)) return CUBLAS_STATUS_INVALID_VALUE;
    product p = {};
    p.desc = *operation;
    p.a = *a_layout, p.b = *b_layout, p.c = *c_layout, p.d = *d_layout;
    p.a_ptr = a, p.b_ptr = b, p.c_ptr = c, p.d_ptr = d;
    p.workspace = workspace;
    if (operation->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
        p.alpha_device = alpha, p.beta_device = beta;
    } else {
        p.alpha = scalar(alpha, operation->scale);
        p.beta = scalar(beta, operation->scale);
    }
    return start_product(&p, algo, workspace_size, stream);
}

} // extern "C"
