/* Invalid calls of rewind/ops.h and einsum.h: products, normalization, attention, positions. */
#include "api/mistakes/table.h"

#include <rewind/einsum.h>
#include <rewind/ops.h>

#include <math.h>

/* Matrix products with invalid shapes or types. */
static void products(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *tall = NULL, *flat = NULL;
    TENSOR("rw_matmul", RW_ERR_ARGUMENT, rw_matmul(t, NULL, w->matrix));
    TENSOR("rw_matmul", RW_ERR_ARGUMENT, rw_matmul(t, w->p, NULL));
    TENSOR("rw_matmul", RW_ERR_SHAPE, rw_matmul(t, w->p, w->p));
    TENSOR("rw_matmul", RW_ERR_SHAPE, rw_matmul(t, w->p, w->four));
    TENSOR("rw_matmul", RW_ERR_DTYPE, rw_matmul(t, w->index, w->index));
    TENSOR("rw_matmul", RW_ERR_ARGUMENT, rw_matmul(t, w->dead, w->matrix));
    TENSOR_OF("rw_matmul", RW_ERR_SHAPE,
              (tall = rw_broadcast_to(t, w->scalar, RW_SHAPE(HUGE_EXTENT, 1)),
               flat = rw_broadcast_to(t, w->scalar, RW_SHAPE(1, HUGE_EXTENT))),
              rw_matmul(t, tall, flat));
    TENSOR("rw_linear", RW_ERR_ARGUMENT, rw_linear(t, w->x, w->w, NULL));
    TENSOR("rw_linear", RW_ERR_ARGUMENT, rw_linear(t, NULL, w->w, RW_NONE));
    TENSOR("rw_linear", RW_ERR_ARGUMENT, rw_linear(t, w->x, RW_NONE, RW_NONE));
    TENSOR("rw_linear", RW_ERR_ARGUMENT, rw_linear(NULL, w->x, w->w, RW_NONE));
    TENSOR("rw_linear", RW_ERR_SHAPE, rw_linear(t, w->transposed, w->w, w->bias));
    TENSOR("rw_linear", RW_ERR_SHAPE, rw_linear(t, w->x, w->w, w->four));
    TENSOR("rw_linear", RW_ERR_DTYPE, rw_linear(t, w->wide, w->w, RW_NONE));
    TENSOR_OF("rw_linear", RW_ERR_SHAPE,
              (tall = rw_broadcast_to(t, w->scalar, RW_SHAPE(HUGE_EXTENT, 3)),
               flat = rw_broadcast_to(t, w->scalar, RW_SHAPE(HUGE_EXTENT, 3))),
              rw_linear(t, tall, flat, RW_NONE));
    TENSOR("rw_linear_gelu", RW_ERR_ARGUMENT, rw_linear_gelu(t, w->x, w->w, NULL));
    TENSOR("rw_linear_gelu", RW_ERR_SHAPE, rw_linear_gelu(t, w->transposed, w->w, RW_NONE));
    TENSOR("rw_linear_add", RW_ERR_ARGUMENT, rw_linear_add(t, w->x, w->w, RW_NONE, NULL));
    TENSOR("rw_linear_add", RW_ERR_ARGUMENT, rw_linear_add(t, w->x, w->w, NULL, w->x));
    TENSOR("rw_linear_add", RW_ERR_SHAPE, rw_linear_add(t, w->x, w->w, RW_NONE, w->transposed));
    TENSOR("rw_layernorm", RW_ERR_ARGUMENT, rw_layernorm(t, w->x, w->vector, NULL, 1e-5f));
    TENSOR("rw_layernorm", RW_ERR_ARGUMENT, rw_layernorm(t, w->x, NULL, RW_NONE, 1e-5f));
    TENSOR("rw_layernorm", RW_ERR_SHAPE, rw_layernorm(t, w->transposed, w->vector, RW_NONE, 1e-5f));
    TENSOR("rw_layernorm", RW_ERR_ARGUMENT, rw_layernorm(t, w->x, w->vector, RW_NONE, NAN));
    TENSOR("rw_layernorm", RW_ERR_ARGUMENT, rw_layernorm(t, w->x, w->vector, RW_NONE, -1));
    TENSOR("rw_layernorm", RW_ERR_SHAPE, rw_layernorm(t, w->scalar, w->vector, RW_NONE, 1e-5f));
    TENSOR("rw_rmsnorm", RW_ERR_ARGUMENT, rw_rmsnorm(t, NULL, w->vector, 1e-5f));
    TENSOR("rw_rmsnorm", RW_ERR_ARGUMENT, rw_rmsnorm(t, w->x, NULL, 1e-5f));
    TENSOR("rw_rmsnorm", RW_ERR_ARGUMENT, rw_rmsnorm(t, w->transposed, w->vector, INFINITY));
    TENSOR("rw_rmsnorm", RW_ERR_SHAPE, rw_rmsnorm(t, w->transposed, w->vector, 1e-5f));
}

/* w->x is [2, 3] of float32, w->index [2] of int32: routes with no rows. */
static void experts(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *index = NULL;
    const rw_moe_routes r = { w->index, w->index, w->index, w->vector };
    TENSOR("rw_moe_topk", RW_ERR_ARGUMENT, rw_moe_topk(t, NULL, RW_NONE, &(rw_moe_choice){ .k = 1 }));
    TENSOR("rw_moe_topk", RW_ERR_ARGUMENT, rw_moe_topk(t, w->x, RW_NONE, &(rw_moe_choice){ .k = 4 }));
    TENSOR("rw_moe_topk", RW_ERR_SHAPE, rw_moe_topk(t, w->x, w->p, &(rw_moe_choice){ .k = 1 }));
    TENSOR("rw_moe_select", RW_ERR_DTYPE, rw_moe_select(t, w->x, w->x));
    TENSOR("rw_moe_linear", RW_ERR_SHAPE, rw_moe_linear(t, w->x, w->x, &r));
    TENSOR("rw_moe_linear_of_tokens", RW_ERR_SHAPE, rw_moe_linear_of_tokens(t, w->vector, w->cube, &r));
    TENSOR("rw_moe_weigh", RW_ERR_DTYPE, rw_moe_weigh(t, w->x, w->index, &r));
    TENSOR("rw_moe_silu_weigh", RW_ERR_DTYPE, rw_moe_silu_weigh(t, w->x, w->index, &r));
    TENSOR("rw_moe_swiglu_weigh", RW_ERR_SHAPE, rw_moe_swiglu_weigh(t, w->x, w->vector, w->x, &r));
    TENSOR("rw_moe_swiglu_weigh", RW_ERR_DTYPE, rw_moe_swiglu_weigh(t, w->x, w->half, w->x, &r));
    TENSOR("rw_moe_combine", RW_ERR_SHAPE, rw_moe_combine(t, w->vector, &r));
    TENSOR("rw_moe_balance", RW_ERR_DTYPE, rw_moe_balance(t, w->index, w->vector, 0.1));
    TENSOR("rw_moe_router", RW_ERR_ARGUMENT, rw_moe_router(t, w->x, &(rw_moe_router_params){ .choice = { .k = 9 } },
                                                           &index, NULL));
    TENSOR("rw_moe_router", RW_ERR_ARGUMENT, rw_moe_router(t, NULL, &(rw_moe_router_params){ .choice = { .k = 1 } },
                                                           &index, NULL));
    TENSOR("rw_moe_aux_loss", RW_ERR_ARGUMENT, rw_moe_aux_loss(t, NULL, &r, 1));
    TENSOR("rw_moe_z_loss", RW_ERR_ARGUMENT, rw_moe_z_loss(t, NULL, 1));
}

/* Structs that a call requires, and its destinations; routes that rw_moe_route() left NULL, or that lack one member. */
static void structs_of_experts(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *const x = w->x, *index = NULL;
    const rw_moe_routes none = { NULL, NULL, NULL, NULL }, hole = { w->index, w->index, w->index, NULL };
    const rw_moe_router_params one = { .choice = { .k = 1 } };
    TENSOR("moe_router: params is NULL", RW_ERR_ARGUMENT, rw_moe_router(t, x, NULL, &index, NULL));
    TENSOR("moe_router: params is NULL", RW_ERR_ARGUMENT, rw_moe_router(t, x, NULL, NULL, NULL));
    TENSOR("moe_router: ret_index is NULL", RW_ERR_ARGUMENT, rw_moe_router(t, x, &one, NULL, NULL));
    ALLOWED_OF("rw_moe_router", index = x, !rw_moe_router(t, x, NULL, &index, w->parts) && !index && !w->parts[0]);
    TENSOR("moe_topk: choice is NULL", RW_ERR_ARGUMENT, rw_moe_topk(t, x, RW_NONE, NULL));
    STATUS("moe_route: ret is NULL", RW_ERR_ARGUMENT, rw_moe_route(t, w->index, 3, NULL));
    SILENT("moe_route: ret is NULL", RW_ERR_ARGUMENT, rw_moe_route(NULL, w->index, 3, NULL));
    TENSOR("moe_linear: routes is NULL", RW_ERR_ARGUMENT, rw_moe_linear(t, x, w->cube, NULL));
    TENSOR("moe_linear_of_tokens: routes is NULL", RW_ERR_ARGUMENT, rw_moe_linear_of_tokens(t, x, w->cube, NULL));
    TENSOR("moe_weigh: routes is NULL", RW_ERR_ARGUMENT, rw_moe_weigh(t, x, x, NULL));
    TENSOR("moe_silu_weigh: routes is NULL", RW_ERR_ARGUMENT, rw_moe_silu_weigh(t, x, x, NULL));
    TENSOR("moe_swiglu_weigh: routes is NULL", RW_ERR_ARGUMENT, rw_moe_swiglu_weigh(t, x, x, x, NULL));
    TENSOR("moe_combine: routes is NULL", RW_ERR_ARGUMENT, rw_moe_combine(t, x, NULL));
    TENSOR("moe_drop: routes is NULL", RW_ERR_ARGUMENT, rw_moe_drop(t, w->index, RW_NONE, NULL, 1));
    STATUS("moe_count: routes is NULL", RW_ERR_ARGUMENT, rw_moe_count(t, w->vector, NULL));
    TENSOR("moe_aux_loss: routes is NULL", RW_ERR_ARGUMENT, rw_moe_aux_loss(t, x, NULL, 1));
    TENSOR("rw_moe_linear", RW_ERR_ARGUMENT, rw_moe_linear(t, x, w->cube, &none));
    TENSOR("rw_moe_linear_of_tokens", RW_ERR_ARGUMENT, rw_moe_linear_of_tokens(t, x, w->cube, &none));
    TENSOR("rw_moe_weigh", RW_ERR_ARGUMENT, rw_moe_weigh(t, x, x, &none));
    TENSOR("rw_moe_silu_weigh", RW_ERR_ARGUMENT, rw_moe_silu_weigh(t, x, x, &none));
    TENSOR("rw_moe_swiglu_weigh", RW_ERR_ARGUMENT, rw_moe_swiglu_weigh(t, x, x, x, &none));
    TENSOR("rw_moe_combine", RW_ERR_ARGUMENT, rw_moe_combine(t, x, &none));
    TENSOR("rw_moe_drop", RW_ERR_ARGUMENT, rw_moe_drop(t, w->index, RW_NONE, &none, 1));
    STATUS("rw_moe_count", RW_ERR_ARGUMENT, rw_moe_count(t, w->vector, &hole));
    TENSOR("rw_moe_aux_loss", RW_ERR_ARGUMENT, rw_moe_aux_loss(t, x, &hole, 1));
}

/* w->heads is [1, 2, 3, 4] of float32, w->vector [3]. */
static void with_options(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *const q = w->heads;
#define WITH(status, ...)                                                                                              \
    TENSOR("rw_attention", status, rw_attention(t, q, q, q, &(rw_attention_params){ __VA_ARGS__ }))
    TENSOR("rw_attention_lse", RW_ERR_ARGUMENT, rw_attention_lse(t, q, q, w->dead, NULL, &(rw_tensor *){ NULL }));
    WITH(RW_ERR_ARGUMENT, .window = -1);
    WITH(RW_ERR_ARGUMENT, .soft_cap = -2);
    WITH(RW_ERR_ARGUMENT, .soft_cap = NAN);
    WITH(RW_ERR_SHAPE, .slopes = w->vector);
    WITH(RW_ERR_DTYPE, .slopes = w->wide);
    WITH(RW_ERR_SHAPE, .sinks = q);
    WITH(RW_ERR_SHAPE, .mask = w->vector);
    WITH(RW_ERR_DTYPE, .mask = w->wide);
    WITH(RW_ERR_DTYPE, .documents = w->vector);
    WITH(RW_ERR_ARGUMENT, .mask = w->dead);
    TENSOR("rw_attention_merge", RW_ERR_SHAPE, rw_attention_merge(t, q, q, q, q, NULL));
    TENSOR("rw_attention_merge", RW_ERR_SHAPE, rw_attention_merge(t, q, w->vector, w->vector, q, NULL));
    TENSOR("rw_attention_merge", RW_ERR_ARGUMENT, rw_attention_merge(t, q, NULL, q, q, NULL));
#undef WITH
}

/* Attention with invalid operands. */
static void attention(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *many = NULL, *q = w->heads;
    TENSOR("rw_attention", RW_ERR_ARGUMENT, rw_attention(t, NULL, q, q, NULL));
    TENSOR("rw_attention", RW_ERR_ARGUMENT, rw_attention(t, q, q, NULL, NULL));
    TENSOR("rw_attention", RW_ERR_ARGUMENT, rw_attention(t, RW_NONE, q, q, NULL));
    TENSOR("rw_attention", RW_ERR_ARGUMENT, rw_attention(t, w->dead, q, q, NULL));
    TENSOR("rw_attention", RW_ERR_SHAPE, rw_attention(t, w->p, q, q, NULL));
    TENSOR("rw_attention", RW_ERR_SHAPE, rw_attention(t, q, q, w->cube, NULL));
    TENSOR("rw_attention", RW_ERR_DTYPE, rw_attention(t, q, w->wide, q, NULL));
    TENSOR("rw_attention", RW_ERR_ARGUMENT, rw_attention(t, q, q, q, &(rw_attention_params){ .dropout = 1 }));
    TENSOR("rw_attention", RW_ERR_ARGUMENT, rw_attention(t, q, q, q, &(rw_attention_params){ .dropout = NAN }));
    TENSOR("rw_attention", RW_ERR_ARGUMENT, rw_attention(t, q, q, q, &(rw_attention_params){ .scale = NAN }));
    TENSOR("rw_attention", RW_ERR_ARGUMENT, rw_attention(t, q, q, q, &(rw_attention_params){ .scale = INFINITY }));
    TENSOR_OF("rw_attention", RW_ERR_SHAPE,
              many = rw_broadcast_to(t, w->scalar, RW_SHAPE(1, 1, HUGE_EXTENT, 4)),
              rw_attention(t, many, many, many, &(rw_attention_params){ .dropout = 0.5f }));
    with_options(m, w);
    experts(m, w);
    structs_of_experts(m, w);
    TENSOR("rw_rope_with", RW_ERR_SHAPE, rw_rope_with(t, w->x, RW_NONE, &(rw_rope_params){ .interleaved = true }));
    TENSOR("rw_rope_with", RW_ERR_ARGUMENT, rw_rope_with(t, q, RW_NONE, &(rw_rope_params){ .base = RW_ZERO }));
    TENSOR("rw_rope", RW_ERR_ARGUMENT, rw_rope(t, q, NULL, 10000));
    TENSOR("rw_rope", RW_ERR_ARGUMENT, rw_rope(t, NULL, RW_NONE, 10000));
    TENSOR("rw_rope", RW_ERR_ARGUMENT, rw_rope(t, q, RW_NONE, 0));
    TENSOR("rw_rope", RW_ERR_ARGUMENT, rw_rope(t, q, RW_NONE, NAN));
    TENSOR("rw_rope", RW_ERR_ARGUMENT, rw_rope(t, q, RW_NONE, -1));
    TENSOR("rw_rope", RW_ERR_ARGUMENT, rw_rope(t, q, RW_NONE, INFINITY));
    TENSOR("rw_rope", RW_ERR_SHAPE, rw_rope(t, q, w->index, 10000));
    TENSOR("rw_rope", RW_ERR_DTYPE, rw_rope(t, q, w->four, 10000));
    TENSOR("rw_rope", RW_ERR_SHAPE, rw_rope(t, w->p, RW_NONE, 10000));
    TENSOR("rw_causal_softmax", RW_ERR_ARGUMENT, rw_causal_softmax(t, NULL, 1));
    TENSOR("rw_causal_softmax", RW_ERR_SHAPE, rw_causal_softmax(t, w->four, 1));
    TENSOR("rw_causal_softmax", RW_ERR_ARGUMENT, rw_causal_softmax(t, w->transposed, NAN));
    TENSOR("rw_causal_softmax", RW_ERR_ARGUMENT, rw_causal_softmax(t, w->p, INFINITY));
}

/* einsum with invalid equations or operands. */
static void einsums(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *const two[] = { w->x, w->matrix }, *const hole[] = { w->x, NULL }, *const apart[] = { w->x, w->four };
    rw_tensor *const types[] = { w->x, w->wide };
#define EQ(status, text, x, n) TENSOR("einsum", status, rw_einsum(t, text, x, n))
    EQ(RW_ERR_ARGUMENT, NULL, two, 2);
    EQ(RW_ERR_ARGUMENT, "ij,jk->ik", NULL, 2);
    EQ(RW_ERR_ARGUMENT, "ij,jk->ik", two, 0);
    EQ(RW_ERR_ARGUMENT, "ij,jk->ik", two, 17);
    EQ(RW_ERR_ARGUMENT, "ij,jk->ik", hole, 2);
    EQ(RW_ERR_ARGUMENT, "ij->ij", two, 2);
    EQ(RW_ERR_ARGUMENT, "ij,jk,k->ik", two, 2);
    EQ(RW_ERR_ARGUMENT, "ij,jk->il", two, 2);
    EQ(RW_ERR_ARGUMENT, "ij,jk->ii", two, 2);
    EQ(RW_ERR_ARGUMENT, "ij,jk->ik,", two, 2);
    EQ(RW_ERR_ARGUMENT, "ij,jk-ik", two, 2);
    EQ(RW_ERR_ARGUMENT, "ij,j1->i", two, 2);
    EQ(RW_ERR_ARGUMENT, "..j,jk->k", two, 2);
    EQ(RW_ERR_SHAPE, "ii,jk->k", two, 2);
    EQ(RW_ERR_ARGUMENT, "", two, 2);
    EQ(RW_ERR_SHAPE, "ij,ijk->k", two, 2);
    EQ(RW_ERR_SHAPE, "ij,ik->k", two, 2);
    EQ(RW_ERR_SHAPE, "ij,j->i", apart, 2);
    EQ(RW_ERR_SHAPE, "abcdefghi->a", two, 1);
    EQ(RW_ERR_DTYPE, "ij,ij->ij", types, 2);
    EQ(RW_ERR_DTYPE, "ij,kj->ik", types, 2);
#undef EQ
}

void mistakes_with_products(struct trial *m, struct world *w)
{
    products(m, w);
    attention(m, w);
    einsums(m, w);
}
