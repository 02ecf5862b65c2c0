/**
 * rewind/plan.h - predicts memory and time of a step before it runs, and measures the costs for it.
 *
 * A recorded tape describes the whole step, so its peak memory, the composition of that peak and its time are known
 * without running it. Bytes are exact; times are predictions by the context's costs, which are documented below.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_PLAN_H
#define REWIND_PLAN_H

#include <rewind/memory.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Memory breakdown at the peak, in bytes. The first five members are constant over the step. The next five and
 * `fragmentation` are the arena and sum to its size. `host` is outside of the device.
 */
typedef struct rw_memory_breakdown {
    size_t parameters; ///< parameters and buffers of the context
    size_t gradients;  ///< parameters' gradients, including those that this step allocates
    size_t optimizer;  ///< optimizer states created so far
    size_t inputs;     ///< copies of the inputs of all tapes of the context
    size_t results;    ///< values held for reading: of this step, and those that tapes of the context already hold
    size_t transient;    ///< transient: computed by forward and freed before backward
    size_t kept;       ///< computed by forward and kept for backward
    size_t replayed;   ///< recomputed for backward
    size_t adjoint;    ///< gradients of intermediate values
    size_t workspace;  ///< workspace of the running node
    size_t fragmentation;       ///< fragmentation: size of the arena minus the maximum of the live bytes
    size_t host;       ///< host memory or files for offloaded values
} rw_memory_breakdown;

/** The node at which the live bytes are highest. Strings are copies, truncated to fit. */
typedef struct rw_peak_location {
    char op[64];      ///< its op
    char region[128]; ///< "outer/inner"; "" outside any
    char name[64];    ///< ckpt_name() of its first output; "" if there is none
    char file[256];   ///< the caller's file
    int line;         ///< line in that file
    const char *kind; ///< "forward", "replay", "backward", "commit", "move out", "move in"; a constant
    size_t action;    ///< index of the action in the step, from 0
    size_t actions;   ///< number of actions of the step
} rw_peak_location;

/** What a step needs. */
typedef struct rw_prediction {
    size_t peak_bytes;   ///< size of the arena; rw_memory.measured_peak will be exactly this
    size_t largest_live; ///< maximum of the live bytes: a lower bound of any placement
    size_t least_bytes;  ///< the minimum budget; 0 if the policy is not a budget
    /** Everything that the context holds on the device for this step: at_peak without `host`. It is the minimum
        `total:` for a plan with this arena. Free arenas and suspended steps are not included: under `total:` they are
        released as needed, under other policies they stay. */
    size_t total_bytes;
    /** Upper bound of the host memory that the device's libraries use for this step, for code and tables, as in
        rw_memory.library. No budget counts it. 0 on CUDA. */
    size_t library_bytes;
    double ms;           ///< predicted time of forward and backward, by the context's costs
    /** Lower bound: by the same costs no plan within the budget is faster, if it runs the ops in the tape's order, but
        for those that only backward reads, and recomputes no gradient. With +offload it also covers plans that offload
        any values at the store's rates. At most ms; 0 if the policy is not a budget. See docs/planner.md. */
    double bound_ms;
    double gap; ///< ms / bound_ms - 1, at least 0: the maximum distance from the best plan; 0 without a bound
    rw_cost cost;                ///< work of the step
    rw_memory_breakdown at_peak; ///< memory at the peak
    rw_peak_location where;      ///< the node at the peak
} rw_prediction;

/**
 * Predicts memory and time of rw_backward(t, loss) under a policy. Nothing is executed or allocated on the device; the
 * plan is not cached, and the tape's policy is unchanged. For a model that does not fit on this machine, use a context
 * with rw_context_params.plan_only.
 *
 * The prediction is for a step that starts now, with all that it computes: also the values that the last step of the
 * same structure read, and what later losses need (see rw_item() and rw_backward()). So in a loop that logs it may be
 * another plan from the second step on. A per cent budget is of the arena of `none` of that step, too. After rw_item()
 * of the loss, rw_backward() continues the step that it started, with the plan made then: see
 * rw_memory.predicted_peak. rw_tape_frontier(), rw_plan_print() and rw_tape_cost() are of the same step.
 * @param policy as for ckpt_set_policy(); NULL: the tape's own.
 * @param ret untouched on failure, except that RW_ERR_BUDGET sets least_bytes: the minimum of the tape's budget, or of
 *        the first part whose own budget does not fit.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL, and for a loss that rw_backward() would refuse (then also RW_ERR_SHAPE or
 *         RW_ERR_REGION); RW_ERR_POLICY with the position of the mistake; RW_ERR_UNSUPPORTED as for ckpt_set_policy();
 *         RW_ERR_BUDGET below the minimum; RW_ERR_MEMORY, also for an arena of 1 TiB or more, which a plan cannot
 *         address. Budgets select smaller plans if there are any. Errors are sticky.
 */
RW_API rw_status rw_tape_plan(rw_tape *t, rw_tensor *loss, const char *policy, rw_prediction *ret);

/** A frontier point: one plan that a budget can select. */
typedef struct rw_frontier_point {
    size_t peak_bytes; ///< size of its arena, the budget that selects it
    double ms;         ///< predicted time
    double bound_ms;   ///< as rw_prediction.bound_ms, for a budget of peak_bytes
} rw_frontier_point;

/**
 * Computes the Pareto frontier of memory and time: every plan that some budget selects, from minimum memory to the
 * fastest step, with increasing bytes and decreasing time. Of equally fast plans it has the one with the fewest bytes.
 * With +offload a larger budget may select one that offloads less instead. If the tape's policy is a budget with
 * +offload, of any size, plans may offload values, at the rates of rw_context_set_offload(), measured first if they are
 * unknown.
 * @param loss as for rw_backward()
 * @param points receives the points; may be NULL with *n of 0.
 * @param n      capacity of `points`; receives the number of points written, or with capacity 0 the number that exist.
 *               With less capacity inner points are omitted; capacity 1 gives the first.
 * @return as rw_tape_plan() for a budget; RW_ERR_UNSUPPORTED if parts of the tape have their own budgets. On failure
 *         nothing is written.
 */
RW_API rw_status rw_tape_frontier(rw_tape *t, rw_tensor *loss, rw_frontier_point *points, size_t *n);

/**
 * Prints the plan that rw_backward(t, loss) would run under a policy, and runs nothing. One line per action has its
 * lane, kind, predicted time without cache misses, op, region, operands with their memory, ticket, and the actions that
 * it waits for. The buffers of the arena with their lifetimes follow, then the operands outside the arena.
 * docs/plans.md explains the columns. Two plans with the same text are equal, so `diff` shows what a policy or a change
 * of the model does; ckpt_explain() summarizes.
 * @param policy as for ckpt_set_policy(); NULL: the tape's own
 * @param out    written to and not closed
 * @return as rw_tape_plan(); RW_ERR_IO where out cannot be written to, which may have received a part of the text, or
 *         if its error flag (ferror()) was set before
 */
RW_API rw_status rw_plan_print(rw_tape *t, rw_tensor *loss, const char *policy, FILE *out);

/*
 * ----------------------------------------------------------------------------------------------------------------
 * Costs. They are measured times. There is the time of one execution of a node by its signature (op, types, layouts,
 * attributes), and on a CPU the time per byte that misses the caches or that moves between the caches of several cores.
 * A step is predicted to take the sum of its nodes' times, of its cache misses, and of waits for copies.
 *
 * A node whose signature was not measured, because of another batch size or length, is estimated: its time at nominal
 * rates, times the ratio of measured to nominal time of its op. If its op was never measured, the ratio is that of all
 * ops of its type with the same bottleneck (arithmetic or memory), or of all ops of any type. So costs of one model
 * give estimates for another one, and rw_costs_calibrate() measures without a model. Without any costs, times are
 * nominal: they compare plans but are not milliseconds.
 *
 * A plan is a pure function of the tape, the policy and the costs.
 * @param path the file's path
 */

/**
 * Starts profiling: every node is timed during execution until rw_profile_end(). A few steps are enough. For a
 * signature, the last 32 steps that contain it count, without those slower than 1.5 times the fastest. Of the rest the
 * middle half by total time is averaged. Meanwhile graphs are launched node by node. Rehearsals (ckpt_verify()) and
 * steps that offload values are not timed.
 * @return RW_OK; RW_ERR_ARGUMENT if profiling has already started; RW_ERR_MEMORY.
 */
RW_API rw_status rw_profile_begin(rw_context *ctx);

/**
 * Ends profiling. The averages become the context's costs; older costs stay for signatures that were not measured again
 * with the same number of threads. All steps are planned again.
 *
 * On a CPU the call may first measure the time per byte beyond the caches: only if a profiled step had at least 16 MiB
 * live and the context does not have that cost. It takes 0.25 s and 256 MiB; if that memory is not available, the cost
 * is assumed to be zero.
 * @return RW_OK; RW_ERR_ARGUMENT without rw_profile_begin(); RW_ERR_MEMORY. On failure nothing has changed.
 */
RW_API rw_status rw_profile_end(rw_context *ctx);

/**
 * Calibrates costs without a model: measures the rates that ops reach on this machine in each type. It times a small
 * decoder layer and a small convolutional layer, forward and backward, in float32, bfloat16, float16 and float64
 * (convolutions in the first two), and the time per byte beyond the caches. This happens in temporary contexts, so it
 * also works for a context that plans only. It takes one to three seconds and 100 MB, and 256 MiB more for 0.25 s.
 *
 * Existing costs for the same number of threads are kept and not measured again. Times profiled later on the caller's
 * own nodes take precedence. Do not call it while profiling, or while another thread computes, which would distort the
 * times.
 * @return RW_OK; RW_ERR_MEMORY; RW_ERR_DEVICE; RW_ERR_POLICY if REWIND_POLICY is invalid. On failure nothing has
 *         changed. Errors are sticky.
 */
RW_API rw_status rw_costs_calibrate(rw_context *ctx);

/** Returns the number of signatures that the context has costs for. */
RW_API size_t rw_costs_count(const rw_context *ctx);

/** Deletes all costs. */
RW_API void rw_costs_clear(rw_context *ctx);

/**
 * Writes the context's costs as text: library version, device, machine, threads, costs of memory, measured transfer
 * rates of the offload folder, a line per signature, and a hash. The write is atomic, as in rw_save().
 * @return RW_OK; RW_ERR_ARGUMENT for NULL or without costs; RW_ERR_IO; RW_ERR_MEMORY.
 */
RW_API rw_status rw_costs_save(const rw_context *ctx, const char *path);

/**
 * Replaces the context's costs by those of a file. Everyone who loads the same file gets the same plan for the same
 * tape.
 *
 * Transfer rates in the file apply whenever their folder is the offload store, set before or after this call, and are
 * then not measured; rates given to rw_context_set_offload() take precedence. Files of older versions may lack costs of
 * memory or transfer rates, which are then unset.
 * @return RW_OK; RW_ERR_UNSUPPORTED for a file of another library version, device, machine or number of threads;
 *         RW_ERR_IO, with line and column, for a file that is unreadable, truncated or not written by rw_costs_save();
 *         RW_ERR_ARGUMENT; RW_ERR_MEMORY. On failure nothing has changed.
 */
RW_API rw_status rw_costs_load(rw_context *ctx, const char *path);

#ifdef __cplusplus
}
#endif

#endif
