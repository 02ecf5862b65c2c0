/**
 * rewind/lr_schedule.h - learning rates as a function of the step.
 *
 * A schedule is a plain value without state: copy it, compare it, store it in a file. The rate of a step follows from
 * its number alone, so a resumed run has nothing to restore.
 *
 *     rw_lr_schedule s = { .kind = RW_LR_COSINE, .lr = 6e-4, .min_lr = 6e-5, .warmup = 700, .total = 20000 };
 *     for (uint64_t step = first; step < s.total; step++) {
 *         rw_optimizer_set_lr(opt, rw_lr_schedule_rate(&s, step));
 *         ...
 * Thread-safety: any thread.
 */
#ifndef REWIND_LR_SCHEDULE_H
#define REWIND_LR_SCHEDULE_H

#include <rewind/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How the rate depends on the step, after the warm-up. */
typedef enum rw_lr_schedule_kind {
    RW_LR_CONSTANT, ///< lr
    RW_LR_LINEAR,   ///< linear from lr to min_lr at `total`
    RW_LR_COSINE,   ///< half a cosine from lr to min_lr at `total`
    RW_LR_STEPS     ///< lr times factor every `every` steps, at least min_lr
} rw_lr_schedule_kind;

/** A schedule of learning rates. Zero means the default in brackets; RW_ZERO means zero. */
typedef struct rw_lr_schedule {
    rw_lr_schedule_kind kind; ///< form of the curve
    double lr;       ///< the highest
    double min_lr;   ///< the lowest after the warm-up, unless CONSTANT; LINEAR and COSINE keep it from `total` on
    uint64_t warmup; ///< number of first steps, with a rate of (step + 1) / warmup of lr; all kinds
    uint64_t total;  ///< LINEAR and COSINE: the step at which they end, warm-up included
    uint64_t every;  ///< STEPS: counted after the warm-up
    double factor;   ///< STEPS [0.1, as PyTorch's StepLR]; RW_ZERO: min_lr from step warmup + every on
} rw_lr_schedule;

/**
 * Returns the rate of step number `step`, counted from 0. Returns NaN, which rw_optimizer_set_lr() refuses, for NULL
 * and for an invalid schedule: an unknown kind; a rate that is negative, NaN or infinite; LINEAR or COSINE with a total
 * that is not above warmup; STEPS with such a factor, or with every = 0. The same for a rate of STEPS beyond the
 * largest double, because the factor is above 1.
 */
RW_API double rw_lr_schedule_rate(const rw_lr_schedule *schedule, uint64_t step);

#ifdef __cplusplus
}
#endif

#endif
