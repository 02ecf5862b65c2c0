/* Tests of capture and graphs. */
#include "test.h"

#include <pthread.h>

TestSuite(cudasim_graph, .fini = cudasim_restart); /* frees what a test leaves allocated */

__global__ static void add_kernel(int *x, int n, int v)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += v;
}

__global__ static void join_kernel(const int *a, const int *b, int *sum) { *sum = *sum + *a + 10 * *b; }

static cudaStream_t stream;
static int *x;
static cudaGraph_t graph;
static cudaGraphExec_t executable;

static void begin(cudaStreamCaptureMode mode)
{
    if (!stream) {
        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        x = device_array(std::vector<int>(4));
    }
    OK(cudaStreamBeginCapture(stream, mode));
}

static void end_spoiled(void)
{
    cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(stream, &status));
    cr_assert_eq(status, cudaStreamCaptureStatusInvalidated);
    GIVES(cudaMemsetAsync(x, 0, 4, stream), cudaErrorStreamCaptureInvalidated);
    GIVES(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    cr_assert_null(graph);
    OK(cudaStreamIsCapturing(stream, &status));
    cr_assert_eq(status, cudaStreamCaptureStatusNone);
    cudaGetLastError();
}

Test(cudasim_graph, a_captured_graph_runs_at_each_launch_with_its_arguments)
{
    int v = 3;
    size_t nodes = 0;
    begin(cudaStreamCaptureModeThreadLocal);
    LAUNCH(add_kernel, 1, 4, 0, stream, x, 4, v);
    v = 100;
    LAUNCH(add_kernel, 1, 4, 0, stream, x, 2, v);
    OK(cudaStreamEndCapture(stream, &graph));
    cr_assert_eq(from_device(x, 4)[0], 0, "a capture runs nothing");
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    cr_assert_eq(nodes, 2);
    OK(cudaGraphInstantiate(&executable, graph, 0));
    OK(cudaGraphDestroy(graph));
    cudasim_set_lazy(true);
    for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(executable, stream));
    cr_assert_eq(cudasim_live().queued, 3);
    OK(cudaGraphExecDestroy(executable)); /* the launched work still runs */
    OK(cudaStreamSynchronize(stream));
    cr_assert_eq(from_device(x, 4)[0], 309);
    cr_assert_eq(from_device(x, 4)[3], 9);
    OK(cudaFree(x));
    OK(cudaStreamDestroy(stream));
    cr_assert_eq(cudasim_live_allocations(), 0);
}

/* One stream forks into two and joins: sum += 3 + 10 * 4, once, in every allowed order. */
static void capture_fork(bool join)
{
    cudaStream_t side;
    cudaEvent_t fork, joined;
    int *const a = x, *const b = x + 1, *const sum = x + 2;
    OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    OK(cudaMemsetAsync(x, 0, 8, stream));
    OK(cudaEventRecord(fork, stream));
    OK(cudaStreamWaitEvent(side, fork, 0));
    LAUNCH(add_kernel, 1, 1, 0, side, a, 1, 3);
    LAUNCH(add_kernel, 1, 1, 0, stream, b, 1, 4);
    OK(cudaEventRecord(joined, side));
    GIVES(cudaEventQuery(joined), cudaErrorCapturedEvent);
    if (join) OK(cudaStreamWaitEvent(stream, joined, 0));
    LAUNCH(join_kernel, 1, 1, 0, stream, a, b, sum);
}

Test(cudasim_graph, forks_and_joins)
{
    begin(cudaStreamCaptureModeGlobal);
    capture_fork(true);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 20; i++) {
        OK(cudaGraphLaunch(executable, stream));
        OK(cudaMemsetAsync(x + 3, 0, 4, stream));
        OK(cudaStreamSynchronize(stream));
        cr_assert_eq(from_device(x, 4)[2], 43);
        OK(cudaMemset(x, 0, 16));
    }
}

Test(cudasim_graph, streams_that_are_not_joined_are_refused)
{
    begin(cudaStreamCaptureModeGlobal);
    capture_fork(false);
    GIVES(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
    cr_assert_null(graph);
    cr_assert_eq(cudasim_live().graphs, 0);
}

Test(cudasim_graph, unsafe_calls_spoil_a_capture)
{
    void *p = nullptr;
    begin(cudaStreamCaptureModeThreadLocal);
    GIVES(cudaMalloc(&p, 16), cudaErrorStreamCaptureUnsupported);
    end_spoiled();
    begin(cudaStreamCaptureModeGlobal);
    GIVES(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    end_spoiled();
    begin(cudaStreamCaptureModeGlobal);
    GIVES(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
    end_spoiled();
    begin(cudaStreamCaptureModeGlobal);
    GIVES(cudaStreamQuery(stream), cudaErrorStreamCaptureUnsupported);
    end_spoiled();
    begin(cudaStreamCaptureModeGlobal);
    int h = 0;
    GIVES(cudaMemcpy(&h, x, 4, cudaMemcpyDeviceToHost), cudaErrorStreamCaptureUnsupported);
    end_spoiled();
    begin(cudaStreamCaptureModeRelaxed);
    OK(cudaMalloc(&p, 16));
    OK(cudaStreamEndCapture(stream, &graph));
}

Test(cudasim_graph, the_legacy_stream_spoils_captures_of_blocking_streams)
{
    OK(cudaStreamCreate(&stream));
    x = device_array(std::vector<int>(4));
    begin(cudaStreamCaptureModeRelaxed);
    LAUNCH(add_kernel, 1, 1, 0, 0, x, 1, 1);
    GIVES(cudaGetLastError(), cudaErrorStreamCaptureImplicit);
    end_spoiled();
    OK(cudaStreamDestroy(stream));
    stream = nullptr;
    begin(cudaStreamCaptureModeRelaxed); /* a non-blocking stream */
    LAUNCH(add_kernel, 1, 1, 0, 0, x, 1, 1);
    OK(cudaGetLastError());
    OK(cudaStreamEndCapture(stream, &graph));
    GIVES(cudaStreamBeginCapture(0, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
}

static void *from_another_thread(void *result)
{
    cudaGraph_t g;
    void *p;
    cudaError_t *e = (cudaError_t *)result;
    e[0] = cudaMalloc(&p, 16);
    e[1] = cudaStreamEndCapture(stream, &g);
    return nullptr;
}

Test(cudasim_graph, other_threads_and_captures)
{
    const cudaStreamCaptureMode modes[] = { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                                            cudaStreamCaptureModeRelaxed };
    const cudaError_t expected[][2] = { { cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureWrongThread },
        { cudaSuccess, cudaErrorStreamCaptureWrongThread }, { cudaSuccess, cudaSuccess } };
    for (int i = 0; i < 3; i++) {
        pthread_t t;
        cudaError_t e[2];
        begin(modes[i]);
        pthread_create(&t, nullptr, from_another_thread, e);
        pthread_join(t, nullptr);
        GIVES(e[0], expected[i][0]);
        GIVES(e[1], expected[i][1]);
        if (i == 0) end_spoiled();
        else if (i == 1) OK(cudaStreamEndCapture(stream, &graph));
    }
}

Test(cudasim_graph, calls_out_of_place)
{
    cudaEvent_t e;
    begin(cudaStreamCaptureModeGlobal);
    GIVES(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
    OK(cudaEventCreate(&e));
    OK(cudaEventRecord(e, cudaStreamPerThread)); /* outside */
    GIVES(cudaStreamWaitEvent(stream, e, 0), cudaErrorStreamCaptureIsolation);
    end_spoiled();
    GIVES(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
    GIVES(cudaGraphLaunch(nullptr, stream), cudaErrorInvalidValue);
    GIVES(cudaGraphDestroy(nullptr), cudaErrorInvalidValue);
}

Test(cudasim_graph, a_failing_node_ends_the_context)
{
    begin(cudaStreamCaptureModeGlobal);
    for (int i = 0; i < 3; i++) LAUNCH(add_kernel, 1, 4, 0, stream, x, 4, 1);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    cudasim_fail_kernel(2, cudaErrorIllegalAddress);
    cudaGraphLaunch(executable, stream);
    GIVES(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    GIVES(cudaGraphLaunch(executable, stream), cudaErrorIllegalAddress);
}
