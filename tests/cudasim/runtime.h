/*
 * The runtime's state: errors and faults, memory, streams and captures. One lock guards all of it; class entry takes it
 * at the start of every call, and a running kernel holds it.
 */
#ifndef CUDASIM_RUNTIME_INTERNAL_H
#define CUDASIM_RUNTIME_INTERNAL_H

#include "internal.h"

#include <pthread.h>

#include <memory>
#include <string>
#include <vector>

namespace cudasim {

struct settings {
    uint64_t seed = 1;
    bool lazy = false, strict = false, driver = true;
    int devices = 1, multiprocessors = 132, major = 9, minor = 0;
    size_t memory = size_t(2) << 30;
    int cudnn = 91900;       /* 0: not installed */
    std::string dnn_engines; /* ids with commas between; empty: all */
    uint64_t max_count = INT32_MAX; /* of a number that cuBLASLt or cuDNN is given, and of elements */
};
extern settings config;

/* The error that ended the context; every call fails with it. */
extern cudaError_t broken;

class entry {
public:
    explicit entry(const char *function);
    ~entry();
    cudaError_t refused() const { return refusal; }
    bool is_planted() const { return from_test; } /* refused() is the code that a test planted */
    /* Stores an error for cudaGetLastError() and returns it. */
    cudaError_t give(cudaError_t error);

private:
    cudaError_t refusal;
    bool from_test;
};

/* Counts the call and returns the error planted for it, or cudaSuccess. */
cudaError_t call_fault(const char *function);
cudaError_t kernel_fault();
int device_of_thread();
void use_device(); /* creates a context on it */
void set_last_error(cudaError_t error);

/* The first statement of a runtime call. */
#define CUDASIM_ENTER                                   \
    cudasim::entry here(__func__);                      \
    if (here.refused()) return here.give(here.refused())

/* Device memory may be accessed during the lifetime of one of these. */
class device_access {
public:
    device_access();
    ~device_access();
};

/* The host runs in between: access is not allowed, whatever other objects exist. */
class host_turn {
public:
    host_turn();
    ~host_turn();

private:
    const int held;
};

struct allocation {
    size_t size;
    uint64_t serial;
    int device;
};
/* Whether one live allocation contains the whole range. */
bool is_device(const void *ptr, size_t size);
/* Its address and size, or null. */
void *allocation_of(const void *ptr, size_t size, size_t *ret_size);
/* The address and size of each. */
std::vector<std::pair<void *, size_t>> live_allocations();
bool is_in_device_region(const void *ptr);
bool is_pinned(const void *ptr, size_t size);
void free_all_memory();
/* Reports faults in device memory with a backtrace. */
void watch_faults();

/* A piece of work in a stream. */
struct work {
    std::function<cudaError_t()> run;
    std::vector<std::shared_ptr<work>> before;
    bool done = false;
    double finished = 0; /* seconds */
};
using work_ptr = std::shared_ptr<work>;

/*
 * Queues the work, or adds it to the capture of the stream. If `queued` is not null it receives the work, null if
 * captured. Runs it at once unless lazy.
 */
cudaError_t enqueue(cudaStream_t stream, cudaGraphNodeType type, std::function<cudaError_t()> run,
                    work_ptr *queued = nullptr);
void finish(const work_ptr &w);
void finish_all();
bool is_capturing(cudaStream_t stream);
/* Refuses a call that is not allowed during a capture, and invalidates those captures. */
cudaError_t refuse_unsafe();
cudaError_t refuse_legacy();
bool is_stream(cudaStream_t stream);
/* Whether a kernel or a graph can be launched there: the stream belongs to the calling thread's device. */
bool is_here(cudaStream_t stream);
void free_all_streams();
void free_all_blas();
void free_all_dnn();
void count_streams(struct cudasim_live *live);
void count_memory(struct cudasim_live *live);
void count_blas(struct cudasim_live *live);
void count_dnn(struct cudasim_live *live);
void print_allocations(FILE *file);

} // namespace cudasim

#endif
