/**
 * rewind/verify.h - verifies on the caller's own model that recompute changes no bit.
 *
 * A step without recompute is another plan of the same tape, so verification needs nothing from the caller: it executes
 * both plans and compares bytes. There are three modes:
 *
 *     ckpt_verify()         once, for one loss: a rehearsal that changes nothing in the program
 *     REWIND_VERIFY=1       everything that the program executes: the results that it uses are those that are verified
 *     REWIND_VERIFY=digest  replays only: the digest of each value that will be replayed is compared with that of its
 *                           replay, also in every launch of a graph. Cheap enough for a long run: digests are computed
 *                           and compared on the device, and nothing waits for them before the step ends
 *
 * Checks of the first two modes.
 *   1. Isolated re-execution. Each node of the run without recompute is executed twice more, on copies of its operands
 *      between margins of 4096 bytes. All three executions must give the same bytes, although they differ in the
 *      previous contents of outputs, workspace and margins; in addresses (each bit from the alignment up to 64 KiB
 *      differs once); in the number of threads; and in rw_kernel.serial. This finds an op that leaves a byte of an
 *      output unwritten, writes to an input, writes up to 4096 bytes outside of an operand or its workspace, depends on
 *      bytes outside of its operands, on addresses, on threads or on its position in the plan, keeps state, or fails in
 *      one of its executions.
 *   2. The runs of the two plans are compared value by value: replays, sums, gradients, results. Their arenas have
 *      different addresses and different contents where nothing was written. Writes up to 4096 bytes before or after an
 *      arena are attributed to their op. Gradients and results are compared once more at the end.
 *   3. Gradient rules are called a second time and must record the same ops.
 *
 * REWIND_VERIFY=1 also re-executes every node that rw_item(), rw_read() and rw_eval() execute. A step writes gradients
 * to separate memory; they are released, and buffers are assigned, once everything is equal. Otherwise the call returns
 * RW_ERR_MISMATCH, the message is the report, and gradients are unchanged. If the loss was read before rw_backward(),
 * the values of that first half are compared, too. So a parameter changed through rw_tensor_data(), or a global
 * variable that an op reads, is an error; without verification, forward and backward would silently not match.
 *
 * Not checked:
 *   - Ops with RW_OP_STATEFUL, RW_OP_COMMIT or RW_OP_NONDETERMINISTIC. They are executed once, as usual. Nodes that
 *     read their outputs are verified.
 *   - Values that were read before (rw_read(), rw_eval(), rw_item()): they are computed once and stay. ckpt_verify()
 *     uses them as they are; REWIND_VERIFY=1 verified them when they were computed.
 *   - Steps after ckpt_verify(), which is a rehearsal. An op that fails only once, later, needs REWIND_VERIFY=1.
 *   - A write or read more than 4096 bytes outside of its operand. It is found only if it changes a compared value, and
 *     another op may then be named.
 *   - A kernel that depends on address bits above 64 KiB or on time and gave equal bytes in all its executions, and one
 *     that always fails in the same way. Those need tests of the op.
 *   - A kernel's branch that adds to a gradient, while the gradient is clear: verify a second micro-batch, too.
 *   - Launches of a graph: REWIND_VERIFY=1 rehearses the first launch before it runs, `digest` checks each launch.
 *
 * Cost: about three times the kernels of a step without recompute, plus those of the step itself; memory for a second
 * arena, for gradients, and for two copies of the operands of the largest node.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_VERIFY_H
#define REWIND_VERIFY_H

#include <rewind/tape.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The most probable cause of the first difference. */
typedef enum ckpt_cause {
    CKPT_CAUSE_NONE,             ///< nothing differs
    CKPT_CAUSE_TICKET,           ///< the replay drew other random numbers
    CKPT_CAUSE_INPUT_CHANGED,    ///< a parameter, input or buffer changed between the runs
    CKPT_CAUSE_NONDETERMINISTIC, ///< the kernel gives different bytes from the same inputs
    CKPT_CAUSE_ORDER,            ///< gradient contributions were added in another order
    CKPT_CAUSE_CORRUPTION,       ///< memory was overwritten: the kernel gives equal bytes when re-executed
    CKPT_CAUSE_MOVED,            ///< an offloaded value came back with other bytes
    CKPT_CAUSE_UNWRITTEN,        ///< the kernel leaves part of an output unwritten
    CKPT_CAUSE_OUTSIDE,          ///< the kernel writes before or after its operands
    CKPT_CAUSE_INPUT_WRITTEN,    ///< the kernel overwrites an input
    CKPT_CAUSE_RULE,             ///< the op's gradient rule recorded other ops the second time
    CKPT_CAUSE_UNDEFINED_READ    ///< the kernel reads or adds to an output or its workspace before it writes there
} ckpt_cause;

/** Returns a short constant text for a cause. Any thread. */
RW_API const char *ckpt_cause_name(ckpt_cause cause);

/**
 * The result of a verification. Plain data; strings are truncated to fit. If isolated re-execution has found the op
 * (UNWRITTEN, OUTSIDE, INPUT_WRITTEN, NONDETERMINISTIC with a detail), nothing after it was executed or counted.
 */
typedef struct ckpt_report {
    bool identical;           ///< every compared byte was equal
    size_t gradients;         ///< gradients compared
    size_t replayed;          ///< replayed values compared
    size_t kept_nondeterministic; ///< values kept because their op has RW_OP_NONDETERMINISTIC
    size_t mismatches;        ///< values whose bytes differ
    /* The members below describe the first node in execution order whose inputs are equal and whose output is not. */
    ckpt_cause cause;         ///< the most probable one
    char op[48];              ///< name of the op
    char region[96];          ///< its region, "outer/inner"; "" outside any
    char site[160];           ///< file:line of the call
    char value[96];           ///< name of the value, "" if it has none
    bool replay;              ///< true: in a replay; false: in forward or backward
    int64_t element;          ///< index of the first differing element
    double expected, got;     ///< its values without and with recompute
    uint64_t ulp;             ///< their distance in units in the last place; UINT64_MAX if either is NaN
    char detail[128];         ///< details of the cause, "" if there are none
} ckpt_report;

/**
 * Verifies backward from a loss: executes it without recompute and with the tape's policy, re-executes each node of the
 * former in isolation, and compares every gradient and every replayed value by bytes. Gradients of parameters are not
 * changed.
 * @param ret_report filled if the result is RW_OK or RW_ERR_MISMATCH, untouched otherwise. NULL: a mismatch is a sticky
 *                   error of the context, and its message (rw_error_message()) is the report.
 * @return RW_OK if everything is equal; RW_ERR_MISMATCH; or an error of the runs themselves.
 */
RW_API rw_status ckpt_verify(rw_tape *t, rw_tensor *loss, ckpt_report *ret_report);

/** Prints a report to `out` in a few lines. */
RW_API void ckpt_report_print(const ckpt_report *report, FILE *out);

#ifdef __cplusplus
}
#endif

#endif
