/**
 * rewind/verify.h - proof on the caller's own model that recompute changes no bit.
 *
 * Turning recompute off is another plan over the same tape, so verification needs nothing from the caller: it runs
 * both plans and compares bytes. Three ways to ask for it:
 *
 *     ckpt_verify()         now, of one loss; a rehearsal that touches nothing of the program's
 *     REWIND_VERIFY=1       of everything that the program runs: the run that counts is the one that is verified
 *     REWIND_VERIFY=digest  of replays alone: each value that will be replayed is digested, and its replay checked
 *                           against that, in every launch of a graph as well. Cheap enough for a long run: digests are
 *                           made and compared on the device, and nothing waits for them before the step ends
 *
 * What the first two see. Each node of the run without recompute runs twice more by itself, on copies of its
 * operands between margins of 4096 bytes, and has to give the same bytes all three times: with other bytes in its
 * outputs before, in its workspace and around its operands; at other addresses (each bit from the alignment up to 64
 * KiB differs once); with another number of threads and another rw_kernel.serial. So an op is named that leaves a
 * byte of an output unwritten, writes over an input, writes up to 4096 bytes off an operand or its workspace, reads
 * what is not its own where that matters, depends on addresses, threads or its place in the plan, remembers, or is
 * wrong in one of its runs. Then the two plans' runs are compared, value by value: replays, sums, gradients,
 * results; their arenas lie at other addresses and hold other bytes where nothing was written, and who writes up to
 * 4096 bytes before or behind the arena is named. Gradients and results are looked at once more at the end. A gradient
 * rule that records other ops when it is asked again is named too.
 *
 * REWIND_VERIFY=1 moreover runs every node that rw_item(), rw_read() and rw_eval() ask for by itself like that. A
 * step writes gradients to memory of its own; they are handed out, and buffers assigned, when all is equal. Else the
 * call is RW_ERR_MISMATCH, the message is the report, and gradients are what they were. When the loss was read
 * before rw_backward(), what that run made is compared too: a parameter changed through rw_tensor_data(), or a
 * global that an op reads, is an error, where a program that is not watched would go on with halves that don't
 * match.
 *
 * What they do not see:
 *   - ops that say RW_OP_STATEFUL, RW_OP_COMMIT or RW_OP_NONDETERMINISTIC: they run once, as they do otherwise.
 *     What the others make of their outputs is verified;
 *   - values that were read before (rw_read(), rw_eval(), rw_item()): they are computed once and stay.
 *     ckpt_verify() takes them as they are; REWIND_VERIFY=1 verified them when they were computed;
 *   - what comes after ckpt_verify(), which is a rehearsal: an op that is wrong once, in the run that counts. That is
 *     what REWIND_VERIFY=1 is for;
 *   - a write further than 4096 bytes off: it is found where it changes a value that is compared, and another op
 *     may then be named. A read further off, likewise;
 *   - a kernel that depends on address bits above 64 KiB, or on time, and gave the same bytes in all of its runs;
 *     and one that is wrong in the same way every time: that is what tests of the op are for;
 *   - the branch of a kernel that adds to a gradient, while that gradient is clear: verify a second micro-batch
 *     too;
 *   - launches of a graph: REWIND_VERIFY=1 rehearses its first launch before it, `digest` checks each.
 *
 * What it costs: about three times the kernels of a step without recompute, and once those of the step; memory for a
 * second arena, for gradients, and for two copies of the operands of the largest node. Thread-safety: as for the
 * context.
 */
#ifndef REWIND_VERIFY_H
#define REWIND_VERIFY_H

#include <rewind/tape.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What most probably made the first differing value differ. */
typedef enum ckpt_cause {
    CKPT_CAUSE_NONE,             ///< nothing differs
    CKPT_CAUSE_TICKET,           ///< the replay drew other random numbers
    CKPT_CAUSE_INPUT_CHANGED,    ///< a parameter, input or buffer changed between the runs
    CKPT_CAUSE_NONDETERMINISTIC, ///< the kernel gives other bytes from the same inputs
    CKPT_CAUSE_ORDER,            ///< gradient contributions were added in another order
    CKPT_CAUSE_CORRUPTION,       ///< the kernel repeats its bytes when run again: memory was overwritten
    CKPT_CAUSE_MOVED,            ///< a value that waited outside the device's memory came back as other bytes
    CKPT_CAUSE_UNWRITTEN,        ///< the kernel leaves part of an output unwritten
    CKPT_CAUSE_OUTSIDE,          ///< the kernel writes before or behind its operands
    CKPT_CAUSE_INPUT_WRITTEN,    ///< the kernel writes over an input
    CKPT_CAUSE_RULE              ///< the op's gradient rule recorded other ops the second time
} ckpt_cause;

/** A short constant text for a cause. Any thread. */
RW_API const char *ckpt_cause_name(ckpt_cause cause);

/**
 * The result of a verification. Plain data; strings are cut to fit. When one op was found out by itself (UNWRITTEN,
 * OUTSIDE, INPUT_WRITTEN, NONDETERMINISTIC with a detail), nothing after it was run or counted.
 */
typedef struct ckpt_report {
    bool identical;           ///< every compared byte was equal
    size_t gradients;         ///< gradients compared
    size_t replayed;          ///< replayed values compared
    size_t kept_nondeterministic; ///< values kept because their op is declared non-deterministic
    size_t mismatches;        ///< values whose bytes differ
    /* The first node, in execution order, whose inputs were equal and whose output was not. */
    ckpt_cause cause;
    char op[48];              ///< its op
    char region[96];          ///< its region, "outer/inner"; "" outside any
    char site[160];           ///< file:line of the call
    char value[96];           ///< the value's name when it has one
    bool replay;              ///< true: in a replay; false: in forward or adjoint
    int64_t element;          ///< index of the first differing element
    double expected, got;     ///< its values without and with recompute
    uint64_t ulp;             ///< their distance in units in the last place; UINT64_MAX when either is NaN
    char detail[128];         ///< more about the cause, where there is more to say
} ckpt_report;

/**
 * Runs backward from loss without recompute and with the tape's policy, each of the former's nodes by itself as well,
 * and compares every gradient and every replayed value by bytes. Parameters' gradients are not touched.
 * @param ret_report filled when the result is RW_OK or RW_ERR_MISMATCH, untouched otherwise. NULL: a mismatch is an
 *                   error of the context, whose message (rw_error_message()) is the report.
 * @return RW_OK: all equal; RW_ERR_MISMATCH; or an error of the run itself.
 */
RW_API rw_status ckpt_verify(rw_tape *t, rw_tensor *loss, ckpt_report *ret_report);

/** Prints a report in a few lines. */
RW_API void ckpt_report_print(const ckpt_report *report, FILE *out);

#ifdef __cplusplus
}
#endif

#endif
