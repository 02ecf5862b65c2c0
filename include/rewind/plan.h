/**
 * rewind/plan.h - what a step will take, before it runs.
 *
 * A recorded tape is the whole step: its peak, its time and what lies in memory at the worst moment follow from it.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_PLAN_H
#define REWIND_PLAN_H

#include <rewind/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Bytes at the moment of the peak. The first five are there through the whole step. The next five and `lost` are the
 * arena: they sum to the peak. `host` lies outside the device.
 */
typedef struct rw_bytes {
    size_t parameters; ///< parameters and buffers of the context
    size_t gradients;  ///< parameters' gradients, those that the step makes room for among them
    size_t optimizer;  ///< optimizer states, as far as they have been made
    size_t inputs;     ///< copies of the inputs of all tapes of the context
    size_t results;    ///< values held for reading: this step's, and what tapes of the context hold already
    size_t passing;    ///< made by forward, and gone before backward begins
    size_t kept;       ///< made by forward for backward
    size_t replayed;   ///< made again for backward
    size_t adjoint;    ///< gradients on their way
    size_t workspace;  ///< of the node that runs
    size_t lost;       ///< what does not fit together: the arena beyond the largest sum of live bytes
    size_t host;       ///< room outside the device, in memory or files, for values that are moved
} rw_bytes;

/** The node at which the most bytes are live. The strings are copies, cut where there is no room. */
typedef struct rw_where {
    char op[64];
    char region[128]; ///< "outer/inner"; "" outside any
    char name[64];    ///< ckpt_name() of its first output; "" without
    char file[256];   ///< the caller's
    int line;
    const char *kind; ///< "forward", "replay", "backward", "commit", "move out", "move in"; a constant
    size_t action;    ///< which of the step's actions, from 0
    size_t actions;   ///< how many the step has
} rw_where;

typedef struct rw_prediction {
    size_t peak_bytes;   ///< of the arena: what rw_memory.measured_peak will be, exactly
    size_t largest_live; ///< no placement can be below
    size_t least_bytes;  ///< the least budget that would do; 0 where the policy is no budget
    /** All that the step has the context hold on the device: at_peak without `host`, and the least `total:` for a plan
        with this arena. Free arenas and steps that wait are not in it: under `total:` they give way, and what of them
        there is room for stays; under other policies they stay. */
    size_t total_bytes;
    double ms;           ///< predicted time of forward and backward, by the context's costs (below)
    /** No step with this peak can be faster, by the same costs (after +offload: none at all); 0 where the policy is no
        budget. It is a bound for the plan's own peak: a budget that the plan does not use up may have a faster one.
        Known exceptions, in which it is too high, up to infinity, and the gap negative: ckpt_save() of one output of an
        op with several, which backward does not read; and a peak for which no cut has a price (docs/planner.md). */
    double bound_ms;
    double gap;          ///< ms / bound_ms - 1: the distance from the bound; 0 where there is no bound
    rw_cost cost;
    rw_bytes at_peak;
    rw_where where;
} rw_prediction;

/**
 * What rw_backward(t, loss) would take under a policy, as ckpt_set_policy() takes it; NULL: the tape's own. Nothing
 * runs, nothing is allocated on the device, no plan stays in the cache, the tape's policy stays. For a model that this
 * machine could not hold: rw_context_params.plan_only.
 * It says what a step takes that begins now. Behind an rw_item() or rw_read() of the loss rw_backward() goes on with
 * the step that this began, as it was planned then: rw_memory.predicted_peak.
 * @param ret untouched on failure, but that RW_ERR_BUDGET writes least_bytes: of the part, where one with a budget
 *        of its own does not fit.
 * @return RW_OK; RW_ERR_ARGUMENT on NULL or a loss that backward would not take (RW_ERR_SHAPE, RW_ERR_REGION as
 *         there); RW_ERR_POLICY with the position of the mistake; RW_ERR_UNSUPPORTED as for ckpt_set_policy();
 *         RW_ERR_BUDGET below the least; RW_ERR_MEMORY. Errors stick to the context.
 */
RW_API rw_status rw_tape_plan(rw_tape *t, rw_tensor *loss, const char *policy, rw_prediction *ret);

/** A plan that can be had. */
typedef struct rw_point {
    size_t peak_bytes; ///< the budget that gives it: its arena takes at most so much
    double ms;         ///< predicted
    double bound_ms;   ///< as rw_prediction.bound_ms, for peak_bytes; 0 where it is not known
} rw_point;

/**
 * The whole of what budgets can give: from the least memory to the fastest step, bytes rising and time falling. Where
 * the tape's policy is a budget with +offload, of whatever size, what budgets with +offload can give: values may wait
 * outside the device's memory, at the rates of rw_context_set_offload(), measured first if they are not known.
 * @param points receives the points; may be NULL with *n of 0.
 * @param n      room for so many; receives how many were written, or with room for none how many there are. With less
 *               room some in between are left out, never the first or the last; with room for one the first.
 * @return as rw_tape_plan() for such a budget; RW_ERR_UNSUPPORTED where parts of the tape have budgets of their own.
 *         Nothing is written on failure.
 */
RW_API rw_status rw_tape_frontier(rw_tape *t, rw_tensor *loss, rw_point *points, size_t *n);

/* ---- costs ---- */

/*
 * What one run of a node takes, by its signature: op, types, layouts, attributes; and what a byte takes that caches
 * have no room for, or that several hold. Predictions are sums of these. Without any, nodes are taken at nominal rates:
 * good for comparing plans, not for milliseconds. A node that was not measured (another batch, another length) is taken
 * at nominal rates times what its op took over them where it was; where its op never was, times what all ops of its
 * type took that are bound by the same, arithmetic or memory, or of any type. So costs of one model are the machine's
 * ceilings for another one; rw_costs_ceilings() measures them without a model. A plan is a pure function of the tape,
 * the policy and the costs.
 */

/**
 * From now on every node that runs is timed where it runs, until rw_costs_end(). A handful of steps will do: the last
 * 32 that have a signature count, of these the middle half by how slow they were as a whole, without those that took
 * half as much again as the fastest, each with what its nodes took on the average. Graphs are launched node by node
 * meanwhile; rehearsals (ckpt_verify()) and steps that move values out of the device's memory are not timed.
 * RW_ERR_ARGUMENT when it was called before, RW_ERR_MEMORY.
 */
RW_API rw_status rw_costs_begin(rw_context *ctx);

/**
 * Ends that: the means become the context's costs, beside older ones that were not measured again with as many
 * threads. Plans are made anew. On a CPU, where steps had 16 MiB alive and the context knows nothing yet of what memory
 * costs beyond the caches and in several, that is measured first: a quarter of a second, with 256 MiB for as long;
 * without them it costs nothing. RW_ERR_ARGUMENT without rw_costs_begin(); RW_ERR_MEMORY changes nothing.
 */
RW_API rw_status rw_costs_end(rw_context *ctx);

/**
 * Costs where nothing of the caller's is to run: a layer of a decoder and one of a network for images, small and always
 * the same, are timed forward and backward in float32, bfloat16, float16 and float64 (convolutions in the first two),
 * in contexts of their own, which are gone when the call returns; and what memory costs beyond the caches. So every op
 * is taken at what the machine reaches in its type. They stand beside what was measured before with as many threads,
 * which is not measured again; of what is measured later, what nodes took counts. Takes one to three seconds, 100 MB,
 * and with them 256 MiB for a quarter of a second. Not for while costs are measured or a thread of the caller's
 * computes: these times would be in them. Works in a context that plans only, too.
 * @return RW_OK; RW_ERR_MEMORY, RW_ERR_DEVICE, RW_ERR_POLICY where REWIND_POLICY is none: nothing changes. Errors stick
 *         to the context.
 */
RW_API rw_status rw_costs_ceilings(rw_context *ctx);

/** Signatures that the context has costs of. */
RW_API size_t rw_costs_count(const rw_context *ctx);

/** Forgets them all. */
RW_API void rw_costs_clear(rw_context *ctx);

/**
 * Writes the context's costs as text: library version, device, machine, threads, memory's price, how fast values were
 * measured to move to the folder of rw_context_set_offload() and back, a line for each signature, a hash. The file
 * appears whole or not at all, as with rw_save(). RW_ERR_ARGUMENT on NULL or without costs, RW_ERR_IO, RW_ERR_MEMORY.
 */
RW_API rw_status rw_costs_save(const rw_context *ctx, const char *path);

/**
 * Takes the costs of a file in place of the context's. One of before memory had a price is taken without, and so is one
 * that knows no folder. What it knows of one holds while values wait there, before or after this call, and nothing is
 * measured again; rates given to rw_context_set_offload() win. So of one tape all who load a file make the same plans.
 * @return RW_OK; RW_ERR_UNSUPPORTED for a file of another library version, device, machine or number of threads;
 *         RW_ERR_IO for one that is unreadable, cut off or not what rw_costs_save() writes, with line and column;
 *         RW_ERR_ARGUMENT, RW_ERR_MEMORY. Nothing changes on failure.
 */
RW_API rw_status rw_costs_load(rw_context *ctx, const char *path);

#ifdef __cplusplus
}
#endif

#endif
