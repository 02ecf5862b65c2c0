/**
 * rewind/schedule.h - learning rates as a function of the step.
 *
 * A schedule is a value: copy it, compare it, put it into a file. It remembers nothing, so there is nothing to restore
 * when a run goes on: the rate of a step follows from the step's number alone.
 *
 *     rw_schedule s = { .kind = RW_SCHEDULE_COSINE, .lr = 6e-4, .min_lr = 6e-5, .warmup = 700, .total = 20000 };
 *     for (uint64_t step = first; step < s.total; step++) {
 *         rw_optimizer_set_lr(opt, rw_schedule_lr(&s, step));
 *         ...
 * Thread-safety: any thread.
 */
#ifndef REWIND_SCHEDULE_H
#define REWIND_SCHEDULE_H

#include <rewind/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rw_schedule_kind {
    RW_SCHEDULE_CONSTANT, ///< lr
    RW_SCHEDULE_LINEAR,   ///< from lr in a line to min_lr at `total`
    RW_SCHEDULE_COSINE,   ///< from lr along half a cosine to min_lr at `total`
    RW_SCHEDULE_STEPS     ///< lr times factor once for every `every` steps, but not below min_lr
} rw_schedule_kind;

typedef struct rw_lr_schedule {
    rw_schedule_kind kind;
    double lr;       ///< the highest
    double min_lr;   ///< the lowest, of those that fall; LINEAR and COSINE stay there from `total` on
    uint64_t warmup; ///< so many steps come first, at (step + 1) / warmup of lr; all kinds
    uint64_t total;  ///< of LINEAR and COSINE: the step at which they end; warmup is part of it
    uint64_t every;  ///< of STEPS, counted behind the warm-up
    double factor;   ///< of STEPS
} rw_schedule;

/**
 * The rate of step number `step`, counted from 0. NaN, which rw_optimizer_set_lr() refuses, for NULL and for a schedule
 * that makes no sense: a kind that is none; a rate or a factor that is negative, no number or infinite; LINEAR and
 * COSINE whose total is not above their warmup; STEPS of every 0.
 */
RW_API double rw_schedule_lr(const rw_schedule *schedule, uint64_t step);

#ifdef __cplusplus
}
#endif

#endif
