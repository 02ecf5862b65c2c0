/**
 * rewind/moe.h - mixture of experts: routing, products by expert, and a whole layer of them.
 *
 * No shape depends on data: of T tokens, each with k experts, there are always T k rows, and which rows are an expert's
 * is read on the device. So plans are cached, peaks are known and graphs captured as for any other op.
 *
 * Of a batch of so many tokens, a token's result and its gradient do not depend on what the others are or how they are
 * ordered, bit for bit, unless experts have a capacity: nothing is padded or added up across tokens. On how many there
 * are they may depend, in the last bits: a router is an rw_linear(), and a product of another number of rows may be
 * summed in another order.
 *
 * Conventions are those of rewind/ops.h: a result belongs to the tape, NULL after a mistake, whose message sticks. What
 * is pointed at, choices, parameters, routes and what receives a result, is needed unless it says otherwise: NULL is
 * RW_ERR_ARGUMENT.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_MOE_H
#define REWIND_MOE_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RW_MOE_MOST_EXPERTS 1024
#define RW_MOE_MOST_CHOSEN 64 ///< experts of one token
#define RW_MOE_MOST_GROUPS 32

/** How experts are chosen. Zero means the default in brackets. */
typedef struct rw_moe_choice {
    int64_t k;           ///< experts of each token, 1 to RW_MOE_MOST_CHOSEN
    int64_t groups;      ///< experts lie in so many groups of one size; only the best are chosen from [1]
    int64_t best_groups; ///< how many groups [all]
    int64_t group_sum;   ///< a group is worth the sum of its so many best scores [the larger of 1 and k / best_groups]
} rw_moe_choice;

/**
 * The k best of each row of scores [T, E] -> [T, k] of RW_I32, the best first; among equals the lower index, of groups
 * too. bias [E] of the scores' type is added before they are compared, or RW_NONE. No gradient. A score that is no
 * number is RW_ERR_ARGUMENT when it runs.
 */
RW_API rw_tensor *rw_moe_topk_at(rw_site at, rw_tape *t, rw_tensor *scores, rw_tensor *bias,
                                 const rw_moe_choice *choice);
#define rw_moe_topk(...) rw_moe_topk_at(RW_HERE, __VA_ARGS__)

/** scores [T, E], index [T, k] of RW_I32, each row's all different -> [T, k], scores[t, index[t, i]]. */
RW_API rw_tensor *rw_moe_select_at(rw_site at, rw_tape *t, rw_tensor *scores, rw_tensor *index);
#define rw_moe_select(...) rw_moe_select_at(RW_HERE, __VA_ARGS__)

/**
 * Where each token's rows are: those of expert 0 first, then of expert 1, ..., within an expert by token, then by slot.
 * All RW_I32 but load. Made by rw_moe_route(); none has a gradient.
 */
typedef struct rw_moe_routes {
    rw_tensor *order;   ///< [T k]: the slot token * k + i that a row belongs to
    rw_tensor *inverse; ///< [T, k]: the row of a slot
    rw_tensor *offsets; ///< [E + 1]: the rows of expert e begin at offsets[e]; what was dropped begins at offsets[E]
    rw_tensor *load;    ///< [E] of float32: rows of each expert; they and what was dropped sum to T k
} rw_moe_routes;

#define RW_MOE_DROPPED (-1) ///< an entry of an index: of no expert

/** Routes of index [T, k], entries of 0..experts-1 or RW_MOE_DROPPED; another is RW_ERR_ARGUMENT when it runs. On an
    error all NULL. */
RW_API rw_status rw_moe_route_at(rw_site at, rw_tape *t, rw_tensor *index, int64_t experts, rw_moe_routes *ret);
#define rw_moe_route(...) rw_moe_route_at(RW_HERE, __VA_ARGS__)

/** Rows of an expert: tokens * k / experts * factor, rounded up, no more than there are tokens; 0 of sizes below 1. */
RW_API int64_t rw_moe_capacity(int64_t tokens, int64_t k, int64_t experts, double factor);

/**
 * The index [T, k] without what is beyond an expert's capacity (GShard, arXiv 2006.16668): of each expert's slots so
 * many keep their entry, the others become RW_MOE_DROPPED. Route the result. No shape changes: rows that were dropped
 * lie behind all others, rw_moe_linear() makes zeros of them, and their gradients are zeros. So a dropped slot adds
 * nothing to its token: beside a residual the token goes on as it was. No gradient.
 * @param weights [T, k]: those of the largest weights stay, of equal ones the earlier (by token, then by slot);
 *                RW_NONE: the earliest stay. One that is no number is RW_ERR_ARGUMENT when it runs.
 * @param routes of the index as it is
 * @param capacity 1 or more
 */
RW_API rw_tensor *rw_moe_drop_at(rw_site at, rw_tape *t, rw_tensor *index, rw_tensor *weights,
                                 const rw_moe_routes *routes, int64_t capacity);
#define rw_moe_drop(...) rw_moe_drop_at(RW_HERE, __VA_ARGS__)

/**
 * A linear layer of each expert: x [T k, in] by rows, weight [E, out, in] -> [T k, out], row r by the matrix of the
 * expert that it is of, zeros where it was dropped. Summed in float32 (float64) in one chain per element, rounded once.
 * The gradient of an expert without rows is zeros.
 */
RW_API rw_tensor *rw_moe_linear_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight,
                                   const rw_moe_routes *routes);
#define rw_moe_linear(...) rw_moe_linear_at(RW_HERE, __VA_ARGS__)

/** rw_moe_linear() of x [T, in], of which each row takes its token's: no permuted copy is made, or kept. */
RW_API rw_tensor *rw_moe_linear_of_tokens_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight,
                                             const rw_moe_routes *routes);
#define rw_moe_linear_of_tokens(...) rw_moe_linear_of_tokens_at(RW_HERE, __VA_ARGS__)

/** rows [T k, n] times weights [T, k] (float32; float64 for float64), each by its slot's -> [T k, n]. */
RW_API rw_tensor *rw_moe_weigh_at(rw_site at, rw_tape *t, rw_tensor *rows, rw_tensor *weights,
                                  const rw_moe_routes *routes);
#define rw_moe_weigh(...) rw_moe_weigh_at(RW_HERE, __VA_ARGS__)

/**
 * rw_moe_weigh() of rw_silu(x), and of rw_swiglu(gate, up), in one pass over rows [T k, n]: the activation between an
 * expert's two products is neither written nor kept, backward makes it again from x, or from gate and up. The bytes are
 * those of two steps, but that types of 16 bits are rounded once.
 */
RW_API rw_tensor *rw_moe_silu_weigh_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weights,
                                       const rw_moe_routes *routes);
#define rw_moe_silu_weigh(...) rw_moe_silu_weigh_at(RW_HERE, __VA_ARGS__)
RW_API rw_tensor *rw_moe_swiglu_weigh_at(rw_site at, rw_tape *t, rw_tensor *gate, rw_tensor *up, rw_tensor *weights,
                                         const rw_moe_routes *routes);
#define rw_moe_swiglu_weigh(...) rw_moe_swiglu_weigh_at(RW_HERE, __VA_ARGS__)

/** rows [T k, n] -> [T, n], the sum of each token's rows in the order of its slots, rounded once. */
RW_API rw_tensor *rw_moe_combine_at(rw_site at, rw_tape *t, rw_tensor *rows, const rw_moe_routes *routes);
#define rw_moe_combine(...) rw_moe_combine_at(RW_HERE, __VA_ARGS__)

/** What a router makes of logits. */
typedef enum rw_moe_score {
    RW_MOE_SOFTMAX_OF_CHOSEN, ///< the best logits, weights by softmax over those
    RW_MOE_SOFTMAX,           ///< softmax over all experts, then the best
    RW_MOE_SIGMOID            ///< sigmoid of each (DeepSeek-V3)
} rw_moe_score;

/** A router. Zero means the default in brackets; a scale of RW_ZERO is zero. */
typedef struct rw_moe_router_params {
    rw_moe_choice choice;
    rw_moe_score score;
    rw_tensor *bias; ///< [E]: added to scores where they are compared, not to weights; NULL or RW_NONE: none
    bool normalize;  ///< the k weights are divided by their sum + 1e-20
    double scale;    ///< of the weights [1]
} rw_moe_router_params;

/**
 * logits [T, E] of float32 or float64 -> weights [T, k], with a gradient, and index [T, k] (arXiv 2401.06066,
 * 2412.19437).
 * @param ret_index receives the index; required
 * @param ret_scores receives what is compared, without bias [T, E]; may be NULL
 */
RW_API rw_tensor *rw_moe_router_at(rw_site at, rw_tape *t, rw_tensor *logits, const rw_moe_router_params *params,
                                   rw_tensor **ret_index, rw_tensor **ret_scores);
#define rw_moe_router(...) rw_moe_router_at(RW_HERE, __VA_ARGS__)

/**
 * The auxiliary loss of a router (Switch Transformers, arXiv 2101.03961): coefficient * E / (k T^2) times the sum over
 * experts of load and of scores [T, E] summed over tokens -> scalar. Of sigmoids pass rows that sum to 1.
 */
RW_API rw_tensor *rw_moe_aux_loss_at(rw_site at, rw_tape *t, rw_tensor *scores, const rw_moe_routes *routes,
                                     double coefficient);
#define rw_moe_aux_loss(...) rw_moe_aux_loss_at(RW_HERE, __VA_ARGS__)

/** coefficient times the mean over tokens of the square of logsumexp(logits) -> scalar (ST-MoE, arXiv 2202.08906). */
RW_API rw_tensor *rw_moe_z_loss_at(rw_site at, rw_tape *t, rw_tensor *logits, double coefficient);
#define rw_moe_z_loss(...) rw_moe_z_loss_at(RW_HERE, __VA_ARGS__)

/**
 * Adds the routes' load to total, a buffer [E] of float32, when the step ends: once, whatever is replayed. Calls of one
 * step add up, of layers that share a total as of micro-batches.
 */
RW_API rw_status rw_moe_count_at(rw_site at, rw_tape *t, rw_tensor *total, const rw_moe_routes *routes);
#define rw_moe_count(...) rw_moe_count_at(RW_HERE, __VA_ARGS__)

/**
 * Balance without a loss (arXiv 2408.15664): when the step ends, bias_e grows by rate where total_e is below the mean
 * of total, falls by rate where it is above, and total becomes 0. bias a buffer [E] of float32, total too. In a step of
 * its own, behind the last micro-batch: rw_eval() of what this returns, the new biases, takes it.
 */
RW_API rw_tensor *rw_moe_balance_at(rw_site at, rw_tape *t, rw_tensor *bias, rw_tensor *total, double rate);
#define rw_moe_balance(...) rw_moe_balance_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
