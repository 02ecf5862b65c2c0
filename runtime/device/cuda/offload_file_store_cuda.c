/* File copies of a CUDA device: servers with a second stream per lane, whose host functions read and write pieces. */
#include "device/cuda/offload_file_store_cuda.h"

#include "base/alloc.h"
#include "base/round_up.h"
#include "device/cuda/current_device.h"
#include "device/cuda/fallible_cuda_malloc.h"
#include "device/offload_file.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define PIECES 2
#define JOBS 1024

#define TRY(call)                                                   \
    do {                                                            \
        const rw_status try_ = rw_cuda_status(cuda, (call), #call); \
        if (try_) return try_;                                      \
    } while (0)

/* The work of one host function. */
struct job {
    struct rw_cuda_files *files;
    struct rw_file *file;
    char *piece;
    size_t bytes;
    uint64_t at, number;
    bool out;
};

/* A piece of pinned memory. copied: the lane's copy is done; filed: the file's transfer is done. */
struct piece {
    char *memory;
    cudaEvent_t copied, filed;
};

/*
 * Serves one lane. Its jobs are executed in order and stored in a ring; at the end of the ring the stream is waited
 * for.
 */
struct server {
    cudaStream_t stream;
    cudaEvent_t begin;
    struct piece piece[PIECES];
    size_t next_piece, next_job;
    struct job *job;
    uint64_t last; /* number of the last copy; 0: another kind of copy has been queued after it */
};

struct rw_cuda_files {
    struct server server[RW_LANES]; /* of all lanes except compute */
    void *pinned;
    uint64_t queued; /* number of copies, counted from 1 */
    pthread_mutex_t mutex; /* for what follows, and for the jobs' files */
    pthread_cond_t left;
    unsigned inside; /* host functions that are using a file */
    rw_status status; /* of the first copy that failed */
    uint64_t failed;  /* its number */
    bool told;
    char why[RW_CUDA_MESSAGE];
};

/* ---- opening and closing ---- */

static rw_status make_events(struct rw_cuda *cuda, struct server *s)
{
    TRY(cudaEventCreateWithFlags(&s->begin, cudaEventDisableTiming));
    for (int i = 0; i < PIECES; i++) {
        TRY(cudaEventCreateWithFlags(&s->piece[i].copied, cudaEventDisableTiming));
        TRY(cudaEventCreateWithFlags(&s->piece[i].filed, cudaEventDisableTiming));
    }
    return RW_OK;
}

static rw_status make_server(struct rw_cuda *cuda, struct server *s, char *pinned)
{
    s->job = rw_calloc(JOBS, sizeof *s->job);
    if (!s->job) return RW_ERR_MEMORY;
    for (int i = 0; i < PIECES; i++) s->piece[i].memory = pinned + (size_t)i * RW_FILE_CHUNK;
    TRY(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    return make_events(cuda, s);
}

static rw_status make(struct rw_cuda *cuda, struct rw_cuda_files *f)
{
    const size_t lane = PIECES * RW_FILE_CHUNK;
    TRY(rw_cuda_take_host(&f->pinned, (RW_LANES - 1) * lane + RW_FILE_PAGE));
    char *const first = (char *)f->pinned + rw_round_up((uintptr_t)f->pinned, RW_FILE_PAGE) - (uintptr_t)f->pinned;
    rw_status status = RW_OK;
    for (int i = RW_LANE_COMPUTE + 1; !status && i < RW_LANES; i++)
        status = make_server(cuda, &f->server[i], first + (size_t)(i - 1) * lane);
    return status;
}

/* Removes the file from its jobs, and waits for running host functions. After a sticky error, waiting for a stream
   returns at once, although a host function is still running or starts later; it then finds no file. */
static void drop_jobs(struct rw_cuda_files *f, const struct rw_file *file)
{
    pthread_mutex_lock(&f->mutex);
    for (int i = RW_LANE_COMPUTE + 1; i < RW_LANES; i++)
        for (size_t k = 0; k < JOBS && f->server[i].job; k++)
            if (!file || f->server[i].job[k].file == file) f->server[i].job[k].file = NULL;
    while (f->inside) pthread_cond_wait(&f->left, &f->mutex);
    pthread_mutex_unlock(&f->mutex);
}

static void free_server(struct server *s)
{
    for (int i = 0; i < PIECES; i++) {
        if (s->piece[i].copied) cudaEventDestroy(s->piece[i].copied);
        if (s->piece[i].filed) cudaEventDestroy(s->piece[i].filed);
    }
    if (s->begin) cudaEventDestroy(s->begin);
    if (s->stream) cudaStreamDestroy(s->stream);
    rw_free(s->job);
}

/* Frees everything, unless a host function may still start. */
void rw_cuda_files_close(struct rw_cuda *cuda)
{
    struct rw_cuda_files *const f = cuda->files;
    if (!f) return;
    bool waited = true;
    for (int i = 0; i < RW_LANES; i++)
        if (f->server[i].stream) waited &= !cudaStreamSynchronize(f->server[i].stream);
    drop_jobs(f, NULL);
    cuda->files = NULL;
    if (!waited) return; /* a host function that starts later reads its job, so the jobs are not freed */
    for (int i = 0; i < RW_LANES; i++) free_server(&f->server[i]);
    cudaFreeHost(f->pinned);
    pthread_mutex_destroy(&f->mutex);
    pthread_cond_destroy(&f->left);
    rw_free(f);
}

static rw_status start(struct rw_cuda *cuda)
{
    if (cuda->files) return RW_OK;
    struct rw_cuda_files *const f = rw_calloc(1, sizeof *f);
    if (!f) return RW_ERR_MEMORY;
    pthread_mutex_init(&f->mutex, NULL);
    pthread_cond_init(&f->left, NULL);
    cuda->files = f;
    const rw_status status = make(cuda, f);
    if (status) rw_cuda_files_close(cuda);
    return status;
}

static rw_status file_open(void *device, const char *path, uint64_t bytes, void **ret_store)
{
    struct rw_cuda *const cuda = device;
    RW_ON_DEVICE(cuda);
    struct rw_file *f;
    rw_status status = start(cuda);
    if (!status) status = rw_file_open(path, bytes, &f, cuda->message, sizeof cuda->message);
    if (!status) *ret_store = f;
    return status;
}

static rw_status wait_for_servers(struct rw_cuda *cuda)
{
    for (int i = RW_LANE_COMPUTE + 1; i < RW_LANES; i++)
        TRY(cudaStreamSynchronize(cuda->files->server[i].stream));
    return RW_OK;
}

static void file_close(void *device, void *store)
{
    struct rw_cuda *const cuda = device;
    RW_ON_DEVICE(cuda);
    wait_for_servers(cuda);
    drop_jobs(cuda->files, store);
    rw_file_close(store);
}

static bool file_is_closed(const void *store)
{
    return rw_file_is_closed(store);
}

/* ---- copies, in a thread of the driver ---- */

static void note(struct rw_cuda_files *f, uint64_t number, rw_status status, const char *why)
{
    pthread_mutex_lock(&f->mutex);
    if (!f->status || number < f->failed) {
        f->status = status;
        f->failed = number;
        f->told = false;
        snprintf(f->why, sizeof f->why, "%s", why);
    }
    pthread_mutex_unlock(&f->mutex);
}

/* False if an earlier copy failed, or the file was closed meanwhile. */
static bool enter(const struct job *j)
{
    struct rw_cuda_files *const f = j->files;
    pthread_mutex_lock(&f->mutex);
    const bool continues = !f->status && j->file;
    f->inside += continues;
    pthread_mutex_unlock(&f->mutex);
    return continues;
}

static void leave(struct rw_cuda_files *f)
{
    pthread_mutex_lock(&f->mutex);
    f->inside--;
    pthread_cond_broadcast(&f->left);
    pthread_mutex_unlock(&f->mutex);
}

/* Transfers whole pages: the slot has them. */
static rw_status move_piece(const struct job *j, char *why, size_t size)
{
    const size_t whole = rw_round_up(j->bytes, RW_FILE_PAGE);
    if (j->out) memset(j->piece + j->bytes, 0, whole - j->bytes);
    if (j->out) rw_file_note(j->file, j->piece, j->bytes, j->at);
    rw_status status = rw_file_check_length(j->file, why, size);
    if (!status) status = rw_file_transfer(j->file, j->piece, whole, j->at, j->out, why, size);
    return status || j->out ? status : rw_file_check(j->file, j->piece, j->bytes, j->at, why, size);
}

/* The host function of a job. */
static void CUDART_CB carry_out(void *argument)
{
    const struct job *const j = argument;
    char why[RW_CUDA_MESSAGE] = "";
    if (!enter(j)) return;
    const rw_status status = move_piece(j, why, sizeof why);
    if (status) note(j->files, j->number, status, why);
    leave(j->files);
}

/* ---- queueing ---- */

/* Queues a job after everything that its stream waits for. */
static rw_status queue_job(struct rw_cuda *cuda, struct server *s, struct job job)
{
    if (s->next_job == JOBS) {
        TRY(cudaStreamSynchronize(s->stream));
        s->next_job = 0;
    }
    s->job[s->next_job] = job;
    TRY(cudaLaunchHostFunc(s->stream, carry_out, &s->job[s->next_job]));
    s->next_job++;
    return RW_OK;
}

/* Copies a piece to pinned memory on the lane, then writes it on the second stream. */
static rw_status put_piece(struct rw_cuda *cuda, cudaStream_t lane, struct server *s, struct job job, const char *from)
{
    const struct piece *const p = &s->piece[s->next_piece++ % PIECES];
    job.piece = p->memory;
    TRY(cudaStreamWaitEvent(lane, p->filed, 0));
    TRY(cudaMemcpyAsync(p->memory, from, job.bytes, cudaMemcpyDeviceToHost, lane));
    TRY(cudaEventRecord(p->copied, lane));
    TRY(cudaStreamWaitEvent(s->stream, p->copied, 0));
    const rw_status status = queue_job(cuda, s, job);
    if (status) return status;
    TRY(cudaEventRecord(p->filed, s->stream));
    return RW_OK;
}

/* Reads a piece on the second stream, then copies it to the device on the lane. */
static rw_status get_piece(struct rw_cuda *cuda, cudaStream_t lane, struct server *s, struct job job, char *to)
{
    const struct piece *const p = &s->piece[s->next_piece++ % PIECES];
    job.piece = p->memory;
    TRY(cudaStreamWaitEvent(s->stream, p->copied, 0));
    const rw_status status = queue_job(cuda, s, job);
    if (status) return status;
    TRY(cudaEventRecord(p->filed, s->stream));
    TRY(cudaStreamWaitEvent(lane, p->filed, 0));
    TRY(cudaMemcpyAsync(to, p->memory, job.bytes, cudaMemcpyHostToDevice, lane));
    TRY(cudaEventRecord(p->copied, lane));
    return RW_OK;
}

/* Makes the second stream wait for the lane's work so far. */
static rw_status begin(struct rw_cuda *cuda, cudaStream_t lane, const struct server *s)
{
    TRY(cudaEventRecord(s->begin, lane));
    TRY(cudaStreamWaitEvent(s->stream, s->begin, 0));
    return RW_OK;
}

/* Queues a copy in pieces. A lane that copies out waits for its last write. */
static rw_status copy(struct rw_cuda *cuda, int lane, struct rw_file *file, uint64_t at, char *memory, uint64_t bytes,
                      bool out)
{
    struct rw_cuda_files *const f = cuda->files;
    struct server *const s = &f->server[lane];
    if (rw_file_is_closed(file)) return rw_file_closed(file, cuda->message, sizeof cuda->message);
    struct job job = { .files = f, .file = file, .number = ++f->queued, .out = out };
    rw_status status = begin(cuda, cuda->lane[lane], s);
    for (uint64_t from = 0; !status && from < bytes; from += job.bytes) {
        job.at = at + from;
        job.bytes = bytes - from < RW_FILE_CHUNK ? (size_t)(bytes - from) : RW_FILE_CHUNK;
        status = out ? put_piece(cuda, cuda->lane[lane], s, job, memory + from)
                     : get_piece(cuda, cuda->lane[lane], s, job, memory + from);
    }
    s->last = job.number;
    if (status || !out || !bytes) return status;
    TRY(cudaStreamWaitEvent(cuda->lane[lane], s->piece[(s->next_piece - 1) % PIECES].filed, 0));
    return RW_OK;
}

static rw_status file_put(void *device, int lane, void *store, uint64_t at, const void *from, uint64_t bytes)
{
    RW_ON_DEVICE(device);
    return copy(device, lane, store, at, (char *)(uintptr_t)from, bytes, true);
}

static rw_status file_get(void *device, int lane, void *to, const void *store, uint64_t at, uint64_t bytes)
{
    RW_ON_DEVICE(device);
    return copy(device, lane, (struct rw_file *)(uintptr_t)store, at, to, bytes, false);
}

/* The host's threads have no other work meanwhile, so there is no loss. */
static rw_status file_measure(void *device, const char *path, int threads, struct rw_store_rate *ret)
{
    struct rw_cuda *const cuda = device;
    struct rw_file *f;
    rw_status status = rw_file_open(path, RW_FILE_TIMED, &f, cuda->message, sizeof cuda->message);
    if (status) return status;
    char *const memory = rw_malloc_aligned(RW_FILE_CHUNK, RW_FILE_PAGE);
    if (memory) memset(memory, 1, RW_FILE_CHUNK);
    status = memory ? rw_file_time(f, memory, ret, cuda->message, sizeof cuda->message) : RW_ERR_MEMORY;
    if (!status) ret->loss = 0;
    rw_free_aligned(memory);
    rw_file_close(f);
    return status;
}

/* ---- waiting ---- */

uint64_t rw_cuda_files_last(const struct rw_cuda *cuda, int lane)
{
    return cuda->files ? cuda->files->server[lane].last : 0;
}

void rw_cuda_files_passed(struct rw_cuda *cuda, int lane)
{
    if (cuda->files) cuda->files->server[lane].last = 0;
}

/* The mutex is held. */
static rw_status tell(struct rw_cuda *cuda, struct rw_cuda_files *f)
{
    if (f->status) f->told = true;
    return f->status ? rw_cuda_fail(cuda, f->status, "%s", f->why) : RW_OK;
}

rw_status rw_cuda_files_await(struct rw_cuda *cuda, cudaEvent_t event, uint64_t number)
{
    struct rw_cuda_files *const f = cuda->files;
    TRY(cudaEventSynchronize(event));
    pthread_mutex_lock(&f->mutex);
    const rw_status status = f->status && f->failed <= number ? tell(cuda, f) : RW_OK;
    pthread_mutex_unlock(&f->mutex);
    return status;
}

rw_status rw_cuda_files_finish(struct rw_cuda *cuda)
{
    struct rw_cuda_files *const f = cuda->files;
    if (!f) return RW_OK;
    const rw_status waited = wait_for_servers(cuda);
    pthread_mutex_lock(&f->mutex);
    const rw_status status = f->told ? RW_OK : tell(cuda, f);
    f->status = RW_OK;
    f->told = false;
    pthread_mutex_unlock(&f->mutex);
    return waited ? waited : status;
}

const struct rw_store_fns rw_store_cuda_file = {
    .name = "file", .in_file = true, .open = file_open, .close = file_close, .is_closed = file_is_closed,
    .put = file_put, .get = file_get, .measure = file_measure
};
