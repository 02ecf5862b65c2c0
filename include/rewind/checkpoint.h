/**
 * rewind/checkpoint.h - regions and policies: what is kept after the forward pass and what is run again.
 *
 * A region is a named interval of the tape. It needs no closure and no list of outputs: wrap straight-line code as it
 * stands. Regions nest and must match. A policy says what becomes of the values made inside; whatever it says,
 * gradients, losses and the generator's state are the same bytes.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_CHECKPOINT_H
#define REWIND_CHECKPOINT_H

#include <rewind/tape.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Opens a region. name is copied; regions may share a name, selective:NAME picks all of them.
 * @return RW_OK, RW_ERR_ARGUMENT, RW_ERR_MEMORY. Errors stick to the context.
 */
RW_API rw_status ckpt_begin_at(rw_site at, rw_tape *t, const char *name);
#define ckpt_begin(...) ckpt_begin_at(RW_HERE, __VA_ARGS__)

/** Closes the innermost open region. RW_ERR_REGION when none is open. */
RW_API rw_status ckpt_end_at(rw_site at, rw_tape *t);
#define ckpt_end(...) ckpt_end_at(RW_HERE, __VA_ARGS__)

/**
 * Chooses the policy of the tape, now or between steps.
 *
 *   none                      all that backward needs is kept: the fastest step
 *   full                      the inputs of every outermost region are kept, the rest is replayed
 *   selective:NAME,NAME       only regions of these names are replayed
 *   uniform:N                 the inputs of every N outermost regions taken together are kept
 *   block:N                   the first N outermost regions are replayed, the rest kept
 *   ops:OP,OP                 outputs of these ops are kept, the rest of each region is replayed
 *   names:save=NAME,NAME      values tagged by ckpt_name() are kept, the rest of each region is replayed
 *   discard:NAME,NAME         what regions of these names make is dropped, also what is read outside them, and made
 *                             again when backward first reads it; may be added to any of the others but budget: by +
 *   megatron:LABEL,LABEL      as Megatron-LM's recompute_modules, for regions of these names: core_attn, mlp, moe and
 *                             shared_experts as selective:, layernorm, moe_act, mla_up_proj, gdn_norm_out, gdp_in_proj,
 *                             gdp_qkv and mhc as discard:
 *   budget:SIZE, budget:P%    the fastest step whose arena (kept and replayed values, gradients in flight, workspaces)
 *                             takes at most so many bytes (B, KiB, MiB, GiB, TiB), or so much of what `none` takes; on
 *                             any tape, with or without regions. See docs/planner.md. Behind it +offload: values may
 *                             wait outside the device's memory as well, where that is predicted to be faster
 *   total:SIZE                the same for all that the context holds on the device while the step runs: parameters,
 *                             gradients, optimizer, inputs and results of all tapes, from tables when the plan is made,
 *                             and arenas as they are. Where there is no room free arenas go, and steps that wait for
 *                             their backward are given up: they are computed again. Not what the device's libraries or
 *                             a verifying run take for themselves
 *
 *   offload:NAME,NAME         as none, but what is kept of the values made in regions of these names waits outside the
 *                             device's memory (docs/offload.md). Behind any other policy: full+offload:NAME
 *   names:offload=NAME,NAME   values of these tags wait outside the device's memory, made in a region or not; the rest
 *                             of each region is replayed. With others that are kept: names:save=NAME;offload=NAME
 *
 * A region's values of less than 4 KiB, results and what gradient rules make are not moved by name.
 * REWIND_POLICY in the environment, when set, wins over this call and over ckpt_policy_begin().
 * ops: takes the names of built-in ops and of ops recorded in this context; any other is refused with RW_ERR_POLICY by
 * the first call that plans a step (rw_backward, ckpt_verify, ckpt_explain, ...), because an op of the caller's own
 * may be recorded after this call.
 * A budget holds, or the first call that plans a step fails with RW_ERR_BUDGET before anything runs; the message names
 * the least budget that would do, in bytes. The budget stays, and what is called next fails alike, until there is
 * another policy.
 * @return RW_OK; RW_ERR_POLICY with the position of the mistake, and the old policy stays; RW_ERR_UNSUPPORTED for
 *         budget: with +offload:NAME, which reads like the rest, but is not in this version.
 */
RW_API rw_status ckpt_set_policy(rw_tape *t, const char *spec);

/**
 * A policy for a part of the tape: it decides about the regions that begin before the ckpt_policy_end() that matches,
 * in place of the tape's. Parts nest, the innermost decides, and they nest with regions: what begins inside a region
 * ends inside it, and the other way round. uniform: and block: count the outermost regions of the part. Nodes of a part
 * that stand in no region of it belong to the region around. A region that its part keeps is kept also where the region
 * around the part is replayed. Under a budget of the tape, parts whose policy is none are kept; about the others the
 * budget decides.
 *
 * budget:SIZE or budget:P% of a part decides about the values of all nodes recorded between the two calls, in regions
 * or not, but for those that a part inside, a replayed region around or the caller decides about. It bounds what lies
 * in the arena at any one moment of what these nodes, their replays and the nodes that differentiate them make: values,
 * each from the node that makes it to the last that reads it (memory that several share belongs to the one that lies in
 * it), and workspaces; not results, parameters' gradients, or what waits outside the device's memory. P% is of what the
 * part takes with all of these values kept. It holds, or the first call that plans a step fails with RW_ERR_BUDGET
 * before anything runs, naming the part and the least budget that would do. A smaller budget never takes more, a larger
 * one is never predicted to be slower, whatever the budgets of the other parts (as long as no policy moves values).
 * Refused with RW_ERR_UNSUPPORTED: total: and +offload here, a budget inside of another part's, and, by the first call
 * that plans a step, budgets of parts on a tape that has one itself: of two that share bytes, more for one is less for
 * the other.
 * @return RW_OK; RW_ERR_ARGUMENT; what ckpt_set_policy() returns for the spec; RW_ERR_UNSUPPORTED; RW_ERR_MEMORY.
 *         Errors stick, and no part is begun.
 */
RW_API rw_status ckpt_policy_begin_at(rw_site at, rw_tape *t, const char *spec);
#define ckpt_policy_begin(...) ckpt_policy_begin_at(RW_HERE, __VA_ARGS__)

/** Ends the innermost part. RW_ERR_REGION when none is open, or a region that began inside is. */
RW_API rw_status ckpt_policy_end_at(rw_site at, rw_tape *t);
#define ckpt_policy_end(...) ckpt_policy_end_at(RW_HERE, __VA_ARGS__)

/** The policy in force, as it was given. Owned by the tape. */
RW_API const char *ckpt_policy(const rw_tape *t);

/** Tags x for names: policies and for messages. name is copied. Returns x. */
RW_API rw_tensor *ckpt_name_at(rw_site at, rw_tape *t, rw_tensor *x, const char *name);
#define ckpt_name(...) ckpt_name_at(RW_HERE, __VA_ARGS__)

/** Keeps this one value, whatever the policy says. Returns x. */
RW_API rw_tensor *ckpt_save_at(rw_site at, rw_tape *t, rw_tensor *x);
#define ckpt_save(...) ckpt_save_at(RW_HERE, __VA_ARGS__)

/**
 * Discards this one value after forward and replays it, whatever the policy says, inside a region or not. What else its
 * op makes for backward goes with it, unless the value can be made again of that (rw_op_def.remake): gelu of what
 * rw_linear_gelu() keeps. Returns x.
 */
RW_API rw_tensor *ckpt_recompute_at(rw_site at, rw_tape *t, rw_tensor *x);
#define ckpt_recompute(...) ckpt_recompute_at(RW_HERE, __VA_ARGS__)

/**
 * Lets this one value wait outside the device's memory between the last read of forward and the first of backward,
 * whatever the policy says, inside a region or not: in host memory, or in a file (docs/offload.md). It is copied out
 * and back, so it is the same bytes. What backward doesn't read, a result, or what is made after backward has begun
 * stays where it is. Of several decisions about one value the last counts. Returns x.
 */
RW_API rw_tensor *ckpt_offload_at(rw_site at, rw_tape *t, rw_tensor *x);
#define ckpt_offload(...) ckpt_offload_at(RW_HERE, __VA_ARGS__)

/**
 * Prints the plan that rw_backward(t, loss) would run: every kept, moved or replayed value with bytes, op, region, site
 * and the reason - of equal regions side by side, and of equal values of one site, the first, with how many there are,
 * its bytes those of each - then the peak with the node where it occurs, what the context holds then by category, what
 * takes most of the arena, and which policies would take less, a few budgets among them: in bytes, in per cent of the
 * predicted time, as the string to use. A name of the policy's that no region has, or a tag that no value has, is
 * warned of, with those that there are. Runs nothing.
 * Backward begins where the last rw_backward(), ckpt_verify(), rw_forward() or rw_backward_from() on this tape
 * began, or else at the last scalar recorded. Kept is what lives from in front of that backward into it; the gradients
 * that rw_grad() recorded are in front of it.
 * @return RW_OK; the error that planning met, nothing is printed then; RW_ERR_IO with the reason where out cannot be
 *         written to: part of it may be there. out is flushed.
 */
RW_API rw_status ckpt_explain(rw_tape *t, FILE *out);

enum { CKPT_EXPLAIN_ALL = 1 }; ///< a line for every value: equal regions and values are shown each for itself

/** The same with flags, 0 or CKPT_EXPLAIN_ALL; others are RW_ERR_ARGUMENT. */
RW_API rw_status ckpt_explain_with(rw_tape *t, FILE *out, unsigned flags);

/** The same step with one size larger, recorded and not run. */
typedef struct rw_grown {
    rw_tape *tape;    ///< a tape of the same context
    rw_tensor *loss;  ///< on that tape
    const char *what; ///< which size: "sequence", "batch", ... as it is to be printed
    double times;     ///< how many times it is that of the step it is compared with; above 1
} rw_grown;

enum { CKPT_GROWN_MOST = 8 };

/**
 * Answers "it ran at 8k and runs out at 32k: what do I do", and what grows with sequence, with batch or with neither.
 * Which extent is which only the program knows: it records the step once more for each size that it asks about, on a
 * tape of its own, with that size larger. Nothing runs and nothing is allocated on the device.
 *
 * Prints a line for each category of memory at the peak: bytes of this step, bytes of each larger one, and how they
 * follow the size: "no", "partly", "yes" (as the size), "more", "squared". Each step is taken under its own tape's
 * policy; one that does not fit into the budget that this is, is named first and taken under the least that would do:
 * that too is an answer and no error. Then, for each larger step, the policy with which it takes no more in all than
 * this one, and what that costs in per cent of its time; or, where none does, the least that it can take. Where there
 * is a store that is not the device's own memory, or its rates were given (rw_context_set_offload()), budgets with
 * +offload are weighed, too, and measured first as plans do. Inputs of the other tapes are left out.
 * ckpt_explain() of a larger tape says which ops and regions fill it.
 * @param grown n of them, 1 to CKPT_GROWN_MOST.
 * @return RW_OK; RW_ERR_ARGUMENT; what rw_tape_plan() returns for one of the tapes but for a budget of all of it, with
 *         a message that says which: nothing is printed then. RW_ERR_IO with the reason where out cannot be written
 *         to. out is flushed. Errors stick to the context.
 */
RW_API rw_status ckpt_explain_growth(rw_tape *t, rw_tensor *loss, const rw_grown *grown, size_t n, FILE *out);

#ifdef __cplusplus
}
#endif

#endif
