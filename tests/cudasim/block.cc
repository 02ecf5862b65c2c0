/*
 * A block's threads. A waiting thread has a fiber of its own; threads that do not wait run one after another on the
 * same fiber.
 *
 * A thread gives up the processor only in a barrier or a warp operation at which other threads have yet to arrive. The
 * seed determines which thread runs next: the order in which threads start and in which a barrier releases them, and
 * whether released threads run before new ones.
 */
#include "cudasim_device.h"
#include "cudasim_warp.h"
#include "fiber.h"
#include "internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <time.h>

#include <string>
#include <vector>

namespace cudasim {

uint3 thread_index, block_index;
dim3 block_dimensions, grid_dimensions;
uint64_t block_serial;

enum class state : uint8_t { fresh, ready, running, at_barrier, at_warp, exited };

struct thread {
    enum state state;
    uint3 index;
    fiber *on;
    /* of a waiting thread */
    const char *file;
    int line;
    enum barrier barrier;
    int predicate;
    warp_op op;
    unsigned mask, operand;
    int width;
    uint64_t value;
    warp_result result;
};

struct warp_lanes {
    unsigned existing, waiting, exited;
};

static struct block_state {
    block_state() : all(*new std::vector<fiber *>), idle(*new std::vector<fiber *>) {}

    const kernel_launch *kernel;
    std::vector<thread> threads;
    std::vector<warp_lanes> warps;
    std::vector<uint32_t> ready; /* a queue in a ring with space for all: from ready_head to ready_end */
    uint32_t ready_head, ready_end, ready_mask;
    scatter order;
    uint32_t count, fresh, live, at_barrier;
    bool fresh_first;
    thread *current;
    fiber host;
    fiber abandoned;
    std::vector<fiber *> &all, &idle; /* exist as long as the process */
    fiber *taken; /* from idle, to be entered next */
    cudaError_t failed;
    int running; /* a kernel: 1 */
    pthread_t host_thread;
} block;

bool in_kernel()
{
    return __atomic_load_n(&block.running, __ATOMIC_ACQUIRE) && pthread_equal(block.host_thread, pthread_self());
}

static void make_current(thread *t)
{
    t->state = state::running;
    block.current = t;
    thread_index = t->index;
}

static uint32_t number_of(const thread *t)
{
    return static_cast<uint32_t>(t - block.threads.data());
}

[[noreturn]] void kernel_fail(cudaError_t code)
{
    block.failed = code;
    fiber_switch(&block.abandoned, &block.host);
    __builtin_unreachable();
}

void trap()
{
    kernel_fail(cudaErrorLaunchFailure);
}

/* ---- errors of the program ---- */

/*
 * The error of the current thread. The block's host side reports it, because heap memory of a thread is leaked when it
 * is abandoned.
 */
static char complaint[1024];
static bool complaint_lists; /* the report lists the waiting threads */

[[noreturn]] static void thread_error(bool list, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(complaint, sizeof complaint, fmt, args);
    va_end(args);
    complaint_lists = list;
    kernel_fail(cudaErrorLaunchFailure);
}

static const char *op_name(warp_op op)
{
    static const char *const names[] = {
        "__syncwarp",        "__shfl_sync",       "__shfl_up_sync",    "__shfl_down_sync",  "__shfl_xor_sync",
        "__ballot_sync",     "__any_sync",        "__all_sync",        "__match_any_sync",  "__match_all_sync",
        "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_add_sync", "__reduce_min_sync",
        "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync",  "__reduce_xor_sync"
    };
    return names[static_cast<int>(op)];
}

static std::string waits_where(const thread *t)
{
    char text[512];
    if (t->state == state::at_barrier)
        snprintf(text, sizeof text, "wait in __syncthreads at %s:%d", t->file, t->line);
    else
        snprintf(text, sizeof text, "wait in %s with mask %08x at %s:%d", op_name(t->op), t->mask, t->file, t->line);
    return text;
}

/* Lists which threads wait where: equal places together, threads by their numbers in the block. */
static std::string who_waits()
{
    std::string text;
    unsigned exited = 0;
    for (uint32_t i = 0; i < block.count;) {
        const thread *t = &block.threads[i];
        if (t->state != state::at_barrier && t->state != state::at_warp) {
            exited += t->state == state::exited;
            i++;
            continue;
        }
        const std::string where = waits_where(t);
        const uint32_t first = i;
        while (i < block.count &&
               (block.threads[i].state == state::at_barrier || block.threads[i].state == state::at_warp) &&
               waits_where(&block.threads[i]) == where)
            i++;
        text += "; threads " + std::to_string(first) + " to " + std::to_string(i - 1) + " " + where;
        if (text.size() > 3000) return text + "; and others";
    }
    if (exited) text += "; " + std::to_string(exited) + " have exited";
    return text;
}

/* ---- choosing the next thread ---- */

static void push_ready(uint32_t i)
{
    block.threads[i].state = state::ready;
    block.ready.data()[block.ready_end++ & block.ready_mask] = i;
}

static void worker();

static fiber *idle_fiber()
{
    if (block.idle.empty()) {
        block.all.push_back(fiber_create(worker));
        block.idle.push_back(block.all.back());
    }
    block.taken = block.idle.back();
    block.idle.pop_back();
    return block.taken;
}

/* Suspends the fiber `from`. */
static void leave(fiber *from)
{
    const bool some_ready = block.ready_head != block.ready_end;
    if (some_ready && !(block.fresh_first && block.fresh)) {
        thread *t = &block.threads[block.ready.data()[block.ready_head++ & block.ready_mask]];
        make_current(t);
        if (t->on != from) fiber_switch(from, t->on);
    } else if (block.fresh) {
        fiber_switch(from, idle_fiber());
    } else {
        fiber_switch(from, &block.host);
    }
}

static void release_barrier();

static void thread_exits(thread *t)
{
    const uint32_t i = number_of(t), bit = 1u << (i & 31);
    warp_lanes *w = &block.warps[i >> 5];
    t->state = state::exited;
    w->exited |= bit;
    block.live--;
    for (unsigned others = w->waiting; others; others &= others - 1) {
        const thread *o = &block.threads[(i & ~31u) + static_cast<unsigned>(__builtin_ctz(others))];
        if (o->mask & bit)
            thread_error(false, "exits, but %s at %s:%d names its lane", op_name(o->op), o->file, o->line);
    }
    if (block.live && block.at_barrier == block.live) release_barrier();
}

static void start_thread(uint32_t i, fiber *on)
{
    thread *t = &block.threads[i];
    const dim3 &d = block_dimensions;
    t->index = d.y * d.z == 1 ? uint3{ i, 0, 0 } : uint3{ i % d.x, i / d.x % d.y, i / (d.x * d.y) };
    t->on = on;
    make_current(t);
}

/* The loop of a fiber: it runs threads that have not started, one after another; then it waits for another block. */
static void worker()
{
    fiber_entered();
    for (;;) {
        fiber *const self = block.taken;
        while (block.fresh) {
            block.fresh--;
            start_thread(static_cast<uint32_t>(block.order.next()), self);
            block.kernel->thread();
            thread_exits(block.current);
        }
        block.idle.push_back(self);
        leave(self);
    }
}

/* Barriers. */

static int barrier_result(const thread *t, int sum, uint32_t n)
{
    switch (t->barrier) {
    case barrier::plain: return 0;
    case barrier::count: return sum;
    case barrier::all: return sum == static_cast<int>(n);
    case barrier::any: return sum != 0;
    }
    return 0;
}

/* Every live thread waits: releases all, in a scattered order. */
static void release_barrier()
{
    scatter order;
    order.start(block.count);
    const thread *first = nullptr;
    int sum = 0;
    for (thread &t : block.threads) {
        if (t.state != state::at_barrier) continue;
        if (!first) first = &t;
        sum += t.predicate != 0;
        if (t.file != first->file || t.line != first->line) {
            block.current = &t;
            thread_error(true, "__syncthreads diverged");
        }
    }
    for (uint32_t n = 0; n < block.count; n++) {
        const uint32_t i = static_cast<uint32_t>(order.next());
        thread *t = &block.threads[i];
        if (t->state != state::at_barrier) continue;
        t->result.predicate = barrier_result(t, sum, block.at_barrier);
        push_ready(i);
    }
    block.at_barrier = 0;
}

int block_barrier(barrier kind, int value, const char *file, int line)
{
    thread *t = block.current;
    t->state = state::at_barrier;
    t->barrier = kind;
    t->predicate = value;
    t->file = file;
    t->line = line;
    if (++block.at_barrier == block.live) release_barrier();
    leave(t->on);
    return t->result.predicate;
}

void pause_thread()
{
    thread *t = block.current;
    push_ready(number_of(t));
    leave(t->on);
}

/* ---- warp operations ---- */

static const uint64_t nobody = 0xcbcbcbcbcbcbcbcbu; /* the value that a lane reads from one that does not take part */

static uint64_t shuffled(const thread *lanes, unsigned lane)
{
    const thread *t = &lanes[lane];
    const unsigned width = static_cast<unsigned>(t->width), first = lane & ~(width - 1), last = first + width - 1;
    unsigned source = lane;
    switch (t->op) {
    case warp_op::shfl: source = first | (t->operand & (width - 1)); break;
    case warp_op::shfl_up:
        source = lane - (t->operand & 31) < first || (t->operand & 31) > lane ? lane : lane - (t->operand & 31);
        break;
    case warp_op::shfl_down: source = lane + (t->operand & 31) > last ? lane : lane + (t->operand & 31); break;
    default: source = (lane ^ (t->operand & 31)) > last ? lane : lane ^ (t->operand & 31); break;
    }
    return t->mask >> source & 1 ? lanes[source].value : nobody;
}

static warp_result matched(const thread *lanes, unsigned lane, unsigned mask)
{
    const thread *t = &lanes[lane];
    unsigned same = 0;
    for (unsigned m = mask; m; m &= m - 1) {
        const unsigned i = static_cast<unsigned>(__builtin_ctz(m));
        if (lanes[i].value == t->value) same |= 1u << i;
    }
    if (t->op == warp_op::match_any) return { same, 0 };
    return { same == mask ? mask : 0u, same == mask };
}

static uint64_t reduced(warp_op op, uint64_t a, uint64_t b)
{
    const int32_t x = static_cast<int32_t>(a), y = static_cast<int32_t>(b);
    switch (op) {
    case warp_op::add:
    case warp_op::uadd: return static_cast<uint32_t>(a + b);
    case warp_op::min: return static_cast<uint32_t>(x < y ? x : y);
    case warp_op::max: return static_cast<uint32_t>(x > y ? x : y);
    case warp_op::umin: return a < b ? a : b;
    case warp_op::umax: return a > b ? a : b;
    case warp_op::band: return a & b;
    case warp_op::bor: return a | b;
    default: return a ^ b;
    }
}

/* All lanes of the mask have arrived: computes their results. */
static void complete_warp(thread *lanes, unsigned mask, warp_op op)
{
    unsigned ballot = 0;
    uint64_t all = lanes[__builtin_ctz(mask)].value;
    for (unsigned m = mask; m; m &= m - 1) {
        const unsigned i = static_cast<unsigned>(__builtin_ctz(m));
        if (lanes[i].value) ballot |= 1u << i;
        if (op >= warp_op::add && m != mask) all = reduced(op, all, lanes[i].value);
    }
    for (unsigned m = mask; m; m &= m - 1) {
        const unsigned i = static_cast<unsigned>(__builtin_ctz(m));
        thread *t = &lanes[i];
        switch (op) {
        case warp_op::sync: break;
        case warp_op::shfl:
        case warp_op::shfl_up:
        case warp_op::shfl_down:
        case warp_op::shfl_xor: t->result = { shuffled(lanes, i), 0 }; break;
        case warp_op::ballot: t->result = { ballot, 0 }; break;
        case warp_op::any: t->result = { ballot != 0, 0 }; break;
        case warp_op::all: t->result = { ballot == mask, 0 }; break;
        case warp_op::match_any:
        case warp_op::match_all: t->result = matched(lanes, i, mask); break;
        default: t->result = { all, 0 }; break;
        }
    }
}

static bool mask_is_right(const thread *t, const warp_lanes *w, unsigned bit)
{
    const unsigned width = static_cast<unsigned>(t->width);
    return t->mask & bit && !(t->mask & (~w->existing | w->exited)) && width - 1 < 32 && !(width & (width - 1));
}

[[noreturn]] static void mask_error(const thread *t, const warp_lanes *w, unsigned bit)
{
    char text[200];
    const char *const name = op_name(t->op);
    const unsigned missing = t->mask & ~w->existing, gone = t->mask & w->exited;
    if (!(t->mask & bit)) snprintf(text, sizeof text, "%s: mask %08x does not name the caller's lane", name, t->mask);
    else if (missing)
        snprintf(text, sizeof text, "%s: mask %08x names lanes %08x that the block does not have", name, t->mask,
                 missing);
    else if (gone) snprintf(text, sizeof text, "%s: mask %08x names lanes %08x that have exited", name, t->mask, gone);
    else snprintf(text, sizeof text, "%s: width %d is not a power of two up to 32", name, t->width);
    thread_error(false, "%s (%s:%d)", text, t->file, t->line);
}

/* Whether o waits in the same operation as t; an error if it waits for t in another one. */
static bool same_operation(const thread *t, const thread *o, unsigned bit)
{
    if (o->op == t->op && o->mask == t->mask) return true;
    if (o->mask & bit)
        thread_error(true, "lanes of one mask came to different operations, %s with mask %08x and %s with mask %08x",
                     op_name(t->op), t->mask, op_name(o->op), o->mask);
    return false;
}

warp_result warp(warp_op op, unsigned mask, uint64_t value, unsigned operand, int width, const char *file, int line)
{
    thread *t = block.current;
    const uint32_t i = number_of(t), bit = 1u << (i & 31);
    warp_lanes *w = &block.warps[i >> 5];
    thread *lanes = &block.threads[i & ~31u];
    t->op = op;
    t->mask = mask;
    t->value = value;
    t->operand = operand;
    t->width = width;
    t->file = file;
    t->line = line;
    if (!mask_is_right(t, w, bit)) mask_error(t, w, bit);
    t->state = state::at_warp;
    w->waiting |= bit;
    /* Until the last lane arrives, only one other lane is checked: enough to find most errors where they are made. */
    const unsigned others = mask & w->waiting & ~bit;
    bool all = (w->waiting & mask) == mask;
    for (unsigned m = all ? others : others & -others; m; m &= m - 1)
        all = same_operation(t, &lanes[__builtin_ctz(m)], bit) && all;
    if (!all) {
        leave(t->on);
        return t->result;
    }
    complete_warp(lanes, mask, op);
    w->waiting &= ~mask;
    const unsigned turn = static_cast<unsigned>(block_serial * 7 + static_cast<unsigned>(line)) & 31;
    const uint64_t twice = (mask & ~bit) * 0x100000001u >> turn; /* the others, starting at the lane whose turn it is */
    for (unsigned m = static_cast<unsigned>(twice); m; m &= m - 1)
        push_ready((i & ~31u) + ((static_cast<unsigned>(__builtin_ctz(m)) + turn) & 31));
    t->state = state::running; /* the last lane to arrive continues */
    return t->result;
}

unsigned active_mask()
{
    return 1u << (number_of(block.current) & 31);
}

/* Blocks. */

/* Prepares the threads and barriers of a block. */
static void begin_block(uint64_t number)
{
    const dim3 &g = grid_dimensions;
    block_index = { static_cast<unsigned>(number % g.x), static_cast<unsigned>(number / g.x % g.y),
        static_cast<unsigned>(number / (static_cast<uint64_t>(g.x) * g.y)) };
    block_serial++;
    for (thread &t : block.threads) t.state = state::fresh;
    for (uint32_t w = 0; w < block.warps.size(); w++) {
        const uint32_t lanes = block.count - w * 32;
        block.warps[w] = { lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1, 0, 0 };
    }
    block.ready_head = block.ready_end = 0;
    block.order.start(block.count);
    block.fresh = block.live = block.count;
    block.at_barrier = 0;
    block.fresh_first = random_bits() & 1;
    shared_begin_block();
}

static void report_thread()
{
    const uint3 b = block_index, t = block.current->index;
    report("kernel %s, block (%u, %u, %u), thread (%u, %u, %u): %s%s", block.kernel->name, b.x, b.y, b.z, t.x, t.y, t.z,
           complaint, complaint_lists ? who_waits().c_str() : "");
    complaint[0] = 0;
}

/* Runs all threads of a block, and checks its shared memory. */
static void run_block(uint64_t number)
{
    begin_block(number);
    block.current = nullptr;
    fiber_switch(&block.host, idle_fiber());
    const char *what = nullptr;
    bool list = false;
    if (block.failed) {
        if (complaint[0]) report_thread();
        return;
    }
    if (block.live) what = "deadlock", list = true;
    else what = shared_check();
    if (!what) return;
    report("kernel %s, block (%u, %u, %u): %s%s", block.kernel->name, block_index.x, block_index.y, block_index.z, what,
           list ? who_waits().c_str() : "");
    block.failed = cudaErrorLaunchFailure;
}

/* After a failure, fibers hold threads that never continue. */
static void abandon_fibers()
{
    for (fiber *f : block.all) fiber_reset(f, worker);
    block.idle = block.all;
}

cudaError_t run_kernel(const kernel_launch &k)
{
    block.kernel = &k;
    block.failed = cudaSuccess;
    block.count = k.block.x * k.block.y * k.block.z;
    block.threads.resize(block.count);
    block.warps.resize((block.count + 31) / 32);
    block.ready_mask = 31;
    while (block.ready_mask < block.count) block.ready_mask = block.ready_mask * 2 + 1;
    block.ready.resize(block.ready_mask + 1);
    block_dimensions = k.block;
    grid_dimensions = k.grid;
    block.host_thread = pthread_self();
    __atomic_store_n(&block.running, 1, __ATOMIC_RELEASE);
    shared_begin_kernel(k.shared);
    scatter order;
    const uint64_t blocks = static_cast<uint64_t>(k.grid.x) * k.grid.y * k.grid.z;
    order.start(blocks);
    for (uint64_t b = 0; b < blocks && !block.failed; b++) {
        run_block(order.next());
    }
    if (block.failed) abandon_fibers();
    __atomic_store_n(&block.running, 0, __ATOMIC_RELEASE);
    return block.failed;
}

} // namespace cudasim

long long clock64()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
