/*
 * The runtime's state: errors and faults, memory, streams and captures. One lock guards all of it; class entry takes it
 * at the door of every call and a running kernel keeps it.
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
};
extern settings config;

/* What ends the context; every call fails with it. */
extern cudaError_t broken;

class entry {
public:
    explicit entry(const char *function);
    ~entry();
    cudaError_t refused() const { return refusal; }
    bool is_planted() const { return from_test; } /* refused() is the code that a test wanted */
    /* Notes an error for cudaGetLastError() and passes it on. */
    cudaError_t give(cudaError_t error);

private:
    cudaError_t refusal;
    bool from_test;
};

/* Counts the call and gives the error planted for it, or cudaSuccess. */
cudaError_t call_fault(const char *function);
cudaError_t kernel_fault();
int device_of_thread();
void use_device(); /* makes a context on it */
void set_last_error(cudaError_t error);

/* The beginning of a runtime call. */
#define CUDASIM_ENTER                                   \
    cudasim::entry here(__func__);                      \
    if (here.refused()) return here.give(here.refused())

/* Device memory may be touched while one of these lives. */
class device_access {
public:
    device_access();
    ~device_access();
};

/* The host runs in between: it may not, whatever else lives. */
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
/* The live allocation that the whole range lies in, or false. */
bool is_device(const void *ptr, size_t size);
/* Its beginning and size, or null. */
void *allocation_of(const void *ptr, size_t size, size_t *ret_size);
/* The beginning and size of each. */
std::vector<std::pair<void *, size_t>> live_allocations();
bool is_in_device_region(const void *ptr);
bool is_pinned(const void *ptr, size_t size);
void free_all_memory();
/* Has faults in device memory told with a backtrace. */
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
 * Queues, or adds to the capture that the stream is in. With `queued` non-null tells the work, null when captured.
 * Runs it at once unless lazy.
 */
cudaError_t enqueue(cudaStream_t stream, cudaGraphNodeType type, std::function<cudaError_t()> run,
                    work_ptr *queued = nullptr);
void finish(const work_ptr &w);
void finish_all();
bool is_capturing(cudaStream_t stream);
/* Refuses a call that must not be made while somebody captures, and spoils those captures. */
cudaError_t refuse_unsafe();
cudaError_t refuse_legacy();
bool is_stream(cudaStream_t stream);
/* A kernel or a graph can be launched there: the stream is of the calling thread's device. */
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
