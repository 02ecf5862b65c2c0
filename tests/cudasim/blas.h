/* The objects of cuBLASLt, and a product as it is run: shared by cublaslt.cc (calls and checks), algos.cc (choice) and
   gemm.cc (arithmetic). */
#ifndef CUDASIM_BLAS_H
#define CUDASIM_BLAS_H

#include "runtime.h"

#include <cublasLt.h>

struct cublasLtContext {
    int unused;
};

struct cublasLtMatmulDescOpaque_t {
    int32_t compute, scale, pointer_mode, transa, transb, transc, fill;
    uint32_t epilogue;
    uint64_t bias, aux;
    int64_t bias_stride, aux_ld, aux_stride;
    int32_t sm_target, aux_type, bias_type;
    int8_t fast_accumulation;
    uint64_t scale_pointer[4]; /* for A, B, C, D: on the device */
};

struct cublasLtMatrixLayoutOpaque_t {
    uint32_t type;
    int32_t order;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch;
    int64_t stride, plane;
};

struct cublasLtMatmulPreferenceOpaque_t {
    uint32_t search;
    uint64_t workspace;
    uint32_t reductions, alignment[4]; /* A, B, C, D */
    float waves;
    uint64_t implementations;
};

namespace cudasim {

using matmul_desc = cublasLtMatmulDescOpaque_t;
using layout = cublasLtMatrixLayoutOpaque_t;
using preference = cublasLtMatmulPreferenceOpaque_t;

/* The order in which an algorithm adds up along k. */
enum class order : int { one, blocks, lanes, backwards };

struct algorithm {
    int id;
    enum order order;
    int block;
    unsigned alignment; /* alignment that A, B, C and D need, in bytes */
    int splits;
    unsigned scheme;
    size_t workspace; /* bytes, in addition to those of split sums */
};

/* One product with all its arguments, copied from the caller's. */
struct product {
    matmul_desc desc;
    layout a, b, c, d;
    algorithm algo;
    const void *a_ptr, *b_ptr, *c_ptr;
    void *d_ptr, *workspace;
    const void *alpha_device, *beta_device; /* in pointer mode DEVICE */
    double alpha, beta;
};

size_t size_of_type(uint32_t type); /* 0 for a type that is not simulated */
bool is_8f(uint32_t type);          /* 8-bit floating point */

/* Everything on which the choice depends. */
struct problem {
    const matmul_desc *desc;
    const layout *a, *b, *c, *d;
};
/* Success if types, shapes and epilogue are a supported combination. */
cublasStatus_t check_problem(const problem &p);
uint64_t rows_of_a(const problem &p);
uint64_t inner(const problem &p);
size_t workspace_of(const algorithm &algo, const problem &p);
/* Unpacks an algorithm and checks that this library has made it. */
bool unpack(const cublasLtMatmulAlgo_t *packed, algorithm *algo, unsigned promised[6]); /* A, B, C, D, bias, aux */
/* The first answer for the default preferences. */
cublasStatus_t default_algorithm(const problem &p, cublasLtMatmulAlgo_t *packed);
/* NOT_SUPPORTED if the algorithm does not support the problem. */
cublasStatus_t check_algorithm(const algorithm &algo, const problem &p);

bool blas_is_alive(const void *object);
/* Whether a second query for the same product gives another answer. */
bool blas_rotates();

/* Entered by every call: takes the lock, returns a planted status. */
class blas_entry {
public:
    explicit blas_entry(const char *function) : inner(function) {}

    /* For calls that need no device: only a planted status. */
    cublasStatus_t planted() const
    {
        return inner.is_planted() ? static_cast<cublasStatus_t>(inner.refused()) : CUBLAS_STATUS_SUCCESS;
    }

    cublasStatus_t refused() const
    {
        if (inner.is_planted() || !inner.refused()) return planted();
        return broken ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_NOT_INITIALIZED;
    }

private:
    entry inner;
};

cudaError_t run_product(const product &p);

} // namespace cudasim

#endif
