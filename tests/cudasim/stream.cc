/*
 * Streams and events. Work runs when it is queued or, if lazy, when a call waits for it, in any order that the promised
 * dependencies allow: within a stream, by events, and with the legacy stream.
 */
#include "stream.h"

#include <string.h>
#include <time.h>

#include <algorithm>

namespace cudasim {

std::set<cudaStream_t> streams;
std::set<cudaEvent_t> events;
static CUstream_st legacy = { true, nullptr, {}, nullptr, {}, -1 }, per_thread = { true, nullptr, {}, nullptr, {}, -1 };
static std::vector<work_ptr> pending; /* work that is not done, possibly among some that is */

CUstream_st *stream_of(cudaStream_t handle)
{
    if (!handle || handle == cudaStreamLegacy) return &legacy;
    if (handle == cudaStreamPerThread) return &per_thread;
    return streams.count(handle) ? handle : nullptr;
}

bool is_here(cudaStream_t handle)
{
    const CUstream_st *s = stream_of(handle);
    return s && (s->device < 0 || s->device == device_of_thread());
}

bool is_stream(cudaStream_t stream)
{
    return stream_of(stream) != nullptr;
}

bool is_capturing(cudaStream_t stream)
{
    const CUstream_st *s = stream_of(stream);
    return s && s->capture;
}

static double now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

static void run_one(const work_ptr &w)
{
    if (!broken && w->run) {
        const cudaError_t e = w->run();
        if (e) broken = e;
    }
    w->run = nullptr;
    w->before.clear();
    w->finished = now();
    w->done = true;
}

/* Work that must be done first and can be done now; w itself if there is none. */
static work_ptr next_step(work_ptr w)
{
    for (;;) {
        std::vector<work_ptr> open;
        for (const work_ptr &b : w->before)
            if (!b->done) open.push_back(b);
        if (open.empty()) return w;
        w = open[random_below(open.size())];
    }
}

/* Opens device memory once for all of it: that takes longer than most kernels. */
void finish(const work_ptr &w)
{
    if (w->done) return;
    device_access access;
    std::vector<work_ptr> path = { w };
    while (!path.empty()) {
        const work_ptr top = path.back();
        work_ptr open;
        size_t n = 0;
        for (const work_ptr &b : top->before)
            if (!b->done && random_below(++n) == 0) open = b;
        if (open) {
            path.push_back(open);
            continue;
        }
        if (!top->done) run_one(top);
        path.pop_back();
    }
}

static void forget_done()
{
    pending.erase(std::remove_if(pending.begin(), pending.end(), [](const work_ptr &w) { return w->done; }),
                  pending.end());
}

void finish_all()
{
    if (pending.empty()) return;
    device_access access;
    while (!pending.empty()) {
        const size_t i = random_below(pending.size());
        const work_ptr w = pending[i];
        pending[i] = pending.back();
        pending.pop_back();
        if (!w->done) finish(w);
    }
}

/* The legacy stream waits for all blocking streams, and they for it. */
static void legacy_dependencies(CUstream_st *s, work *w)
{
    if (s == &legacy) {
        for (cudaStream_t o : streams)
            if (o->blocking && o->last && !o->last->done) w->before.push_back(o->last);
        if (per_thread.last && !per_thread.last->done) w->before.push_back(per_thread.last);
    } else if (s->blocking && legacy.last && !legacy.last->done) {
        w->before.push_back(legacy.last);
    }
}

cudaError_t refuse_legacy()
{
    for (capture *c : captures)
        for (cudaStream_t s : c->streams)
            if (s->blocking) return spoil(c, cudaErrorStreamCaptureImplicit);
    return cudaSuccess;
}

cudaError_t enqueue(cudaStream_t handle, cudaGraphNodeType type, std::function<cudaError_t()> run, work_ptr *queued)
{
    CUstream_st *s = stream_of(handle);
    if (queued) *queued = nullptr;
    if (!s) return cudaErrorInvalidResourceHandle;
    if (s->capture) return capture_node(s, type, std::move(run));
    if (s == &legacy)
        if (const cudaError_t e = refuse_legacy()) return e;
    work_ptr w = std::make_shared<work>();
    w->run = std::move(run);
    if (s->last && !s->last->done) w->before.push_back(s->last);
    for (work_ptr &b : s->waits)
        if (!b->done) w->before.push_back(b);
    s->waits.clear();
    legacy_dependencies(s, w.get());
    s->last = w;
    if (queued) *queued = w;
    if (pending.size() > 1024) forget_done();
    pending.push_back(w);
    if (!config.lazy) finish_all();
    return cudaSuccess;
}

void free_all_streams()
{
    finish_all();
    while (!captures.empty()) {
        free_graph((*captures.begin())->graph);
        end_capture(*captures.begin());
    }
    for (cudaStream_t s : streams) delete s;
    for (cudaEvent_t e : events) delete e;
    streams.clear();
    events.clear();
    free_all_graphs();
    legacy.last = per_thread.last = nullptr;
}

void count_streams(struct cudasim_live *live)
{
    forget_done();
    live->streams = streams.size();
    live->events = events.size();
    live->queued = pending.size();
    count_graphs(live);
}

static cudaError_t make_stream(cudaStream_t *stream, unsigned flags)
{
    if (!stream || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    use_device();
    *stream = new CUstream_st{ flags != cudaStreamNonBlocking, nullptr, {}, nullptr, {}, device_of_thread() };
    streams.insert(*stream);
    return cudaSuccess;
}

static cudaError_t make_event(cudaEvent_t *event, unsigned flags)
{
    if (!event || flags > 7) return cudaErrorInvalidValue;
    *event = new CUevent_st{ flags, nullptr, 0, {}, device_of_thread() };
    events.insert(*event);
    return cudaSuccess;
}

/* Simulates elapsed time: a poll finds the work undone once for every piece queued before it. */
static cudaError_t poll(const work_ptr &w)
{
    if (!w || w->done) return broken;
    run_one(next_step(w));
    return cudaErrorNotReady;
}

static cudaError_t record(cudaEvent_t event, cudaStream_t stream)
{
    CUstream_st *s = stream_of(stream);
    if (!events.count(event) || !s) return cudaErrorInvalidResourceHandle;
    if (s->device >= 0 && s->device != event->device) return cudaErrorInvalidResourceHandle;
    if (s->capture) {
        if (s->capture->spoiled) return cudaErrorStreamCaptureInvalidated;
        event->capture = s->capture->id;
        event->tips = s->tips;
        event->mark = nullptr;
        return cudaSuccess;
    }
    event->capture = 0;
    return enqueue(stream, cudaGraphNodeTypeEmpty, nullptr, &event->mark);
}

static cudaError_t elapsed(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    if (!ms) return cudaErrorInvalidValue;
    if (!events.count(start) || !events.count(end)) return cudaErrorInvalidResourceHandle;
    if ((start->flags | end->flags) & cudaEventDisableTiming) return cudaErrorInvalidResourceHandle;
    if (start->capture || end->capture) return cudaErrorCapturedEvent;
    if (!start->mark || !end->mark) return cudaErrorInvalidResourceHandle;
    if (!start->mark->done || !end->mark->done) return cudaErrorNotReady;
    *ms = static_cast<float>((end->mark->finished - start->mark->finished) * 1e3);
    return cudaSuccess;
}

} // namespace cudasim

using namespace cudasim;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    CUDASIM_ENTER;
    return here.give(make_stream(stream, cudaStreamDefault));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    CUDASIM_ENTER;
    return here.give(make_stream(stream, flags));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    CUDASIM_ENTER;
    return here.give(make_stream(stream, flags));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    CUDASIM_ENTER;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    CUDASIM_ENTER;
    if (!streams.count(stream)) return here.give(cudaErrorInvalidResourceHandle);
    if (stream->capture) {
        spoil(stream->capture, cudaErrorStreamCaptureInvalidated);
        stream->capture->streams.erase(stream);
    }
    streams.erase(stream); /* its remaining work stays pending */
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    CUDASIM_ENTER;
    CUstream_st *s = stream_of(stream);
    if (!s) return here.give(cudaErrorInvalidResourceHandle);
    if (s->capture) return here.give(spoil(s->capture, cudaErrorStreamCaptureUnsupported));
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    if (s->last) finish(s->last);
    forget_done();
    return here.give(broken);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    CUDASIM_ENTER;
    CUstream_st *s = stream_of(stream);
    if (!s) return here.give(cudaErrorInvalidResourceHandle);
    if (s->capture) return here.give(spoil(s->capture, cudaErrorStreamCaptureUnsupported));
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    return here.give(poll(s->last));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    CUDASIM_ENTER;
    CUstream_st *s = stream_of(stream);
    if (!s || !events.count(event)) return here.give(cudaErrorInvalidResourceHandle);
    if (event->capture || s->capture) return here.give(capture_wait(s, event));
    if (event->mark && !event->mark->done) s->waits.push_back(event->mark);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data)
{
    CUDASIM_ENTER;
    if (!fn) return here.give(cudaErrorInvalidValue);
    return here.give(enqueue(stream, cudaGraphNodeTypeHost, [fn, data] {
        host_turn turn;
        fn(data);
        return cudaSuccess;
    }));
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    CUDASIM_ENTER;
    return here.give(make_event(event, cudaEventDefault));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    CUDASIM_ENTER;
    return here.give(make_event(event, flags));
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    CUDASIM_ENTER;
    if (!events.erase(event)) return here.give(cudaErrorInvalidResourceHandle);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    CUDASIM_ENTER;
    return here.give(record(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned)
{
    CUDASIM_ENTER;
    return here.give(record(event, stream));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    CUDASIM_ENTER;
    if (!events.count(event)) return here.give(cudaErrorInvalidResourceHandle);
    if (event->capture) return here.give(cudaErrorCapturedEvent);
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    if (event->mark) finish(event->mark);
    return here.give(broken);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    CUDASIM_ENTER;
    if (!events.count(event)) return here.give(cudaErrorInvalidResourceHandle);
    if (event->capture) return here.give(cudaErrorCapturedEvent);
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    return here.give(poll(event->mark));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    CUDASIM_ENTER;
    return here.give(elapsed(ms, start, end));
}

cudaError_t cudaDeviceSynchronize(void)
{
    CUDASIM_ENTER;
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    finish_all();
    return here.give(broken);
}

} // extern "C"
