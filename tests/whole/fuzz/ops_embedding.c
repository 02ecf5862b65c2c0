/* Statements of embedding tables with PyTorch's options: a padding row without gradient, bags with weights, offsets,
   modes. */
#include "whole/fuzz/generate.h"

#include <rewind/gather.h>

#include <string.h>

static bool is_table(const struct fz_type *x)
{
    return rw_dtype_is_float(x->dtype) && x->shape.rank == 2 && x->shape.dim[0] > 0;
}

static bool is_index_of(const struct fz_type *index, const struct fz_type *table)
{
    return is_table(table) && index->dtype == RW_I32 && index->bound <= (double)table->shape.dim[0];
}

/* A row of the table, sometimes counted from the end. */
static int64_t row_of(const struct fz_statement *s, const struct fz_type *table)
{
    const int64_t n = table->shape.dim[0], row = (int64_t)(s->word[2] % (uint64_t)n);
    return s->word[1] & 1 ? row - n : row;
}

static int choose_table(struct fz_generator *g)
{
    const int table = fz_any(g, 2, 2);
    const int64_t rows = 1 + fz_below(g, 9), width = fz_extent(g);
    return table >= 0 && is_table(fz_type_of(g->p, table)) ? table : fz_like(g, g->dtype, RW_SHAPE(rows, width));
}

static int choose_padded(struct fz_generator *g, int op)
{
    const int table = choose_table(g);
    if (table < 0) return -1;
    rw_shape shape = { .rank = (int32_t)fz_below(g, 3) };
    for (int i = 0; i < shape.rank; i++) shape.dim[i] = fz_extent(g);
    return fz_emit(g, op, 2, table, fz_index(g, shape, fz_type_of(g->p, table)->shape.dim[0]));
}

static bool resolve_padded(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const table = fz_in(p, s, 0), *const index = fz_in(p, s, 1);
    if (!is_index_of(index, table)) return false;
    s->k[0] = row_of(s, table);
    rw_shape out = index->shape;
    out.dim[out.rank++] = table->shape.dim[1];
    return fz_out(s, 0, table->dtype, out, table->bound, table->slope);
}

static void record_padded(struct fz_call *c)
{
    const rw_embedding_params params = { .has_padding_index = true, .padding_index = c->s->k[0] };
    c->out[0] = rw_embedding_with_at(c->at, c->t, c->in[0], c->in[1], &params);
}

/* Bags: table, index[, weights]. k[0]: mode, k[1]: has a padding row, k[2]: that row */

static int choose_bag(struct fz_generator *g, int op)
{
    const int table = choose_table(g);
    if (table < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, table);
    const rw_shape shape = RW_SHAPE(fz_extent(g), 1 + fz_below(g, 5));
    const int index = fz_index(g, shape, t.shape.dim[0]);
    return fz_chance(g, 40) ? fz_emit(g, op, 3, table, index, fz_like(g, t.dtype, shape))
                            : fz_emit(g, op, 2, table, index);
}

static bool bags(struct fz_statement *s, const struct fz_type *table, int64_t n, int64_t rows)
{
    const double m = (double)rows + 1;
    s->k[1] = s->word[0] >> 8 & 1;
    s->k[2] = row_of(s, table);
    return fz_out(s, 0, table->dtype, RW_SHAPE(n, table->shape.dim[1]), m * table->bound, m * table->slope);
}

/* The weight of each row in its bag. */
static bool weigh(struct fz_statement *s, const struct fz_type *table, const struct fz_type *weights)
{
    const struct fz_type *const y = &s->out[0];
    return weights->dtype == table->dtype &&
           fz_out(s, 0, y->dtype, y->shape, y->bound * weights->bound,
                  y->slope * weights->bound + y->bound * weights->slope);
}

static bool resolve_bag(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const table = fz_in(p, s, 0), *const index = fz_in(p, s, 1);
    const bool weighted = s->n_in > 2;
    if (!is_index_of(index, table) || index->shape.rank != 2) return false;
    s->k[0] = weighted ? RW_BAG_SUM : s->word[0] % 3;
    if (s->k[0] == RW_BAG_MAX && !index->shape.dim[1]) return false;
    if (!bags(s, table, index->shape.dim[0], index->shape.dim[1])) return false;
    return !weighted || (rw_shape_equal(fz_in(p, s, 2)->shape, index->shape) && weigh(s, table, fz_in(p, s, 2)));
}

static void record_bag(struct fz_call *c)
{
    const rw_embedding_bag_params params = { .mode = (rw_bag_mode)c->s->k[0],
                                             .weights = c->s->n_in > 2 ? c->in[2] : RW_NONE,
                                             .has_padding_index = c->s->k[1],
                                             .padding_index = c->s->k[1] ? c->s->k[2] : 0 };
    c->out[0] = rw_embedding_bag_with_at(c->at, c->t, c->in[0], c->in[1], &params);
}

/* Concatenated bags: table, index, offsets[, weights] */

static int choose_offsets(struct fz_generator *g, int op)
{
    const int table = choose_table(g);
    if (table < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, table);
    const rw_shape shape = RW_SHAPE(fz_extent(g));
    const int index = fz_index(g, shape, t.shape.dim[0]);
    const int offsets = fz_new_leaf(g, "offsets", RW_I32, RW_SHAPE(fz_extent(g)), (double)shape.dim[0] + 1);
    return fz_chance(g, 40) ? fz_emit(g, op, 4, table, index, offsets, fz_like(g, t.dtype, shape))
                            : fz_emit(g, op, 3, table, index, offsets);
}

static bool resolve_offsets(const struct fz_program *p, struct fz_statement *s)
{
    if (s->n_in < 3) return false;
    const struct fz_type *const table = fz_in(p, s, 0), *const index = fz_in(p, s, 1), *const offsets = fz_in(p, s, 2);
    const bool weighted = s->n_in > 3;
    if (!is_index_of(index, table) || index->shape.rank != 1 || offsets->shape.rank != 1) return false;
    if (strcmp(fz_op(p->s[s->in[2] / FZ_OUTS].op)->name, "offsets") != 0) return false;
    if (offsets->bound > (double)index->shape.dim[0] + 1) return false;
    s->k[0] = weighted ? RW_BAG_SUM : s->word[0] % 3;
    if (!bags(s, table, offsets->shape.dim[0], index->shape.dim[0])) return false;
    return !weighted || (rw_shape_equal(fz_in(p, s, 3)->shape, index->shape) && weigh(s, table, fz_in(p, s, 3)));
}

static void record_offsets(struct fz_call *c)
{
    const rw_embedding_bag_params params = { .mode = (rw_bag_mode)c->s->k[0],
                                             .weights = c->s->n_in > 3 ? c->in[3] : RW_NONE,
                                             .offsets = c->in[2],
                                             .has_padding_index = c->s->k[1],
                                             .padding_index = c->s->k[1] ? c->s->k[2] : 0 };
    c->out[0] = rw_embedding_bag_with_at(c->at, c->t, c->in[0], c->in[1], &params);
}

#define BAG(more) \
    "rw_embedding_bag_with(t, $0, $1, &(rw_embedding_bag_params){ .mode = (rw_bag_mode)%0, " more \
    ", .has_padding_index = %1, .padding_index = %1 ? %2 : 0 })"

const struct fz_op fz_table_ops[] = {
    { "embedding_with", 5, 0, 1, choose_padded, resolve_padded, record_padded,
      "rw_embedding_with(t, $0, $1, &(rw_embedding_params){ .has_padding_index = true, .padding_index = %0 })" },
    { "bag_with", 6, 0, 5, choose_bag, resolve_bag, record_bag, BAG(".weights = $2") },
    { "bag_of_offsets", 6, 0, 9, choose_offsets, resolve_offsets, record_offsets,
      BAG(".offsets = $2, .weights = $3") },
    { NULL },
};
