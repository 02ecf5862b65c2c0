/* The simulated cuDNN: its convolutions compared with sums in double, its choices and its checks. */
#include "test.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cudnn.h>

#include <math.h>

#include <string>

TestSuite(cudasim_dnn, .fini = cudasim_restart); /* frees what a test leaves allocated */

using descriptor = cudnnBackendDescriptor_t;

static descriptor create(cudnnBackendDescriptorType_t type)
{
    descriptor d = nullptr;
    OK(cudnnBackendCreateDescriptor(type, &d));
    return d;
}

static void set(descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const void *value,
                int64_t n = 1)
{
    OK(cudnnBackendSetAttribute(d, name, type, n, value));
}

/* Operands 1 x, 2 w, 3 y, 4 bias; images are channels last, the weight is [oc, c / groups, kh, kw]. */
struct layer {
    cudnnDataType_t type = CUDNN_DATA_FLOAT, precision = CUDNN_DATA_FLOAT;
    int kind = 0; /* forward, data, weight */
    int64_t n = 2, c = 6, h = 7, w = 8, oc = 4, kh = 3, kw = 2, groups = 2, alignment = 16;
    int64_t stride[2] = { 2, 1 }, padding[2] = { 1, 2 }, dilation[2] = { 1, 2 };
    bool biased = false;

    cudnnHandle_t handle = nullptr;
    cudaStream_t stream = nullptr;
    descriptor graph = nullptr;
    void *at[5] = {}, *workspace = nullptr;
    std::vector<double> values[5];

    int64_t extent(int i) const
    {
        return ((i ? w : h) + 2 * padding[i] - dilation[i] * ((i ? kw : kh) - 1) - 1) / stride[i] + 1;
    }
    size_t count(int id) const
    {
        const int64_t n_[] = { 0, n * h * w * c, oc * (c / groups) * kh * kw, n * extent(0) * extent(1) * oc, oc };
        return static_cast<size_t>(n_[id]);
    }
    int result() const { return kind == 0 ? 3 : kind == 1 ? 1 : 2; }

    descriptor tensor(int64_t id, cudnnDataType_t of, std::vector<int64_t> dim, std::vector<int64_t> strides,
                      bool is_virtual = false)
    {
        const descriptor d = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
        set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &of);
        set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dim.data(), 4);
        set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides.data(), 4);
        set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id);
        set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment);
        set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &is_virtual);
        OK(cudnnBackendFinalize(d));
        return d;
    }
    descriptor image(int64_t id, cudnnDataType_t of, int64_t b, int64_t channels, int64_t rows, int64_t cols,
                     bool is_virtual = false)
    {
        return tensor(id, of, { b, channels, rows, cols },
                      { rows * cols * channels, 1, cols * channels, channels }, is_virtual);
    }
    descriptor convolution();
    descriptor operation(descriptor x, descriptor w_, descriptor y);
    void make();
    descriptor plan(const char *engine);
    descriptor pack(const std::vector<int64_t> &ids);
    std::vector<double> run(descriptor p);
    double expected(size_t i, double *ret_size) const;
};

descriptor layer::convolution()
{
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t two = 2;
    const descriptor d = create(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &precision);
    set(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, &mode);
    set(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, &two);
    set(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, padding, 2);
    set(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, padding, 2);
    set(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, stride, 2);
    set(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, dilation, 2);
    OK(cudnnBackendFinalize(d));
    return d;
}

/* Not finalized. */
descriptor layer::operation(descriptor x, descriptor w_, descriptor y)
{
    static const cudnnBackendDescriptorType_t of[] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                                       CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                                       CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR };
    const int first[] = { CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA };
    const auto name = [&](int i) { return static_cast<cudnnBackendAttributeName_t>(first[kind] + i); };
    const double one = 1, zero = 0;
    const float narrow_one = 1, narrow_zero = 0;
    const bool wide = precision == CUDNN_DATA_DOUBLE;
    const cudnnBackendAttributeType_t number = wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
    const descriptor conv = convolution(), d = create(of[kind]);
    set(d, name(0), number, wide ? (const void *)&one : &narrow_one);
    set(d, name(1), number, wide ? (const void *)&zero : &narrow_zero);
    set(d, name(2), CUDNN_TYPE_BACKEND_DESCRIPTOR, &conv);
    set(d, name(3), CUDNN_TYPE_BACKEND_DESCRIPTOR, &w_);
    set(d, name(4), CUDNN_TYPE_BACKEND_DESCRIPTOR, &x);
    set(d, name(5), CUDNN_TYPE_BACKEND_DESCRIPTOR, &y);
    return d;
}

static size_t bytes_of(cudnnDataType_t type)
{
    return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2;
}

static double read_value(const void *p, cudnnDataType_t type, size_t i)
{
    switch (type) {
    case CUDNN_DATA_DOUBLE: return ((const double *)p)[i];
    case CUDNN_DATA_FLOAT: return (double)((const float *)p)[i];
    case CUDNN_DATA_BFLOAT16: return (double)__bfloat162float(((const __nv_bfloat16 *)p)[i]);
    default: return (double)__half2float(((const __half *)p)[i]);
    }
}

static void write_value(void *p, cudnnDataType_t type, size_t i, double v)
{
    switch (type) {
    case CUDNN_DATA_DOUBLE: ((double *)p)[i] = v; break;
    case CUDNN_DATA_FLOAT: ((float *)p)[i] = (float)v; break;
    case CUDNN_DATA_BFLOAT16: ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn((float)v); break;
    default: ((__half *)p)[i] = __float2half_rn((float)v); break;
    }
}

/* Creates the graph, and random operands on the device. */
void layer::make()
{
    const descriptor x = image(1, type, n, c, h, w), y = image(3, type, n, oc, extent(0), extent(1));
    const descriptor w_ = tensor(2, type, { oc, c / groups, kh, kw }, { c / groups * kh * kw, kh * kw, kw, 1 });
    const descriptor sum = biased ? image(9, precision, n, oc, extent(0), extent(1), true) : y;
    std::vector<descriptor> operations = { operation(x, w_, sum) };
    OK(cudnnBackendFinalize(operations[0]));
    if (biased) {
        const cudnnPointwiseMode_t add = CUDNN_POINTWISE_ADD;
        const descriptor how = create(CUDNN_BACKEND_POINTWISE_DESCRIPTOR), bias = image(4, type, 1, oc, 1, 1);
        set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &add);
        set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &precision);
        OK(cudnnBackendFinalize(how));
        operations.push_back(create(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR));
        set(operations[1], CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, &how);
        set(operations[1], CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &sum);
        set(operations[1], CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &bias);
        set(operations[1], CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &y);
        OK(cudnnBackendFinalize(operations[1]));
    }
    OK(cudaStreamCreate(&stream));
    OK(cudnnCreate(&handle));
    OK(cudnnSetStream(handle, stream));
    graph = create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &handle);
    set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations.data(),
        (int64_t)operations.size());
    OK(cudnnBackendFinalize(graph));
    unsigned seed = 5;
    for (int id = 1; id < 5; id++) {
        std::vector<char> bytes(count(id) * bytes_of(type));
        for (size_t i = 0; i < count(id); i++) {
            seed = seed * 1664525u + 1013904223u;
            write_value(bytes.data(), type, i, ldexp((double)(seed >> 8), -23) - 1);
            values[id].push_back(read_value(bytes.data(), type, i));
        }
        at[id] = device_array(bytes);
    }
}

/* The first configuration if only that engine is offered; as a plan, not finalized. */
descriptor layer::plan(const char *engine)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    const descriptor heuristics = create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    descriptor config = create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t found = 0;
    cudasim_set_dnn_engines(engine);
    set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, &graph);
    set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
    OK(cudnnBackendFinalize(heuristics));
    OK(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &found,
                                &config));
    cr_assert_eq(found, 1);
    const descriptor p = create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(p, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &handle);
    set(p, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, &config);
    return p;
}

descriptor layer::pack(const std::vector<int64_t> &ids)
{
    std::vector<void *> addresses;
    for (const int64_t id : ids) addresses.push_back(at[id]);
    const descriptor d = create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, addresses.data(), (int64_t)ids.size());
    set(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.data(), (int64_t)ids.size());
    set(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &workspace);
    OK(cudnnBackendFinalize(d));
    return d;
}

std::vector<double> layer::run(descriptor p)
{
    int64_t wanted = 0, found = 0;
    OK(cudnnBackendGetAttribute(p, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &found, &wanted));
    if (wanted) OK(cudaMalloc(&workspace, (size_t)wanted));
    OK(cudnnBackendExecute(handle, p, pack({ 1, 2, 3, 4 })));
    OK(cudaStreamSynchronize(stream));
    const std::vector<char> bytes = from_device((char *)at[result()], count(result()) * bytes_of(type));
    std::vector<double> to;
    for (size_t i = 0; i < count(result()); i++) to.push_back(read_value(bytes.data(), type, i));
    return to;
}

/* Element i as a sum over all products, and the sum of their magnitudes. */
double layer::expected(size_t element, double *ret_size) const
{
    const int64_t cg = c / groups, ocg = oc / groups;
    double sum = 0;
    *ret_size = 0;
    for (int64_t b = 0; b < n; b++)
        for (int64_t i = 0; i < extent(0); i++)
            for (int64_t j = 0; j < extent(1); j++)
                for (int64_t f = 0; f < oc; f++)
                    for (int64_t k = 0; k < cg * kh * kw; k++) {
                        const int64_t row = i * stride[0] - padding[0] + k / kw % kh * dilation[0];
                        const int64_t col = j * stride[1] - padding[1] + k % kw * dilation[1];
                        if (row < 0 || row >= h || col < 0 || col >= w) continue;
                        const size_t of[] = { 0,
                                              (size_t)(((b * h + row) * w + col) * c + f / ocg * cg + k / (kh * kw)),
                                              (size_t)(f * cg * kh * kw + k),
                                              (size_t)(((b * extent(0) + i) * extent(1) + j) * oc + f) };
                        if (of[result()] != element) continue;
                        double product = 1;
                        for (int id = 1; id < 4; id++)
                            if (id != result()) product *= values[id][of[id]];
                        sum += product;
                        *ret_size += fabs(product);
                    }
    if (biased) sum += values[4][element % (size_t)oc];
    return sum;
}

static double precision_of(cudnnDataType_t type)
{
    return type == CUDNN_DATA_DOUBLE    ? 0x1p-53
           : type == CUDNN_DATA_FLOAT   ? 0x1p-24
           : type == CUDNN_DATA_HALF    ? 0x1p-11
                                        : 0x1p-8;
}

static const cudnnDataType_t types[] = { CUDNN_DATA_FLOAT, CUDNN_DATA_DOUBLE, CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16 };

/* Each product in each type by the engines that add unmodified operands. */
Test(cudasim_dnn, convolutions)
{
    for (const cudnnDataType_t type : types)
        for (int kind = 0; kind < 4; kind++)
            for (const char *engine : { "0", "1", "7", "8" }) {
                layer l;
                l.type = type;
                l.precision = type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
                l.kind = kind % 3, l.biased = kind == 3;
                l.make();
                const descriptor p = l.plan(engine);
                OK(cudnnBackendFinalize(p));
                const std::vector<double> got = l.run(p);
                for (size_t i = 0; i < got.size(); i += 3) {
                    double size;
                    const double want = l.expected(i, &size);
                    const double bound = (size + 1) * 200 * precision_of(l.precision) +
                                         2 * precision_of(type) * fabs(want) + 0x1p-24 * (type == CUDNN_DATA_HALF);
                    cr_assert_leq(fabs(got[i] - want), bound, "type %d, kind %d, engine %s, %zu: %g, not %g", type,
                                  kind, engine, i, got[i], want);
                }
            }
}

/* Engines differ from each other; only the one marked as nondeterministic differs from itself. */
Test(cudasim_dnn, orders_of_sums)
{
    layer l;
    std::vector<std::vector<double>> all;
    l.kind = 2;
    l.n = 6;
    l.make();
    for (const char *engine : { "0", "7", "8", "1" }) {
        const descriptor p = l.plan(engine);
        OK(cudnnBackendFinalize(p));
        const std::vector<double> once = l.run(p);
        bool differs = false;
        for (int i = 0; i < 4; i++) differs = differs || l.run(p) != once;
        cr_expect_eq(differs, *engine == '1', "engine %s", engine);
        for (const std::vector<double> &other : all) cr_expect(other != once, "engine %s", engine);
        all.push_back(once);
    }
}

/* Twenty-four answers and those that always work; an unsuitable engine is marked in its notes. */
Test(cudasim_dnn, choices)
{
    layer l;
    l.make();
    for (const cudnnBackendHeurMode_t mode : { CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK }) {
        const descriptor heuristics = create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
        std::vector<descriptor> configs;
        int64_t all = 0, some = 0, n = 0;
        set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, &l.graph);
        set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
        GIVES(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
                                       &all, nullptr),
              CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
        OK(cudnnBackendFinalize(heuristics));
        OK(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &all,
                                    nullptr));
        cr_expect_eq(all, mode == CUDNN_HEUR_MODE_A ? 24 : 2);
        for (int i = 0; i < 2; i++) configs.push_back(create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
        OK(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 2, &some,
                                    configs.data()));
        cr_expect_eq(some, 2);
        cudnnBackendNumericalNote_t note;
        descriptor engine = create(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
        OK(cudnnBackendGetAttribute(configs[0], CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                    &engine));
        OK(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 1, &n, &note));
        cr_expect(n == 1 && note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
        GIVES(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 2,
                                       &some, configs.data()),
              CUDNN_STATUS_BAD_PARAM); /* they have been filled */
    }
    GIVES(cudnnBackendFinalize(l.plan("3")), CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
    const descriptor large = l.plan("2");
    int64_t bytes = 0, n;
    OK(cudnnBackendFinalize(large));
    OK(cudnnBackendGetAttribute(large, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &bytes));
    cr_expect_gt(bytes, 256 << 20);
}

/* ---- checks ---- */

Test(cudasim_dnn, attributes)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const int64_t number = 1;
    layer l;
    const descriptor d = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    GIVES(cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_INT64, 1, &number),
          CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    GIVES(cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 2, &type),
          CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND);
    GIVES(cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, nullptr),
          CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    GIVES(cudnnBackendSetAttribute(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type),
          CUDNN_STATUS_BAD_PARAM);
    GIVES(cudnnBackendFinalize(d), CUDNN_STATUS_BAD_PARAM); /* half of it is missing */
    const descriptor conv = l.convolution(), op = create(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
    GIVES(cudnnBackendSetAttribute(conv, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &number),
          CUDNN_STATUS_NOT_INITIALIZED); /* it is finalized */
    GIVES(cudnnBackendSetAttribute(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                   &d),
          CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
    GIVES(cudnnBackendSetAttribute(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                   &conv),
          CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
    OK(cudnnBackendDestroyDescriptor(d));
    GIVES(cudnnBackendDestroyDescriptor(d), CUDNN_STATUS_BAD_PARAM);
    GIVES(cudnnBackendSetAttribute(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                   &d),
          CUDNN_STATUS_BAD_PARAM);
    descriptor other;
    GIVES(cudnnBackendCreateDescriptor(CUDNN_BACKEND_MATMUL_DESCRIPTOR, &other), CUDNN_STATUS_NOT_SUPPORTED);
}

static cudnnStatus_t finished(layer l, int64_t y_rows, int64_t w_channels, int64_t y_id, cudnnDataType_t y_type)
{
    const descriptor x = l.image(1, l.type, l.n, l.c, l.h, l.w);
    const descriptor w = l.tensor(2, l.type, { l.oc, w_channels, l.kh, l.kw }, { w_channels * 6, 6, 2, 1 });
    return cudnnBackendFinalize(l.operation(x, w, l.image(y_id, y_type, l.n, l.oc, y_rows, l.extent(1))));
}

Test(cudasim_dnn, operands_agree)
{
    layer l;
    GIVES(finished(l, l.extent(0), 3, 3, l.type), CUDNN_STATUS_SUCCESS);
    GIVES(finished(l, l.extent(0) + 1, 3, 3, l.type), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    GIVES(finished(l, l.extent(0), 4, 3, l.type), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    GIVES(finished(l, l.extent(0), 3, 1, l.type), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
    GIVES(finished(l, l.extent(0), 3, 3, CUDNN_DATA_HALF), CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
    l.precision = CUDNN_DATA_DOUBLE;
    GIVES(finished(l, l.extent(0), 3, 3, l.type), CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
}

static cudnnStatus_t finished_image(int64_t n, int64_t pixel)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const int64_t dim[] = { n, 3, 4, 5 }, stride[] = { 20 * pixel, 1, 5 * pixel, pixel }, id = 1, alignment = 16;
    const descriptor d = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
    set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dim, 4);
    set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, stride, 4);
    set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id);
    set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment);
    return cudnnBackendFinalize(d);
}

Test(cudasim_dnn, counts_that_an_int32_does_not_hold_are_reported)
{
    cudasim_set_fatal(false);
    GIVES(finished_image(2, 3), CUDNN_STATUS_SUCCESS);
    GIVES(finished_image(2, 1 << 27), CUDNN_STATUS_BAD_PARAM); /* a stride */
    cr_assert(reported("2684354560: more than 2147483647"));
    GIVES(finished_image(1 << 26, 3), CUDNN_STATUS_BAD_PARAM); /* elements */
    cr_assert(reported("4026531840: more than 2147483647"));
    cudasim_clear_report();
    cudasim_set_max_count(120);
    GIVES(finished_image(2, 3), CUDNN_STATUS_SUCCESS);
    cudasim_set_max_count(119);
    GIVES(finished_image(2, 3), CUDNN_STATUS_BAD_PARAM);
    cr_assert(reported("120: more than 119"));
}

Test(cudasim_dnn, operands_of_a_run)
{
    layer l;
    l.make();
    cudasim_set_fatal(false);
    const descriptor p = l.plan("7");
    GIVES(cudnnBackendExecute(l.handle, p, l.pack({ 1, 2, 3 })), CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
    OK(cudnnBackendFinalize(p));
    GIVES(cudnnBackendExecute(l.handle, p, l.pack({ 1, 2, 3 })), CUDNN_STATUS_BAD_PARAM_NULL_POINTER); /* workspace */
    OK(cudaMalloc(&l.workspace, 64));
    GIVES(cudnnBackendExecute(l.handle, p, l.pack({ 1, 2, 3 })), CUDNN_STATUS_BAD_PARAM);
    cr_expect(reported("the workspace is too small"));
    OK(cudaMalloc(&l.workspace, 1 << 20));
    GIVES(cudnnBackendExecute(l.handle, p, l.pack({ 1, 2 })), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    OK(cudnnBackendExecute(l.handle, p, l.pack({ 1, 2, 3 })));
    void *const x = l.at[1], *const y = l.at[3];
    l.at[1] = (char *)x + 4;
    GIVES(cudnnBackendExecute(l.handle, p, l.pack({ 1, 2, 3 })), CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
    l.at[1] = (char *)x + 16;
    GIVES(cudnnBackendExecute(l.handle, p, l.pack({ 1, 2, 3 })), CUDNN_STATUS_BAD_PARAM);
    cr_expect(reported("operand 1 is not in one device allocation"));
    l.at[1] = x, l.at[3] = x;
    GIVES(cudnnBackendExecute(l.handle, p, l.pack({ 1, 2, 3 })), CUDNN_STATUS_BAD_PARAM);
    cr_expect(reported("the result overlaps operand 1"));
    l.at[3] = y, l.workspace = x;
    GIVES(cudnnBackendExecute(l.handle, p, l.pack({ 1, 2, 3 })), CUDNN_STATUS_BAD_PARAM);
    cr_expect(reported("operand 1 overlaps the workspace"));
    OK(cudaStreamDestroy(l.stream));
    GIVES(cudnnBackendExecute(l.handle, p, l.pack({ 1, 2, 3 })), CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH);
}

/* A plan loads code, which a capture does not allow; a run is captured, and executed when the graph is. */
Test(cudasim_dnn, in_a_capture)
{
    layer l;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    cudnnHandle_t other;
    l.make();
    const descriptor p = l.plan("8"), late = l.plan("0");
    OK(cudnnBackendFinalize(p));
    const std::vector<double> want = l.run(p);
    OK(cudaMemset(l.at[3], 0, l.count(3) * 4));
    OK(cudaStreamBeginCapture(l.stream, cudaStreamCaptureModeThreadLocal));
    OK(cudnnBackendExecute(l.handle, p, l.pack({ 1, 2, 3 })));
    OK(cudaStreamEndCapture(l.stream, &graph));
    cr_expect_eq(from_device((float *)l.at[3], 1)[0], 0);
    OK(cudaGraphInstantiate(&ready, graph, 0));
    OK(cudaGraphLaunch(ready, l.stream));
    OK(cudaStreamSynchronize(l.stream));
    cr_expect_eq((double)from_device((float *)l.at[3], 1)[0], want[0]);
    OK(cudaStreamBeginCapture(l.stream, cudaStreamCaptureModeThreadLocal));
    GIVES(cudnnBackendFinalize(late), CUDNN_STATUS_EXECUTION_FAILED_CUDART);
    GIVES(cudnnCreate(&other), CUDNN_STATUS_NOT_INITIALIZED);
    GIVES(cudaStreamEndCapture(l.stream, &graph), cudaErrorStreamCaptureInvalidated);
}

/* Work is executed only when a call waits for it. */
Test(cudasim_dnn, runs_are_queued)
{
    layer l;
    cudasim_set_lazy(true);
    l.make();
    const descriptor p = l.plan("8");
    OK(cudnnBackendFinalize(p));
    OK(cudnnBackendExecute(l.handle, p, l.pack({ 1, 2, 3 })));
    cr_expect_eq(cudasim_live().queued, 1);
    OK(cudaStreamSynchronize(l.stream));
    cr_expect_eq(cudasim_live().queued, 0);
}

Test(cudasim_dnn, what_is_alive_is_counted)
{
    const size_t before = cudasim_live_allocations();
    cudnnHandle_t handle;
    OK(cudnnCreate(&handle));
    const descriptor d = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    cr_expect_eq(cudasim_live().dnn_objects, 2);
    OK(cudnnBackendDestroyDescriptor(d));
    OK(cudnnDestroy(handle));
    GIVES(cudnnDestroy(handle), CUDNN_STATUS_BAD_PARAM);
    cr_expect_eq(cudasim_live_allocations(), before);
}
