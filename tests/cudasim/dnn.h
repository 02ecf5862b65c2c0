/* cuDNN's convolutions as they are run: shared by cudnn.cc (descriptors and checks) and convolution.cc (engines and
   arithmetic). */
#ifndef CUDASIM_DNN_H
#define CUDASIM_DNN_H

#include "runtime.h"

#include <cudnn.h>

#include <vector>

struct cudnnContext {
    cudaStream_t stream;
};

namespace cudasim {

struct dnn_tensor {
    cudnnDataType_t type;
    int64_t dim[4], stride[4], id, alignment;
    bool is_virtual;
};

/* One operation: of x, w and y two are read and one is written, by kind. The sum with a bias may follow y. */
struct dnn_convolution {
    cudnnBackendDescriptorType_t kind;
    cudnnDataType_t precision;
    int64_t stride[2], padding[2], dilation[2];
    double alpha, beta;
    dnn_tensor x, w, y;
    bool biased;
    dnn_tensor bias, to; /* replaces y, which is then virtual */

    const dnn_tensor &result() const;
    int64_t groups() const { return x.dim[1] / w.dim[1]; }
};

/* The order of summation of an engine, and its operands. */
enum class sums : int { one, blocks, lanes, any, rough };

struct dnn_engine {
    int id;
    std::vector<cudnnBackendNumericalNote_t> notes;
    enum sums sums;
    bool rounds; /* rounds float32 operands to TF32 */
    bool refuses;
    size_t workspace; /* bytes in addition to a copy of the weight */
};

/* The engines for a convolution, best first. */
std::vector<const dnn_engine *> dnn_choices(const dnn_convolution &c, cudnnBackendHeurMode_t mode);
size_t dnn_workspace(const dnn_engine &engine, const dnn_convolution &c);

size_t dnn_size(cudnnDataType_t type); /* 0 for one that is not simulated */
size_t dnn_bytes(const dnn_tensor &t); /* from the first element to the end of the last */

struct dnn_run {
    dnn_convolution c;
    const dnn_engine *engine;
    void *x, *w, *y, *bias, *workspace; /* y: or the biased sum */
};
cudaError_t run_convolution(const dnn_run &r);

} // namespace cudasim

#endif
