/* Pinned matrix products. See blaslt.h. */
#include "device/cuda/blaslt.h"
#include "device/cuda/blaslt_parts.h"
#include "device/cuda/signature_hash.h"
#include "device/cuda/dlopen_libraries.h"
#include "device/cuda/fallible_cuda_malloc.h"
#include "base/alloc.h"

#include <cublasLt.h>

#include <stddef.h>
#include <string.h>

/*
 * NVIDIA's recommendation for Hopper. An upper bound; most products take none. Constant, because it affects the choice.
 */
#define WORKSPACE_LIMIT ((uint64_t)32 << 20)
#define WORKSPACE_ALIGN 256
#define CHOICES 8
/* Minimum k that may be summed in parts. With fewer rows that would take workspace for little gain. */
#define LONG_K 1024

/* The functions in use, by name: X(Create) is cublasLtCreate. */
#define CUBLASLT_FUNCTIONS(X)                                                                                          \
    X(Create) X(Destroy) X(GetStatusString) X(MatmulDescCreate) X(MatmulDescDestroy) X(MatmulDescSetAttribute)        \
    X(MatrixLayoutCreate) X(MatrixLayoutDestroy) X(MatrixLayoutSetAttribute) X(MatmulPreferenceCreate)                \
    X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute) X(MatmulAlgoGetHeuristic)                              \
    X(MatmulAlgoConfigGetAttribute) X(Matmul)

struct api {
#define MEMBER(name) __typeof__(&cublasLt##name) name;
    CUBLASLT_FUNCTIONS(MEMBER)
#undef MEMBER
};

struct entry {
    struct rw_blaslt_product product;
    uint64_t hash;
    bool has; /* otherwise the library has no algorithm */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
};

struct rw_blaslt {
    struct rw_cuda *cuda;
    struct api api;
    cublasLtHandle_t handle;
    struct entry **entries; /* by hash, open addressing; size a power of two */
    size_t n, size;
    struct factors *factors; /* on the device */
};

/*
 * Alpha and beta in device memory, for products with a sum. If beta were in host memory, the library would know that it
 * is
 * 1. If the sum is c, it would then add in the store, on Hopper in c's type. Then 16-bit values would be rounded twice,
 * and a residual that is overwritten would get other bytes than one that is not.
 */
struct factors {
    double wide;
    float narrow;
};

static rw_status failed(struct rw_blaslt *lt, cublasStatus_t status, const char *call)
{
    if (status == CUBLAS_STATUS_SUCCESS) return RW_OK;
    if (status == CUBLAS_STATUS_EXECUTION_FAILED) {
        const rw_status earlier = rw_cuda_earlier_error(lt->cuda, call);
        if (earlier) return earlier;
    }
    return rw_cuda_fail(lt->cuda, status == CUBLAS_STATUS_ALLOC_FAILED ? RW_ERR_MEMORY : RW_ERR_DEVICE,
                        "cuBLASLt: %s: %s (%d)", call, lt->api.GetStatusString(status), (int)status);
}

#define TRY(call)                                                 \
    do {                                                          \
        const rw_status try_ = failed(lt, lt->api.call, #call);   \
        if (try_) return try_;                                    \
    } while (0)

static rw_status open_library(struct rw_blaslt *lt)
{
    static const char *const names[] = {
#define NAME(name) "cublasLt" #name,
        CUBLASLT_FUNCTIONS(NAME)
#undef NAME
    };
    void *const to[] = {
#define POINTER(name) &lt->api.name,
        CUBLASLT_FUNCTIONS(POINTER)
#undef POINTER
    };
    return rw_cuda_library(lt->cuda, RW_LIBRARY_CUBLASLT, names, to, sizeof names / sizeof *names);
}

static rw_status make_factors(struct rw_blaslt *lt)
{
    static const struct factors one = { 1, 1 };
    void *p = NULL;
    const rw_status status = rw_cuda_status(lt->cuda, rw_cuda_take(&p, sizeof one), "cudaMalloc");
    lt->factors = p;
    if (status) return status;
    return rw_cuda_status(lt->cuda,
                          cudaMemcpyAsync(p, &one, sizeof one, cudaMemcpyHostToDevice, lt->cuda->stream),
                          "cudaMemcpyAsync");
}

rw_status rw_blaslt_create(struct rw_blaslt **ret, struct rw_cuda *cuda)
{
    struct rw_blaslt *lt = rw_calloc(1, sizeof *lt);
    if (!lt) return RW_ERR_MEMORY;
    lt->cuda = cuda;
    rw_status status = open_library(lt);
    if (!status) status = failed(lt, lt->api.Create(&lt->handle), "cublasLtCreate");
    if (!status) status = make_factors(lt);
    if (status) {
        rw_blaslt_destroy(&lt);
        return status;
    }
    *ret = lt;
    return RW_OK;
}

static void free_entry(struct rw_blaslt *lt, struct entry *e)
{
    if (!e) return;
    if (e->desc) lt->api.MatmulDescDestroy(e->desc);
    if (e->a) lt->api.MatrixLayoutDestroy(e->a);
    if (e->b) lt->api.MatrixLayoutDestroy(e->b);
    if (e->c) lt->api.MatrixLayoutDestroy(e->c);
    rw_free(e);
}

void rw_blaslt_destroy(struct rw_blaslt **plt)
{
    struct rw_blaslt *const lt = *plt;
    if (!lt) return;
    for (size_t i = 0; i < lt->size; i++) free_entry(lt, lt->entries[i]);
    rw_free(lt->entries);
    cudaFree(lt->factors);
    if (lt->handle) lt->api.Destroy(lt->handle);
    rw_free(lt);
    *plt = NULL;
}

/* ---- from a product to cuBLASLt's descriptors ---- */

static cudaDataType_t data_type(int32_t dtype)
{
    switch (dtype) {
    case RW_F64: return CUDA_R_64F;
    case RW_BF16: return CUDA_R_16BF;
    case RW_F16: return CUDA_R_16F;
    case RW_F8_E4M3: return CUDA_R_8F_E4M3;
    case RW_F8_E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
    }
}

static cublasComputeType_t compute_type(const struct rw_blaslt_product *p)
{
    if (p->dtype == RW_F64) return CUBLAS_COMPUTE_64F;
    return p->dtype == RW_F32 && p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/*
 * cuBLASLt's matrices are column-major. Ours are row-major, so it computes c^T = b^T a^T: its first operand is b, whose
 * rows are columns of b^T. A column-major operand is transposed once more.
 */
static rw_status make_layout(struct rw_blaslt *lt, cublasLtMatrixLayout_t *ret, const struct rw_blaslt_product *p,
                             int32_t dtype, int64_t rows, int64_t cols, int64_t row, int64_t col, int64_t stride)
{
    const int32_t batch = (int32_t)p->batch;
    const bool by_rows = col == 1;
    TRY(MatrixLayoutCreate(ret, data_type(dtype), (uint64_t)(by_rows ? cols : rows),
                           (uint64_t)(by_rows ? rows : cols), by_rows ? row : col));
    TRY(MatrixLayoutSetAttribute(*ret, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
    TRY(MatrixLayoutSetAttribute(*ret, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
    return RW_OK;
}

/* Sets what an epilogue reads and writes besides C and D. */
static rw_status set_pointers(struct rw_blaslt *lt, const struct entry *e, const void *bias, const void *aux)
{
    if (e->product.bias) TRY(MatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    if (!e->product.gelu) return RW_OK;
    TRY(MatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux));
    return RW_OK;
}

static rw_status set_gelu(struct rw_blaslt *lt, const struct entry *e)
{
    const struct rw_blaslt_product *const p = &e->product;
    const int64_t each = p->m * p->n;
    TRY(MatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->c_row, sizeof p->c_row));
    TRY(MatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, &each, sizeof each));
    return RW_OK;
}

/* Sets bias and gelu as the epilogue of a product. */
static rw_status set_epilogue(struct rw_blaslt *lt, const struct entry *e)
{
    static const cublasLtEpilogue_t epilogues[2][2] = {
        { CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS },
        { CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS },
    };
    const struct rw_blaslt_product *const p = &e->product;
    const cudaDataType_t type = data_type(p->b_codes ? RW_BF16 : p->dtype);
    const cublasLtEpilogue_t epilogue = epilogues[p->gelu][p->bias];
    TRY(MatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (p->bias) TRY(MatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type));
    const rw_status status = p->gelu ? set_gelu(lt, e) : RW_OK;
    if (status) return status;
    /* The heuristic uses the alignment of these addresses, so they get the one that the layouts promise. */
    return set_pointers(lt, e, (const void *)(uintptr_t)(4096 + p->bias_align),
                        (const void *)(uintptr_t)(4096 + p->c_align));
}

/* The first operand of cuBLASLt is b. */
static rw_status set_scales(struct rw_blaslt *lt, const struct entry *e, const float *a, const float *b)
{
    TRY(MatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b, sizeof b));
    TRY(MatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a, sizeof a));
    return RW_OK;
}

/*
 * Sums are accumulated in float32, not in the fast mode. The heuristic only checks that there are scales, so any will
 * do.
 */
static rw_status set_codes(struct rw_blaslt *lt, const struct entry *e)
{
    const int8_t fast = 0;
    TRY(MatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
    return set_scales(lt, e, &lt->factors->narrow, &lt->factors->narrow);
}

static rw_status make_desc(struct rw_blaslt *lt, struct entry *e)
{
    const struct rw_blaslt_product *const p = &e->product;
    const cublasOperation_t first = p->b_col == 1 ? CUBLAS_OP_N : CUBLAS_OP_T,
                            second = p->a_col == 1 ? CUBLAS_OP_N : CUBLAS_OP_T;
    TRY(MatmulDescCreate(&e->desc, compute_type(p), p->dtype == RW_F64 ? CUDA_R_64F : CUDA_R_32F));
    TRY(MatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    TRY(MatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    const cublasLtPointerMode_t from = p->adds ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST;
    TRY(MatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &from, sizeof from));
    const rw_status status = p->b_codes ? set_codes(lt, e) : RW_OK;
    if (status) return status;
    return p->bias || p->gelu ? set_epilogue(lt, e) : RW_OK;
}

static rw_status make_descriptors(struct rw_blaslt *lt, struct entry *e)
{
    const struct rw_blaslt_product *const p = &e->product;
    const int32_t b_dtype = p->b_codes ? p->b_codes : p->dtype;
    rw_status status = make_desc(lt, e);
    if (!status) status = make_layout(lt, &e->b, p, b_dtype, p->k, p->n, p->b_row, p->b_col, p->b_batch);
    if (!status) status = make_layout(lt, &e->a, p, p->dtype, p->m, p->k, p->a_row, p->a_col, p->a_batch);
    if (!status) status = make_layout(lt, &e->c, p, p->to, p->m, p->n, p->c_row, 1, p->m * p->n);
    return status;
}

/* ---- choice of the algorithm ---- */

static rw_status set_preference(struct rw_blaslt *lt, cublasLtMatmulPreference_t pref,
                                const struct rw_blaslt_product *p)
{
    const uint64_t workspace = WORKSPACE_LIMIT;
    const uint32_t reductions = p->dtype == RW_F64 || p->k < LONG_K ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                                    : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t a = (uint32_t)p->b_align, b = (uint32_t)p->a_align, c = (uint32_t)p->c_align;
    TRY(MatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    TRY(MatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions));
    TRY(MatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a));
    TRY(MatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b));
    TRY(MatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c));
    TRY(MatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c));
    return RW_OK;
}

/*
 * Does the algorithm add along k in one order? It does so in one sequence, or in parts that are stored in the workspace
 * in the type of the sum until a separate pass adds them. A weight's gradient is small and its k long, so without parts
 * most of the device would be idle. The mask already requests this; the check makes sure.
 */
static bool has_one_order(const struct rw_blaslt *lt, const cublasLtMatmulAlgo_t *algo)
{
    int32_t split = 1;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
    size_t written;
    lt->api.MatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &written);
    lt->api.MatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &written);
    return split <= 1 ? scheme == CUBLASLT_REDUCTION_SCHEME_NONE : scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

/* Takes the first of the heuristic's algorithms with one order of summation. */
static rw_status query_algorithms(struct rw_blaslt *lt, struct entry *e, cublasLtMatmulPreference_t pref)
{
    cublasLtMatmulHeuristicResult_t found[CHOICES];
    int n = 0;
    const rw_status status = set_preference(lt, pref, &e->product);
    if (status) return status;
    const cublasStatus_t result =
        lt->api.MatmulAlgoGetHeuristic(lt->handle, e->desc, e->b, e->a, e->c, e->c, pref, CHOICES, found, &n);
    if (result == CUBLAS_STATUS_NOT_SUPPORTED || result == CUBLAS_STATUS_INVALID_VALUE) return RW_OK;
    if (result) return failed(lt, result, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < n && !e->has; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS || !has_one_order(lt, &found[i].algo)) continue;
        e->has = true;
        e->algo = found[i].algo;
        e->workspace = (found[i].workspaceSize + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
    }
    return RW_OK;
}

static rw_status choose(struct rw_blaslt *lt, struct entry *e)
{
    cublasLtMatmulPreference_t pref;
    rw_status status = make_descriptors(lt, e);
    if (status) return status;
    TRY(MatmulPreferenceCreate(&pref));
    status = query_algorithms(lt, e, pref);
    lt->api.MatmulPreferenceDestroy(pref);
    return status;
}

/* ---- the table ---- */

static struct entry **slot_of(struct entry **entries, size_t size, const struct rw_blaslt_product *p, uint64_t hash)
{
    size_t i = hash & (size - 1);
    while (entries[i] && (entries[i]->hash != hash || memcmp(&entries[i]->product, p, sizeof *p)))
        i = (i + 1) & (size - 1);
    return &entries[i];
}

static bool make_room(struct rw_blaslt *lt)
{
    if (lt->n * 2 < lt->size) return true;
    const size_t size = lt->size ? lt->size * 2 : 64;
    struct entry **const entries = rw_calloc(size, sizeof(struct entry *));
    if (!entries) return false;
    for (size_t i = 0; i < lt->size; i++)
        if (lt->entries[i]) *slot_of(entries, size, &lt->entries[i]->product, lt->entries[i]->hash) = lt->entries[i];
    rw_free(lt->entries);
    lt->entries = entries;
    lt->size = size;
    return true;
}

/* Finds a product's entry, or chooses its algorithm. */
static rw_status find(struct rw_blaslt *lt, const struct rw_blaslt_product *p, struct entry **ret)
{
    if (!make_room(lt)) return RW_ERR_MEMORY;
    const uint64_t hash = rw_cuda_hash(p, sizeof *p);
    struct entry **const slot = slot_of(lt->entries, lt->size, p, hash);
    if (!*slot) {
        struct entry *const e = rw_calloc(1, sizeof *e);
        if (!e) return RW_ERR_MEMORY;
        e->product = *p;
        e->hash = hash;
        const rw_status status = choose(lt, e);
        if (status) {
            free_entry(lt, e);
            return status;
        }
        *slot = e;
        lt->n++;
    }
    *ret = *slot;
    return RW_OK;
}

/* ---- a product in parts ---- */

/* All parts along an axis have the same extent, except perhaps the last one: at most eight products. */
rw_status rw_blaslt_query(struct rw_blaslt *lt, const struct rw_blaslt_product *p, bool *ret_has, size_t *ret_workspace)
{
    struct rw_blaslt_part part = { 1, 1, 1 };
    bool has = rw_blaslt_part_of(p, lt->cuda->max_count, &part);
    size_t workspace = 0;
    const struct rw_blaslt_part last = { p->batch % part.batch, p->m % part.rows, p->n % part.cols };
    for (int i = 0; i < 8 && has; i++) {
        const struct rw_blaslt_part one = { i & 1 ? last.batch : part.batch, i & 2 ? last.rows : part.rows,
                                            i & 4 ? last.cols : part.cols };
        struct entry *e;
        if (!one.batch || !one.rows || !one.cols) continue;
        const struct rw_blaslt_product q = rw_blaslt_part_product(p, one);
        const rw_status status = find(lt, &q, &e);
        if (status) return status;
        has = e->has;
        if (e->workspace > workspace) workspace = e->workspace;
    }
    *ret_has = has;
    *ret_workspace = has ? workspace : 0;
    return RW_OK;
}

static rw_status run_part(struct rw_blaslt *lt, const struct rw_blaslt_product *p, const struct rw_blaslt_operands *x,
                          void *workspace, size_t workspace_bytes)
{
    static const struct factors one = { 1, 1 }, zero = { 0, 0 };
    const size_t at = p->dtype == RW_F64 ? offsetof(struct factors, wide) : offsetof(struct factors, narrow);
    const void *const alpha = (const char *)(p->adds ? lt->factors : &one) + at;
    const void *const beta = (const char *)(p->adds ? lt->factors : &zero) + at;
    struct entry *e;
    rw_status status = find(lt, p, &e);
    if (!status) status = set_pointers(lt, e, x->bias, x->aux);
    if (!status && p->b_codes) status = set_scales(lt, e, x->a_scale, x->b_scale);
    if (status) return status;
    if (!e->has) return RW_ERR_UNSUPPORTED;
    if (workspace_bytes < e->workspace)
        return rw_cuda_fail(lt->cuda, RW_ERR_DEVICE, "cuBLASLt: the plan gave too little workspace");
    TRY(Matmul(lt->handle, e->desc, alpha, x->b, e->b, x->a, e->a, beta, p->adds ? x->sum : x->c, e->c, x->c, e->c,
               &e->algo, workspace, workspace_bytes, lt->cuda->stream));
    return RW_OK;
}

rw_status rw_blaslt_run(struct rw_blaslt *lt, const struct rw_blaslt_product *p, const struct rw_blaslt_operands *x,
                        void *workspace, size_t workspace_bytes)
{
    struct rw_blaslt_part part, at;
    if (!rw_blaslt_part_of(p, lt->cuda->max_count, &part)) return RW_ERR_UNSUPPORTED;
    for (at.batch = 0; at.batch < p->batch; at.batch += part.batch)
        for (at.rows = 0; at.rows < p->m; at.rows += part.rows)
            for (at.cols = 0; at.cols < p->n; at.cols += part.cols) {
                struct rw_blaslt_part one = part;
                if (p->batch - at.batch < one.batch) one.batch = p->batch - at.batch;
                if (p->m - at.rows < one.rows) one.rows = p->m - at.rows;
                if (p->n - at.cols < one.cols) one.cols = p->n - at.cols;
                const struct rw_blaslt_product q = rw_blaslt_part_product(p, one);
                const struct rw_blaslt_operands operands = rw_blaslt_part_operands(p, at, x);
                const rw_status status = run_part(lt, &q, &operands, workspace, workspace_bytes);
                if (status) return status;
            }
    return RW_OK;
}
