/**
 * rewind/moe.h - mixture of experts: routing, products per expert, and all parts of such a layer.
 *
 * No shape depends on data. T tokens with k experts each always give T k rows; the kernels read on the device which
 * rows belong to which expert. So plans are cached, peaks are known and graphs are captured as for any other op.
 *
 * For a fixed number of tokens, the result of a token and its gradient do not depend on the other tokens or on their
 * order, bit for bit, unless experts have a capacity: nothing is padded or summed across tokens. They may depend on the
 * number of tokens in the last bits, because a router is an rw_linear(), and a product with another number of rows may
 * sum in another order.
 *
 * Conventions are those of rewind/ops.h: the tape owns each result; after an error a function returns NULL and the
 * context keeps the message. Pointers (choices, parameters, routes, and destinations of results) are required unless
 * stated otherwise: NULL is RW_ERR_ARGUMENT.
 * @param choice how experts are chosen
 * @param routes from rw_moe_route()
 * Thread-safety: as for the context.
 */
#ifndef REWIND_MOE_H
#define REWIND_MOE_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RW_MOE_EXPERTS_MAX 1024 ///< experts of a layer
#define RW_MOE_CHOSEN_MAX 64 ///< experts of one token
#define RW_MOE_GROUPS_MAX 32 ///< groups of experts

/** How experts are chosen. Zero means the default in brackets. */
typedef struct rw_moe_choice {
    int64_t k;           ///< experts of each token, 1 to RW_MOE_CHOSEN_MAX
    int64_t groups;      ///< number of groups of equal size; experts are chosen from the best groups only [1]
    int64_t best_groups; ///< number of best groups [all]
    int64_t group_sum;   ///< a group's value is the sum of this many best scores [the larger of 1 and k / best_groups]
} rw_moe_choice;

/**
 * The k largest of each row of scores [T, E] -> [T, k] of RW_I32, the best first; among equal ones the lower index,
 * also for groups. bias [E], of the scores' type, is added before the comparison; RW_NONE: no bias. No gradient. A NaN
 * score is RW_ERR_ARGUMENT when the op executes.
 */
RW_API rw_tensor *rw_moe_topk_at(rw_site at, rw_tape *t, rw_tensor *scores, rw_tensor *bias,
                                 const rw_moe_choice *choice);
#define rw_moe_topk(...) rw_moe_topk_at(RW_HERE, __VA_ARGS__)

/** Gathers scores[t, index[t, i]]: scores [T, E], index [T, k] of RW_I32, all entries of a row different -> [T, k]. */
RW_API rw_tensor *rw_moe_select_at(rw_site at, rw_tape *t, rw_tensor *scores, rw_tensor *index);
#define rw_moe_select(...) rw_moe_select_at(RW_HERE, __VA_ARGS__)

/**
 * The permutation of rows to experts, from rw_moe_route(). Rows of expert 0 come first, then of expert 1, ...; within
 * an expert they are ordered by token, then by slot. All are RW_I32, except load. None has a gradient.
 */
typedef struct rw_moe_routes {
    rw_tensor *order;   ///< [T k]: the slot, token * k + i, of each row
    rw_tensor *inverse; ///< [T, k]: the row of each slot
    rw_tensor *offsets; ///< [E + 1]: first row of expert e; dropped rows start at offsets[E]
    rw_tensor *load;    ///< [E] of float32: rows per expert; with the dropped rows they sum to T k
} rw_moe_routes;

#define RW_MOE_DROPPED (-1) ///< an entry of an index that belongs to no expert

/**
 * Computes the routes of index [T, k], whose entries are 0..experts-1 or RW_MOE_DROPPED; any other is RW_ERR_ARGUMENT
 * when the op executes.
 * @param ret receives the routes; all members are NULL on an error.
 * @return RW_OK or the error, which is sticky
 */
RW_API rw_status rw_moe_route_at(rw_site at, rw_tape *t, rw_tensor *index, int64_t experts, rw_moe_routes *ret);
#define rw_moe_route(...) rw_moe_route_at(RW_HERE, __VA_ARGS__)

/**
 * Returns the capacity in rows: tokens * k / experts * factor, rounded up, at most tokens; 0 if a size is below 1, or
 * if the factor is not above 0. A factor counts as the fraction that was written: 1.1 is 11/10, so that (100, 1, 10,
 * 1.1) gives 11.
 */
RW_API int64_t rw_moe_capacity(int64_t tokens, int64_t k, int64_t experts, double factor);

/**
 * Drops slots beyond an expert's capacity (GShard, arXiv 2006.16668): index [T, k] -> [T, k], where `capacity` slots of
 * each expert keep their entry and the others become RW_MOE_DROPPED. Route the result.
 *
 * No shape changes: dropped rows follow all others, rw_moe_linear() sets them to zero, and their gradients are zero. So
 * a dropped slot whose weight is finite adds nothing to its token; with a residual connection the token passes
 * unchanged. No gradient.
 * @param weights [T, k]: slots with the largest weights stay, of equal ones the earlier (by token, then by slot).
 *         RW_NONE: the earliest stay. A NaN weight is RW_ERR_ARGUMENT when the op executes.
 * @param routes of the index before dropping
 * @param capacity at least 1
 */
RW_API rw_tensor *rw_moe_drop_at(rw_site at, rw_tape *t, rw_tensor *index, rw_tensor *weights,
                                 const rw_moe_routes *routes, int64_t capacity);
#define rw_moe_drop(...) rw_moe_drop_at(RW_HERE, __VA_ARGS__)

/**
 * A linear layer per expert: rows x [T k, in], weight [E, out, in] -> [T k, out]. Each row is multiplied by the matrix
 * of its expert; dropped rows are zero. Sums are in float32 (float64), in one chain per element, rounded once. The
 * gradient of an expert without rows is zero.
 */
RW_API rw_tensor *rw_moe_linear_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight,
                                   const rw_moe_routes *routes);
#define rw_moe_linear(...) rw_moe_linear_at(RW_HERE, __VA_ARGS__)

/** rw_moe_linear() of tokens x [T, in] and the same weight: each row reads its token's, so no permuted copy is made or
    kept. */
RW_API rw_tensor *rw_moe_linear_of_tokens_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight,
                                             const rw_moe_routes *routes);
#define rw_moe_linear_of_tokens(...) rw_moe_linear_of_tokens_at(RW_HERE, __VA_ARGS__)

/**
 * Multiplies each row by the weight of its slot: rows [T k, n], weights [T, k] (float32; float64 for float64) -> [T k,
 * n]. This includes dropped rows: a weight that is NaN or infinite shows, as 0 times it is NaN.
 */
RW_API rw_tensor *rw_moe_weigh_at(rw_site at, rw_tape *t, rw_tensor *rows, rw_tensor *weights,
                                  const rw_moe_routes *routes);
#define rw_moe_weigh(...) rw_moe_weigh_at(RW_HERE, __VA_ARGS__)

/**
 * rw_moe_weigh() of rw_silu(x), or of rw_swiglu(gate, up), in one pass over rows [T k, n]. The activation between the
 * two products of an expert is neither stored nor kept: backward recomputes it from x, or from gate and up. The bits
 * are those of the two steps, except that 16-bit types are rounded once.
 * @param weights as for rw_moe_weigh()
 */
RW_API rw_tensor *rw_moe_silu_weigh_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weights,
                                       const rw_moe_routes *routes);
#define rw_moe_silu_weigh(...) rw_moe_silu_weigh_at(RW_HERE, __VA_ARGS__)
RW_API rw_tensor *rw_moe_swiglu_weigh_at(rw_site at, rw_tape *t, rw_tensor *gate, rw_tensor *up, rw_tensor *weights,
                                         const rw_moe_routes *routes);
#define rw_moe_swiglu_weigh(...) rw_moe_swiglu_weigh_at(RW_HERE, __VA_ARGS__)

/** Sums the rows of each token in the order of its slots, rounded once: rows [T k, n] -> [T, n]. */
RW_API rw_tensor *rw_moe_combine_at(rw_site at, rw_tape *t, rw_tensor *rows, const rw_moe_routes *routes);
#define rw_moe_combine(...) rw_moe_combine_at(RW_HERE, __VA_ARGS__)

/** How a router computes scores from logits. */
typedef enum rw_moe_score {
    RW_MOE_SOFTMAX_OF_CHOSEN, ///< choose by logits; weights are the softmax over the chosen ones
    RW_MOE_SOFTMAX,           ///< softmax over all experts, then choose
    RW_MOE_SIGMOID            ///< sigmoid of each logit, then choose (DeepSeek-V3)
} rw_moe_score;

/** Parameters of rw_moe_router(). Zero means the default in brackets; a scale of RW_ZERO is zero. */
typedef struct rw_moe_router_params {
    rw_moe_choice choice; ///< number of experts, and groups
    rw_moe_score score;   ///< how scores follow from logits [RW_MOE_SOFTMAX_OF_CHOSEN]
    rw_tensor *bias; ///< [E]: added to scores for the choice only, not to weights; NULL or RW_NONE: none
    bool normalize;  ///< divide the k weights by their sum + 1e-20
    double scale;    ///< factor of the weights [1]
} rw_moe_router_params;

/**
 * Chooses experts and their weights: logits [T, E] of float32 or float64 -> weights [T, k], with a gradient, and index
 * [T, k] (arXiv 2401.06066, 2412.19437).
 * @param params how experts are chosen and weighed
 * @param ret_index receives the index; required
 * @param ret_scores receives the scores [T, E] without bias; may be NULL
 */
RW_API rw_tensor *rw_moe_router_at(rw_site at, rw_tape *t, rw_tensor *logits, const rw_moe_router_params *params,
                                   rw_tensor **ret_index, rw_tensor **ret_scores);
#define rw_moe_router(...) rw_moe_router_at(RW_HERE, __VA_ARGS__)

/**
 * Load-balancing loss (Switch Transformers, arXiv 2101.03961) -> scalar: coefficient * E / (k T^2) times the sum over
 * experts of load * (scores [T, E] summed over tokens). For sigmoids pass scores whose rows sum to 1.
 */
RW_API rw_tensor *rw_moe_aux_loss_at(rw_site at, rw_tape *t, rw_tensor *scores, const rw_moe_routes *routes,
                                     double coefficient);
#define rw_moe_aux_loss(...) rw_moe_aux_loss_at(RW_HERE, __VA_ARGS__)

/** Router z-loss (ST-MoE, arXiv 2202.08906) -> scalar: coefficient * mean over tokens of logsumexp(logits)^2. */
RW_API rw_tensor *rw_moe_z_loss_at(rw_site at, rw_tape *t, rw_tensor *logits, double coefficient);
#define rw_moe_z_loss(...) rw_moe_z_loss_at(RW_HERE, __VA_ARGS__)

/**
 * Adds the routes' load to total, a buffer [E] of float32, when the step ends: once, also under replay. Several calls
 * in a step add up: of layers that share a total, and of micro-batches.
 * @return RW_OK or the error, which is sticky
 */
RW_API rw_status rw_moe_count_at(rw_site at, rw_tape *t, rw_tensor *total, const rw_moe_routes *routes);
#define rw_moe_count(...) rw_moe_count_at(RW_HERE, __VA_ARGS__)

/**
 * Load balancing without a loss (arXiv 2408.15664), when the step ends: bias_e increases by rate if total_e is below
 * the mean of total and decreases by rate if it is above; then total is set to 0. bias and total are buffers [E] of
 * float32. Record it in a step of its own after the last micro-batch, and execute it with rw_eval() of the result, the
 * new biases.
 */
RW_API rw_tensor *rw_moe_balance_at(rw_site at, rw_tape *t, rw_tensor *bias, rw_tensor *total, double rate);
#define rw_moe_balance(...) rw_moe_balance_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
