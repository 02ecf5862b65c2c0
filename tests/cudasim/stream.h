/* Streams, events, captures and graphs, shared by stream.cc and graph.cc. */
#ifndef CUDASIM_STREAM_H
#define CUDASIM_STREAM_H

#include "runtime.h"

#include <set>
#include <vector>

struct CUgraphNode_st {
    cudaGraphNodeType type;
    std::function<cudaError_t()> run;
    std::vector<size_t> after; /* indexes of nodes in the graph */
};

struct CUgraph_st {
    std::vector<CUgraphNode_st *> nodes;
};

struct CUgraphExec_st {
    std::vector<CUgraphNode_st> nodes;
};

namespace cudasim {

struct capture {
    uint64_t id;
    cudaStream_t origin;
    cudaStreamCaptureMode mode;
    pthread_t thread;
    CUgraph_st *graph;
    std::set<cudaStream_t> streams;
    bool spoiled;
};

} // namespace cudasim

struct CUstream_st {
    bool blocking;
    cudasim::work_ptr last;
    std::vector<cudasim::work_ptr> waits; /* for the next piece of work */
    cudasim::capture *capture;
    std::vector<size_t> tips; /* the graph's nodes that the next one follows */
    int device;               /* -1: any, for the default streams */
};

struct CUevent_st {
    unsigned flags;
    cudasim::work_ptr mark;
    uint64_t capture; /* of the capture in which it was recorded, or 0 */
    std::vector<size_t> tips;
    int device;
};

namespace cudasim {

extern std::set<cudaStream_t> streams; /* user's */
extern std::set<cudaEvent_t> events;
extern std::set<capture *> captures;

/* The stream of a handle, or null. */
CUstream_st *stream_of(cudaStream_t handle);
cudaError_t spoil(capture *c, cudaError_t error);
cudaError_t capture_node(CUstream_st *s, cudaGraphNodeType type, std::function<cudaError_t()> run);
cudaError_t capture_wait(CUstream_st *s, cudaEvent_t event);
capture *capture_by_id(uint64_t id);
void end_capture(capture *c);
void free_graph(CUgraph_st *graph);
void free_all_graphs();
void count_graphs(struct cudasim_live *live);

} // namespace cudasim

#endif
