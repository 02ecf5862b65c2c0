/* CPU kernels of concat and pad: tensors joined along an axis, and a tensor between two runs of a constant. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/shape/scalar_access.h"
#include "ops/shape/copy_rows.h"
#include "ops/shape/shape.h"

#define BLOCK 16384 /* elements that a thread takes at a time */

/*
 * An input of any strides as rows, which consist of the axis and everything after it. A row of the result has one row
 * of each input. `run` rows are `step` apart before an outer axis advances.
 */
struct piece {
    const char *data;
    const rw_layout *layout;
    size_t size; /* of an element */
    int axis;
    bool dense;        /* within a row */
    int64_t part;      /* elements of a row */
    int64_t run, step; /* in elements */
};

/* Describes an input as rows around the axis. */
static struct piece piece_of(const rw_view *x, int axis)
{
    const rw_layout *const l = x->layout;
    struct piece p = { x->data, l, rw_dtype_size(x->dtype), axis, true, 1, 1, 0 };
    for (int i = l->rank - 1; i >= axis; i--) {
        p.dense &= l->dim[i] == 1 || l->stride[i] == p.part;
        p.part *= l->dim[i];
    }
    for (int i = axis - 1; i >= 0; i--) {
        if (l->dim[i] == 1) continue;
        if (p.run == 1) p.step = l->stride[i];
        else if (l->stride[i] != p.step * p.run) break;
        p.run *= l->dim[i];
    }
    return p;
}

static const char *row_of(const struct piece *p, int64_t row)
{
    int64_t at = 0;
    for (int i = p->axis - 1; i >= 0; i--) {
        at += row % p->layout->dim[i] * p->layout->stride[i];
        row /= p->layout->dim[i];
    }
    return p->data + at * (int64_t)p->size;
}

/* Elements [begin, begin + n) of a row that begins at `from`. */
static void put_part(const struct piece *p, const char *from, int64_t begin, int64_t n, char *to)
{
    const rw_layout *const l = p->layout;
    const int last = l->rank - 1;
    if (p->dense) {
        memcpy(to, from + begin * (int64_t)p->size, (size_t)n * p->size);
        return;
    }
    while (n > 0) {
        const int64_t left = l->dim[last] - begin % l->dim[last], some = n < left ? n : left;
        int64_t rest = begin, at = 0;
        for (int i = last; i >= p->axis; i--) {
            at += rest % l->dim[i] * l->stride[i];
            rest /= l->dim[i];
        }
        copy_strided(to, from + at * (int64_t)p->size, l->stride[last], some, p->size);
        begin += some, n -= some, to += some * (int64_t)p->size;
    }
}

/* Rows [row, row + n), to a destination with rows `whole` bytes apart. */
static void put_rows(const struct piece *p, int64_t row, int64_t n, char *to, int64_t whole)
{
    const int64_t size = (int64_t)p->size;
    while (n > 0 && p->part) {
        const int64_t left = p->run - row % p->run, some = n < left ? n : left;
        const char *const from = row_of(p, row);
        if (p->dense) copy_rows(to, whole, from, p->step * size, (size_t)(p->part * size), some);
        else for (int64_t i = 0; i < some; i++) put_part(p, from + i * p->step * size, 0, p->part, to + i * whole);
        row += some, n -= some, to += some * whole;
    }
}

/* The distribution of the result [rows, whole] over threads: several rows at a time, or sections of a long one. */
struct blocks {
    int64_t rows, whole, group;
    int64_t cuts, cut; /* sections of a row, or 1; elements of one */
};

/* A section is searched for among all inputs, so each thread takes a few. */
static struct blocks cut_up(const rw_layout *out, int axis, int threads)
{
    struct blocks s = { 1, 1, 1, 1, 0 };
    for (int i = 0; i < axis; i++) s.rows *= out->dim[i];
    for (int i = axis; i < out->rank; i++) s.whole *= out->dim[i];
    s.cut = (s.whole + 4 * threads - 1) / (4 * threads);
    if (s.cut < BLOCK) s.cut = BLOCK;
    if (s.whole > BLOCK) s.cuts = (s.whole + s.cut - 1) / s.cut;
    else s.group = BLOCK / s.whole;
    return s;
}

static int64_t count(const struct blocks *s)
{
    return (s->rows + s->group - 1) / s->group * s->cuts;
}

/* Block number i: rows [row, row + n), elements [begin, end) of each. */
struct block {
    int64_t row, n, begin, end;
};

static struct block block_of(const struct blocks *s, int64_t i)
{
    const int64_t row = i / s->cuts * s->group, begin = i % s->cuts * s->cut, left = s->rows - row;
    return (struct block){ row, left < s->group ? left : s->group, begin,
                           s->cuts > 1 && begin + s->cut < s->whole ? begin + s->cut : s->whole };
}

/* The part of an input within a block; its rows begin at `at` in those of the result. */
static void put_piece(const struct piece *p, const struct block *s, int64_t at, char *y, int64_t whole)
{
    const int64_t size = (int64_t)p->size, from = s->begin > at ? s->begin - at : 0;
    const int64_t to = s->end - at < p->part ? s->end - at : p->part;
    if (from >= to) return;
    y += (s->row * whole + at + from) * size;
    if (from || to < p->part) put_part(p, row_of(p, s->row), from, to - from, y);
    else put_rows(p, s->row, s->n, y, whole * size);
}

static int axis_of(const rw_layout *l, int64_t axis)
{
    return (int)(axis < 0 ? axis + l->rank : axis);
}

/* Are the rows of an input contiguous single elements? */
static bool is_one_row(const struct piece *p, const struct blocks *blocks)
{
    return p->part == 1 && p->step == 1 && p->run == blocks->rows;
}

/* Two inputs of that kind: interleaves them in vectors. */
static bool zip_block(const rw_kernel *k, int axis, const struct blocks *blocks, const struct block *s)
{
    if (k->n_inputs != 2 || blocks->whole != 2) return false;
    const struct piece a = piece_of(&k->in[0], axis), b = piece_of(&k->in[1], axis);
    if (!is_one_row(&a, blocks) || !is_one_row(&b, blocks)) return false;
    const int64_t at = s->row * (int64_t)a.size;
    zip_rows((char *)k->out[0].data + 2 * at, a.data + at, b.data + at, s->n, a.size);
    return true;
}

static void concat_block(const rw_kernel *k, int axis, const struct blocks *blocks, const struct block *s)
{
    int64_t at = 0;
    if (zip_block(k, axis, blocks, s)) return;
    for (int j = 0; j < k->n_inputs && at < s->end; j++) {
        const struct piece p = piece_of(&k->in[j], axis);
        put_piece(&p, s, at, k->out[0].data, blocks->whole);
        at += p.part;
    }
}

struct concat {
    const rw_kernel *k;
    int axis;
    struct blocks blocks;
};

static void concat_blocks(void *of, int64_t first, int64_t end)
{
    const struct concat *const c = of;
    for (int64_t i = first; i < end; i++) {
        const struct block s = block_of(&c->blocks, i);
        concat_block(c->k, c->axis, &c->blocks, &s);
    }
}

rw_status RW_ISA_NAME(rw_concat_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_concat_cpu)(const rw_kernel *k)
{
    const rw_layout *const out = k->out[0].layout;
    if (!out->numel) return RW_OK;
    const int axis = axis_of(out, *(const int64_t *)k->attrs);
    struct concat c = { k, axis, cut_up(out, axis, k->threads) };
    rw_team_for(rw_threads_for(k, out->numel), count(&c.blocks), concat_blocks, &c);
    return RW_OK;
}

/* The constants before and after the input's part of a row: those after one row and before the next are one run. */
struct edges {
    int64_t before, part; /* in elements */
    double value;
};

static void put_number(const rw_view *y, int64_t from, int64_t to, double value)
{
    if (from < to) put_many((char *)y->data + (size_t)from * rw_dtype_size(y->dtype), to - from, y->dtype, value);
}

static void pad_block(const rw_kernel *k, const struct edges *e, const struct blocks *blocks, const struct block *s)
{
    const int64_t part_end = e->before + e->part, begin = s->row * blocks->whole;
    const int64_t last = begin + (s->n - 1) * blocks->whole;
    const int64_t front = s->end < e->before ? s->end : e->before, back = s->begin > part_end ? s->begin : part_end;
    put_number(&k->out[0], begin + s->begin, begin + front, e->value);
    for (int64_t at = begin; at < last; at += blocks->whole)
        put_number(&k->out[0], at + part_end, at + blocks->whole + e->before, e->value);
    put_number(&k->out[0], last + back, last + s->end, e->value);
}

struct pad {
    const rw_kernel *k;
    struct blocks blocks;
    struct piece p;
    struct edges e;
};

static void pad_blocks(void *of, int64_t first, int64_t end)
{
    const struct pad *const a = of;
    for (int64_t i = first; i < end; i++) {
        const struct block s = block_of(&a->blocks, i);
        put_piece(&a->p, &s, a->e.before, a->k->out[0].data, a->blocks.whole);
        pad_block(a->k, &a->e, &a->blocks, &s);
    }
}

rw_status RW_ISA_NAME(rw_pad_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_pad_cpu)(const rw_kernel *k)
{
    const struct rw_pad_attrs *const a = k->attrs;
    const rw_layout *const out = k->out[0].layout;
    if (!out->numel) return RW_OK;
    const int axis = axis_of(out, a->axis);
    struct pad pad = { .k = k, .blocks = cut_up(out, axis, k->threads), .p = piece_of(&k->in[0], axis) };
    pad.e = (struct edges){ pad.blocks.whole / out->dim[axis] * a->start, pad.p.part, a->value };
    rw_team_for(rw_threads_for(k, out->numel), count(&pad.blocks), pad_blocks, &pad);
    return RW_OK;
}
