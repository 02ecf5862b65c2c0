/**
 * rewind/verify.h - proof on the caller's own model that recompute changes no bit.
 *
 * Turning recompute off is another plan over the same tape, so verification needs nothing from the caller: it runs
 * both plans and compares bytes. REWIND_VERIFY=1 does so at every rw_backward(); REWIND_VERIFY=digest only digests
 * each value that will be replayed and checks the replay against it, in every launch of a graph as well: cheap enough
 * for a long run. Digests are made and compared on the device; nothing waits for them before the step ends.
 * Thread-safety: as for the context.
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
    CKPT_CAUSE_MOVED             ///< a value that waited outside the device's memory came back as other bytes
} ckpt_cause;

/** A short constant text for a cause. Any thread. */
RW_API const char *ckpt_cause_name(ckpt_cause cause);

/** The result of a verification. Plain data; strings are cut to fit. */
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
} ckpt_report;

/**
 * Runs backward from loss without recompute and with the tape's policy, and compares every gradient and every replayed
 * value by bytes. Parameters' gradients are not touched.
 * @param ret_report may be NULL; filled when the result is RW_OK or RW_ERR_MISMATCH, untouched otherwise.
 * @return RW_OK: all equal; RW_ERR_MISMATCH; or an error of the run itself.
 */
RW_API rw_status ckpt_verify(rw_tape *t, rw_tensor *loss, ckpt_report *ret_report);

/** Prints a report in a few lines. */
RW_API void ckpt_report_print(const ckpt_report *report, FILE *out);

#ifdef __cplusplus
}
#endif

#endif
