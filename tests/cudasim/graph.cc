/* Stream capture and graphs: queued work becomes nodes with their arguments; a launch runs them in any allowed
   order. */
#include "stream.h"

#include <algorithm>

namespace cudasim {

std::set<capture *> captures;
static std::set<CUgraph_st *> graphs;
static std::set<CUgraphExec_st *> execs;
static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t spoil(capture *c, cudaError_t error)
{
    c->spoiled = true;
    return error;
}

/* For calls that are unsafe during a capture: which captures forbid them depends on their mode and on the calling
   thread. */
cudaError_t refuse_unsafe()
{
    if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    cudaError_t error = cudaSuccess;
    for (capture *c : captures) {
        const bool own = pthread_equal(c->thread, pthread_self());
        if (c->mode == cudaStreamCaptureModeRelaxed) continue;
        if (!own && (c->mode == cudaStreamCaptureModeThreadLocal || thread_mode == cudaStreamCaptureModeThreadLocal))
            continue;
        error = spoil(c, cudaErrorStreamCaptureUnsupported);
    }
    return error;
}

cudaError_t capture_node(CUstream_st *s, cudaGraphNodeType type, std::function<cudaError_t()> run)
{
    if (s->capture->spoiled) return cudaErrorStreamCaptureInvalidated;
    CUgraph_st *graph = s->capture->graph;
    graph->nodes.push_back(new CUgraphNode_st{ type, std::move(run), s->tips });
    s->tips = { graph->nodes.size() - 1 };
    return cudaSuccess;
}

capture *capture_by_id(uint64_t id)
{
    for (capture *c : captures)
        if (c->id == id) return c;
    return nullptr;
}

/* A wait for an event or a stream that is part of a capture: the stream joins the capture. */
cudaError_t capture_wait(CUstream_st *s, cudaEvent_t event)
{
    if (!event->capture) return spoil(s->capture, cudaErrorStreamCaptureIsolation);
    capture *c = capture_by_id(event->capture);
    if (!c) return cudaErrorStreamCaptureUnmatched;
    if (s->capture && s->capture != c) {
        spoil(s->capture, cudaErrorStreamCaptureMerge);
        return spoil(c, cudaErrorStreamCaptureMerge);
    }
    if (c->spoiled) return cudaErrorStreamCaptureInvalidated;
    if (s == stream_of(cudaStreamLegacy)) return spoil(c, cudaErrorStreamCaptureImplicit);
    s->capture = c;
    c->streams.insert(s);
    for (size_t tip : event->tips)
        if (std::find(s->tips.begin(), s->tips.end(), tip) == s->tips.end()) s->tips.push_back(tip);
    return cudaSuccess;
}

void end_capture(capture *c)
{
    for (cudaStream_t s : c->streams) {
        s->capture = nullptr;
        s->tips.clear();
    }
    captures.erase(c);
    delete c;
}

void free_graph(CUgraph_st *graph)
{
    for (CUgraphNode_st *n : graph->nodes) delete n;
    graphs.erase(graph);
    delete graph;
}

void free_all_graphs()
{
    while (!graphs.empty()) free_graph(*graphs.begin());
    for (CUgraphExec_st *e : execs) delete e;
    execs.clear();
}

void count_graphs(struct cudasim_live *live)
{
    live->graphs = graphs.size();
    live->graph_execs = execs.size();
}

static cudaError_t begin(cudaStream_t handle, cudaStreamCaptureMode mode)
{
    static uint64_t ids;
    CUstream_st *s = stream_of(handle);
    if (!s) return cudaErrorInvalidResourceHandle;
    if (mode > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
    if (s == stream_of(cudaStreamLegacy)) return cudaErrorStreamCaptureUnsupported;
    if (s->capture) return cudaErrorIllegalState;
    s->capture = new capture{ ++ids, s, mode, pthread_self(), new CUgraph_st, { s }, false };
    captures.insert(s->capture);
    s->tips.clear();
    return cudaSuccess;
}

/* Whether every node precedes the next node of the stream. */
static bool all_joined(const CUgraph_st *graph, const std::vector<size_t> &tips)
{
    std::vector<bool> seen(graph->nodes.size());
    std::vector<size_t> open = tips;
    size_t count = 0;
    while (!open.empty()) {
        const size_t n = open.back();
        open.pop_back();
        if (seen[n]) continue;
        seen[n] = true;
        count++;
        open.insert(open.end(), graph->nodes[n]->after.begin(), graph->nodes[n]->after.end());
    }
    return count == graph->nodes.size();
}

/* Ends a capture and returns its graph. */
static cudaError_t end(cudaStream_t handle, cudaGraph_t *graph)
{
    CUstream_st *s = stream_of(handle);
    if (!graph) return cudaErrorInvalidValue;
    *graph = nullptr;
    if (!s) return cudaErrorInvalidResourceHandle;
    capture *c = s->capture;
    if (!c) return cudaErrorIllegalState;
    if (c->origin != s) return spoil(c, cudaErrorStreamCaptureUnmatched);
    if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self()))
        return cudaErrorStreamCaptureWrongThread;
    CUgraph_st *g = c->graph;
    const bool spoiled = c->spoiled, joined = all_joined(g, s->tips);
    end_capture(c);
    if (spoiled || !joined) {
        free_graph(g);
        return spoiled ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined;
    }
    graphs.insert(g);
    *graph = g;
    return cudaSuccess;
}

/* Runs all nodes, each after those on which it depends, otherwise in a random order. */
static cudaError_t run_nodes(const std::vector<CUgraphNode_st> &nodes)
{
    std::vector<size_t> left(nodes.size()), ready;
    std::vector<std::vector<size_t>> then(nodes.size());
    for (size_t i = 0; i < nodes.size(); i++) {
        left[i] = nodes[i].after.size();
        for (size_t a : nodes[i].after) then[a].push_back(i);
        if (!left[i]) ready.push_back(i);
    }
    while (!ready.empty()) {
        const size_t pick = random_below(ready.size()), n = ready[pick];
        ready[pick] = ready.back();
        ready.pop_back();
        const cudaError_t e = nodes[n].run ? nodes[n].run() : cudaSuccess;
        if (e) return e;
        for (size_t t : then[n])
            if (!--left[t]) ready.push_back(t);
    }
    return cudaSuccess;
}

} // namespace cudasim

using namespace cudasim;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    CUDASIM_ENTER;
    return here.give(begin(stream, mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    CUDASIM_ENTER;
    return here.give(end(stream, graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    CUDASIM_ENTER;
    const CUstream_st *s = stream_of(stream);
    if (!s) return here.give(cudaErrorInvalidResourceHandle);
    if (!status) return here.give(cudaErrorInvalidValue);
    if (s == stream_of(cudaStreamLegacy))
        if (const cudaError_t e = refuse_legacy()) return here.give(e);
    *status = !s->capture ? cudaStreamCaptureStatusNone
                          : s->capture->spoiled ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    CUDASIM_ENTER;
    if (!mode || *mode > cudaStreamCaptureModeRelaxed) return here.give(cudaErrorInvalidValue);
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    CUDASIM_ENTER;
    if (!exec || !graphs.count(graph)) return here.give(cudaErrorInvalidValue);
    *exec = new CUgraphExec_st;
    for (const CUgraphNode_st *n : graph->nodes) (*exec)->nodes.push_back(*n);
    execs.insert(*exec);
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    CUDASIM_ENTER;
    return here.give(execs.count(exec) && is_stream(stream) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    CUDASIM_ENTER;
    if (!execs.count(exec)) return here.give(cudaErrorInvalidValue);
    if (!is_here(stream)) return here.give(cudaErrorInvalidResourceHandle);
    /* A copy: the handle may be destroyed before the work runs. */
    auto nodes = std::make_shared<std::vector<CUgraphNode_st>>(exec->nodes);
    return here.give(enqueue(stream, cudaGraphNodeTypeGraph, [nodes] { return run_nodes(*nodes); }));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    CUDASIM_ENTER;
    if (!graphs.count(graph)) return here.give(cudaErrorInvalidValue);
    free_graph(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    CUDASIM_ENTER;
    if (!execs.erase(exec)) return here.give(cudaErrorInvalidValue);
    delete exec;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    CUDASIM_ENTER;
    if (!graphs.count(graph) || !count) return here.give(cudaErrorInvalidValue);
    const size_t all = graph->nodes.size();
    if (nodes)
        for (size_t i = 0; i < *count; i++) nodes[i] = i < all ? graph->nodes[i] : nullptr;
    if (!nodes || *count > all) *count = all;
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type)
{
    CUDASIM_ENTER;
    if (!node || !type) return here.give(cudaErrorInvalidValue);
    *type = node->type;
    return cudaSuccess;
}

} // extern "C"
