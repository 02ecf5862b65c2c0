/* Leaves: parameters, buffers, inputs, random tensors. A leaf has its own shape; all other shapes follow from those of
   leaves. */
#include "whole/fuzz/generate.h"
#include "whole/fuzz/input_values.h"

#include <rewind/ops.h>

#include <stdio.h>
#include <string.h>

static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

/* Starts at 0 and never decreases: bags of up to two elements and a half, or of all. */
static double offset_of(const struct fz_statement *s, int step, int64_t i)
{
    const double at = (double)(i * (int64_t)((s->word[1] + (uint32_t)step) % 6) / 2), most = s->out[0].bound - 1;
    return at < most ? at : most;
}

int32_t fz_ignored(const struct fz_program *p, int value)
{
    const struct fz_statement *const leaf = &p->s[value / FZ_OUTS];
    const bool one = !strcmp(fz_op(leaf->op)->name, "targets") && leaf->word[2] % 3 == 0 && leaf->word[2] % 2 == 0;
    return one ? 1 : -100;
}

double fz_element(const struct fz_program *p, const struct fz_statement *s, int step, int64_t i)
{
    const uint64_t x = mixed((uint64_t)s->word[0] << 32 ^ s->word[1] ^ (uint64_t)step << 56 ^
                             (uint64_t)i * 0x632be59bd9b4e019u);
    if (s->out[0].dtype == RW_BOOL) return (double)(x & 1);
    if (s->out[0].dtype != RW_I32) return (double)(int64_t)(x % 33 - 16) / 8; /* exact in every type */
    if (!strcmp(fz_op(s->op)->name, "offsets")) return offset_of(s, step, i);
    if (s->word[2] % 3 == 0 && x >> 40 & 1 && !strcmp(fz_op(s->op)->name, "targets")) return s->word[2] % 2 ? -100 : 1;
    return (double)(x % (uint64_t)s->out[0].bound);
}

void fz_elements(const struct fz_program *p, const struct fz_statement *s, int step, void *out)
{
    const int64_t n = rw_shape_numel(s->out[0].shape);
    for (int64_t i = 0; i < n; i++) {
        const double x = fz_element(p, s, step, i);
        const float f = (float)x;
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        switch (s->out[0].dtype) {
        case RW_F64: ((double *)out)[i] = x; break;
        case RW_F32: ((float *)out)[i] = f; break;
        case RW_BF16: ((uint16_t *)out)[i] = (uint16_t)(bits >> 16); break;
        case RW_BOOL: ((uint8_t *)out)[i] = x != 0; break;
        default: ((int32_t *)out)[i] = (int32_t)x;
        }
    }
}

static bool resolve_leaf(const struct fz_program *p, struct fz_statement *s)
{
    return rw_shape_numel(s->out[0].shape) <= 40000 && s->out[0].bound > 0;
}

static bool resolve_float(const struct fz_program *p, struct fz_statement *s)
{
    return rw_dtype_is_float(s->out[0].dtype) && resolve_leaf(p, s);
}

/* Filled from its own seed: removing one leaf does not change another. */
static void seed_of_its_own(const struct fz_call *c)
{
    rw_generator_set(c->ctx, (rw_generator_state){ .seed = c->s->word[0] });
}

static void name_leaf(const struct fz_call *c, char *name, size_t size)
{
    const int number = (int)(c->s - c->p->s);
    if (c->p->part) snprintf(name, size, "v%d.%d", number, c->p->part);
    else snprintf(name, size, "v%d", number);
}

static void record_param(struct fz_call *c)
{
    char name[32];
    name_leaf(c, name, sizeof name);
    c->out[0] = rw_param_at(c->at, c->ctx, name, c->s->out[0].dtype, c->s->out[0].shape);
    seed_of_its_own(c);
    rw_init_normal(c->out[0], 0, 0.5);
}

static void record_buffer(struct fz_call *c)
{
    char name[32];
    name_leaf(c, name, sizeof name);
    c->out[0] = rw_buffer_at(c->at, c->ctx, name, c->s->out[0].dtype, c->s->out[0].shape);
    seed_of_its_own(c);
    rw_init_uniform(c->out[0], -1, 1);
}

static void record_input(struct fz_call *c)
{
    double data[40000];
    fz_elements(c->p, c->s, c->step, data);
    c->out[0] = rw_input_at(c->at, c->t, c->s->out[0].dtype, c->s->out[0].shape, data,
                            (size_t)rw_shape_numel(c->s->out[0].shape) * rw_dtype_size(c->s->out[0].dtype));
}

static void record_randn(struct fz_call *c)
{
    c->out[0] = rw_randn_at(c->at, c->t, c->s->out[0].dtype, c->s->out[0].shape);
}

static void record_rand(struct fz_call *c)
{
    c->out[0] = rw_rand_at(c->at, c->t, c->s->out[0].dtype, c->s->out[0].shape);
}

static int choose_leaf(struct fz_generator *g, int op)
{
    rw_shape shape = { .rank = g->rank };
    for (int i = 0; i < shape.rank; i++) shape.dim[i] = fz_extent(g);
    for (int i = 0; rw_shape_numel(shape) > 5000; i++) shape.dim[i % shape.rank] = 1 + fz_below(g, 4);
    return fz_new_leaf(g, fz_op(op)->name, g->dtype, shape, 2);
}

const struct fz_op fz_leaf_ops[] = {
    { "param", 0, FZ_LEAF | FZ_CONTEXT, 0, choose_leaf, resolve_float, record_param, "rw_param(b.ctx, \"$\", ^0, @0)" },
    { "buffer", 1, FZ_LEAF | FZ_CONTEXT, 0, choose_leaf, resolve_float, record_buffer,
      "rw_buffer(b.ctx, \"$\", ^0, @0)" },
    { "input", 2, FZ_LEAF, 0, choose_leaf, resolve_float, record_input, "rw_input(t, ^0, @0, $[step], !0)" },
    { "index", 0, FZ_LEAF, 0, NULL, resolve_leaf, record_input, "rw_input(t, RW_I32, @0, $[step], !0)" },
    { "targets", 0, FZ_LEAF, 0, NULL, resolve_leaf, record_input, "rw_input(t, RW_I32, @0, $[step], !0)" },
    { "offsets", 0, FZ_LEAF, 0, NULL, resolve_leaf, record_input, "rw_input(t, RW_I32, @0, $[step], !0)" },
    { "mask", 0, FZ_LEAF, 0, NULL, resolve_leaf, record_input, "rw_input(t, RW_BOOL, @0, $[step], !0)" },
    { "randn", 2, FZ_LEAF, 0, choose_leaf, resolve_float, record_randn, "rw_randn(t, ^0, @0)" },
    { "rand", 2, FZ_LEAF, 0, choose_leaf, resolve_float, record_rand, "rw_rand(t, ^0, @0)" },
    { NULL },
};
