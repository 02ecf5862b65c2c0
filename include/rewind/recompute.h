/**
 * rewind/recompute.h - activation checkpointing: regions, and policies that decide what is kept and what is
 * recomputed.
 *
 * A region is a named interval of the tape. It needs no closure and no list of outputs: it wraps existing straight-line
 * code. Regions nest and must match. A policy decides for the values computed inside whether they are kept, recomputed
 * or offloaded. Gradients, losses and the generator's state are bit-identical under every policy.
 *
 *     ckpt_begin(t, "layer");
 *     x = layer(t, x);
 *     ckpt_end(t);
 *     ckpt_set_policy(t, "full");
 *
 * Thread-safety: as for the context.
 */
#ifndef REWIND_RECOMPUTE_H
#define REWIND_RECOMPUTE_H

#include <rewind/tape.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Opens a region. name is copied. Several regions may have one name; selective:NAME selects all of them.
 * @return RW_OK; RW_ERR_ARGUMENT; RW_ERR_MEMORY. Errors are sticky.
 */
RW_API rw_status ckpt_begin_at(rw_site at, rw_tape *t, const char *name);
#define ckpt_begin(...) ckpt_begin_at(RW_HERE, __VA_ARGS__)

/** Closes the innermost open region. @return RW_OK; RW_ERR_REGION, which is sticky, if none is open. */
RW_API rw_status ckpt_end_at(rw_site at, rw_tape *t);
#define ckpt_end(...) ckpt_end_at(RW_HERE, __VA_ARGS__)

/**
 * Sets the policy of the tape to `spec`, during recording or between steps.
 *
 *   none                      keep everything that backward needs: no op runs twice. The fastest step, unless measured
 *                             costs have a price of memory: then a budget may find a faster one (docs/planner.md)
 *   full                      keep the inputs of every outermost region, replay the rest
 *   selective:NAME,NAME       replay only regions of these names
 *   uniform:N                 keep only the inputs of every group of N outermost regions
 *   block:N                   replay the first N outermost regions, keep the rest
 *   ops:OP,OP                 keep outputs of these ops, replay the rest of each region
 *   names:keep=NAME,NAME      keep values tagged by ckpt_name(), replay the rest of each region; `save=` is a synonym
 *   discard:NAME,NAME         drop all outputs of regions of these names, even those that are read outside of them, and
 *                             recompute them when backward first reads them; can be added with + to any other policy
 *                             except budget:
 *   megatron:LABEL,LABEL      as Megatron-LM's recompute_modules, for regions of these names: core_attn, mlp, moe and
 *                             shared_experts as selective:, layernorm, moe_act, mla_up_proj, gdn_norm_out, gdp_in_proj,
 *                             gdp_qkv and mhc as discard:
 *   budget:SIZE, budget:P%    the fastest step that the planner finds whose arena (kept and replayed values, gradients
 *                             in flight, workspaces) is at most SIZE (B, KiB, MiB, GiB, TiB), or P % of the arena of
 *                             `none` of that step; on any tape, with or without regions. See docs/planner.md. With
 *                             +offload the planner also offloads values, if that is predicted to be faster
 *   total:SIZE                the same for everything that the context holds on the device while the step runs: arenas,
 *                             and parameters, gradients, optimizer states, inputs and results of all tapes as known
 *                             when the step is planned. To stay below the limit, free arenas are released, and
 *                             suspended steps are discarded and recomputed later. Not counted: memory of the device's
 *                             libraries and of a verifying run
 *
 *   offload:NAME,NAME         as none, but offload the kept values of regions of these names (docs/offload.md). Can be
 *                             added to other policies: full+offload:NAME
 *   names:offload=NAME,NAME   offload values tagged with these names, in a region or not, and replay the rest of each
 *                             region. Together with kept values: names:keep=NAME;offload=NAME
 *
 * Offload by name skips a region's values of less than 4 KiB, results, and values that gradient rules compute. The
 * environment variable REWIND_POLICY overrides this call and ckpt_policy_begin().
 *
 * ops: accepts names of built-in ops and of ops recorded in this context. Any other name is RW_ERR_POLICY in the first
 * call that plans a step (rw_backward, ckpt_verify, ckpt_explain, ...), because a custom op may be recorded after this
 * call.
 *
 * If a budget cannot be met, the first call that plans a step returns RW_ERR_BUDGET before anything is executed, and
 * the message has the minimum budget in bytes. The policy stays, so later calls fail in the same way until another
 * policy is set.
 *
 * A call between rw_item() of a loss and rw_backward() applies to the next step, because rw_item() has begun this one.
 * @return RW_OK; RW_ERR_POLICY with the position of the mistake; RW_ERR_UNSUPPORTED for budget: with +offload:NAME:
 *         a budget chooses itself what to offload (+offload). On failure the old policy stays.
 */
RW_API rw_status ckpt_set_policy(rw_tape *t, const char *spec);

/**
 * Begins a part of the tape with its own policy. Instead of the tape's policy it decides about all regions that begin
 * before the matching ckpt_policy_end().
 *
 * Parts nest, and the innermost one decides. Parts and regions nest with each other: a part that begins inside a region
 * ends inside it, and the reverse. uniform: and block: count the outermost regions of the part. Nodes of a part that
 * are in none of its regions belong to the surrounding region. A region that its part keeps is kept even if the region
 * around the part is replayed. If the tape has a budget, regions of parts with the policy none are kept, neither
 * dropped nor offloaded, and the budget decides about everything else.
 *
 * A budget of a part (budget:SIZE or budget:P%) decides about the values of all nodes recorded between the two calls,
 * in regions or not. Exceptions are values that an inner part, a replayed surrounding region or the caller decides
 * about. It bounds the arena bytes that are live at any one time of what these nodes, their replays and their gradient
 * nodes compute: values, each from the node that computes it to its last reader, and workspaces. Memory that several
 * values share counts for the one that owns it. Results, parameters' gradients and bytes in the offload store do not
 * count; an offloaded value counts while it is in the arena. P% is relative to the part with all these values kept.
 *
 * If the budget cannot be met, the first call that plans a step returns RW_ERR_BUDGET before anything is executed,
 * naming the part and the minimum budget. Budgets are monotone, whatever the budgets of other parts: a smaller one
 * never takes more of these bytes, and a larger one is never predicted to be slower. This holds as long as no policy
 * offloads values. If the costs have a price of memory (docs/planner.md), "never slower" holds only if no other part
 * drops values for its budget.
 *
 * Bytes of nodes outside of the part do not count, and a smaller budget may increase them: a replay keeps the values
 * that it reads. Replays that alone keep such values are used only if the budget cannot be met without them.
 * @return RW_OK; RW_ERR_ARGUMENT; what ckpt_set_policy() returns for the spec; RW_ERR_MEMORY; RW_ERR_UNSUPPORTED for
 *         total: and +offload, and for a budget inside a part with a budget. Budgets of parts on a tape that itself has
 *         a budget are RW_ERR_UNSUPPORTED in the first call that plans a step, because they would compete for the same
 *         bytes. Errors are sticky, and no part is begun.
 */
RW_API rw_status ckpt_policy_begin_at(rw_site at, rw_tape *t, const char *spec);
#define ckpt_policy_begin(...) ckpt_policy_begin_at(RW_HERE, __VA_ARGS__)

/** Ends the innermost part. @return RW_OK; RW_ERR_REGION, which is sticky, if none is open, or if a region that began
    inside it is still open. */
RW_API rw_status ckpt_policy_end_at(rw_site at, rw_tape *t);
#define ckpt_policy_end(...) ckpt_policy_end_at(RW_HERE, __VA_ARGS__)

/** Returns the policy in effect, as it was given. Owned by the tape. */
RW_API const char *ckpt_policy(const rw_tape *t);

/**
 * Returns the number of region names and tags in the policies of the tape and its parts that nothing recorded so far
 * has. A misspelled name has no effect, so call this after recording a step. It is not an error, because the next step
 * may have the name, unless rw_context_params.strict_policy is set. Unknown names of ops are always an error.
 * @param ret_names receives the first n of them, at most 64. The texts are owned by the tape and valid until its policy
 *                  is set or it is reset. May be NULL with n = 0.
 * @return the number; 0 for NULL
 */
RW_API size_t ckpt_unmatched_names(const rw_tape *t, const char **ret_names, size_t n);

/**
 * Tags x for names: policies and for messages. name is copied. A value and its views share a buffer, which is kept as a
 * whole and has one name for policies: that of the last call for any of them. Returns x.
 */
RW_API rw_tensor *ckpt_name_at(rw_site at, rw_tape *t, rw_tensor *x, const char *name);
#define ckpt_name(...) ckpt_name_at(RW_HERE, __VA_ARGS__)

/** Keeps this one value, overriding the policy. Returns x. */
RW_API rw_tensor *ckpt_keep_at(rw_site at, rw_tape *t, rw_tensor *x);
#define ckpt_keep(...) ckpt_keep_at(RW_HERE, __VA_ARGS__)

/**
 * Discards this one value after forward and replays it, overriding the policy, inside a region or not. What else its op
 * computes for backward is discarded, too, unless the value can be recomputed from it (rw_op_def.recompute_output),
 * such as gelu from the output that rw_linear_gelu() keeps. Returns x.
 */
RW_API rw_tensor *ckpt_recompute_at(rw_site at, rw_tape *t, rw_tensor *x);
#define ckpt_recompute(...) ckpt_recompute_at(RW_HERE, __VA_ARGS__)

/**
 * Offloads this one value to host memory or a file (docs/offload.md) between its last use in forward and its first use
 * in backward, overriding the policy, inside a region or not. Its bytes are copied out and back unchanged. The call has
 * no effect on values that backward does not read, on results, and on values computed after backward has started. If
 * several calls decide about one value, the last one applies. Returns x.
 */
RW_API rw_tensor *ckpt_offload_at(rw_site at, rw_tape *t, rw_tensor *x);
#define ckpt_offload(...) ckpt_offload_at(RW_HERE, __VA_ARGS__)

/**
 * Prints the plan of rw_backward(t, loss). Nothing is executed. The output has
 *   - every kept, offloaded, replayed or deferred (first computed in backward) value: bytes, op, region, call site and
 *     reason. Of equal regions in succession, and of equal values of one site, the first, with count and bytes of one;
 *   - the peak, the node where it occurs, and the memory of the context at that point by category;
 *   - the largest values of the arena;
 *   - policies that need less memory, including some budgets: bytes, predicted time in per cent, and the policy string;
 *   - warnings about names in the policy that no region or tag has, with the names that exist.
 *
 * The backward is that of the last rw_backward(), ckpt_verify(), rw_forward() or rw_backward_from() on this tape, or
 * else of the last scalar recorded, without the values that the last step read (see rw_item()). A value counts as kept
 * if it is live across the start of backward. Gradients that rw_grad() recorded belong to forward.
 * @param out flushed at the end.
 * @return RW_OK; the error of planning, then nothing is printed; RW_ERR_IO with the reason if `out` cannot be written,
 *         possibly after part of the output, or if its error flag (ferror()) was set before.
 */
RW_API rw_status ckpt_explain(rw_tape *t, FILE *out);

enum { CKPT_EXPLAIN_ALL = 1 }; ///< print a line for every value, without merging equal regions and values

/** As ckpt_explain(), to the same `out`, with flags: 0 or CKPT_EXPLAIN_ALL. @return as ckpt_explain(); RW_ERR_ARGUMENT
    for other flags. */
RW_API rw_status ckpt_explain_with(rw_tape *t, FILE *out, unsigned flags);

/** A scaled step: the same step with one size larger, recorded and not run. */
typedef struct rw_scaled_step {
    rw_tape *tape;    ///< of this context, or of one whose parameters have the larger size
    rw_tensor *loss;  ///< on that tape
    const char *what; ///< name of the size, to be printed: "sequence", "batch", ...
    double times;     ///< ratio of this size to that of the original step; above 1
} rw_scaled_step;

enum { CKPT_SCALED_STEPS_MAX = 8 }; ///< maximum number of scaled steps

/**
 * Prints a scaling report: how memory grows with sequence length, batch or other sizes, and how larger steps can fit
 * into the memory of this one. It answers questions such as "8k tokens fit and 32k do not: what can I do?". Nothing is
 * executed, and nothing is allocated on the device.
 *
 * The program records the step once more for each size, on a separate tape, with that size larger, because only the
 * program knows which extent is which. The report has
 *   - a line per category of memory at the peak: bytes of this step, bytes of each scaled step, and how they depend on
 *     the size: "no", "partly", "yes" (proportional), "more", "squared". Each step is planned under the policy of its
 *     own tape. If one does not fit into its budget, the report says so first and uses the minimum budget instead;
 *   - for each scaled step, the policy with which it needs no more memory in total than this one, and the cost in per
 *     cent of its time; if there is none, the minimum that it can take.
 *
 * Budgets with +offload are considered if the offload store is not device memory, or if its rates were given
 * (rw_context_set_offload()); unknown rates are measured first. Inputs of other tapes are not counted. For the ops and
 * regions that need the memory of a scaled step, call ckpt_explain() on its tape.
 * @param loss as for rw_backward()
 * @param grown n scaled steps, 1 to CKPT_SCALED_STEPS_MAX.
 * @param out flushed at the end.
 * @return RW_OK; RW_ERR_ARGUMENT; what rw_tape_plan() returns for one of the tapes, except RW_ERR_BUDGET for a budget
 *         of the whole tape, with a message that names the tape: then nothing is printed; RW_ERR_IO with the reason if
 *         `out` cannot be written, or if its error flag was set before. Errors are sticky.
 */
RW_API rw_status ckpt_explain_scaling(rw_tape *t, rw_tensor *loss, const rw_scaled_step *grown, size_t n, FILE *out);

#ifdef __cplusplus
}
#endif

#endif
