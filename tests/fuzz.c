/*
 * Random programs: tapes of random ops, shapes, shared values, views, random numbers, nested regions and per-value
 * decisions, run under random policies against `none`. Loss, gradients and the generator must be the same bytes, the
 * predicted peak the measured one, and ckpt_verify() must agree.
 *
 * REWIND_FUZZ_PROGRAMS (300) and REWIND_FUZZ_SEED (1) say how many and from where. A failing program is shrunk by leaving
 * out instructions while it still fails, and printed.
 */
#include "support.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 48

enum code { ADD, MUL, SUB, TANH, GELU, SIGMOID, EXP_SMALL, DROPOUT, LINEAR, MATMUL, LAYERNORM, SOFTMAX, SUM_ROWS, MAX_ROWS, TRANSPOSE,
            RESHAPE, SLICE_PAD, SPLIT_SWAP, NOISE, BEGIN, END, SAVE, RECOMPUTE, NAME, CODES };

static const char *const code_names[CODES] = { "add", "mul", "sub", "tanh", "gelu", "sigmoid", "exp", "dropout", "linear", "matmul",
                                               "layernorm", "softmax", "sum_rows", "max_rows", "transpose", "reshape", "slice_pad",
                                               "split_swap", "noise", "ckpt_begin", "ckpt_end", "ckpt_save", "ckpt_recompute",
                                               "ckpt_name" };

struct instruction {
    uint8_t code, a, b; /* operands count back from the newest value */
    bool skip;
};

struct program {
    struct instruction code[MOST];
    int n, size; /* values are [size, size] matrices */
    rw_dtype dtype;
    uint64_t seed;
    const char *policy;
    int threads;
};

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    return *s ^= *s << 17;
}

static struct program make(uint64_t seed)
{
    static const char *const policies[] = { "full", "full", "selective:a", "selective:b,c", "uniform:2", "uniform:3", "block:1", "block:2",
                                            "ops:linear,tanh", "ops:dropout", "names:save=tag", "none" };
    static const rw_dtype types[] = { RW_F32, RW_F32, RW_BF16, RW_F64 };
    uint64_t s = seed * 0x9e3779b97f4a7c15u + 1;
    struct program p = { .seed = seed };
    for (int i = 0; i < 4; i++) next(&s);
    p.n = 6 + (int)(next(&s) % (MOST - 6));
    p.size = 1 + (int)(next(&s) % 17);
    p.dtype = types[next(&s) % 4];
    p.policy = policies[next(&s) % 12];
    p.threads = 1 + (int)(next(&s) % 3);
    for (int i = 0; i < p.n; i++)
        p.code[i] = (struct instruction){ .code = (uint8_t)(next(&s) % CODES), .a = (uint8_t)(next(&s) % 6), .b = (uint8_t)(next(&s) % 9) };
    return p;
}

/* The values so far; operand k is the k-th newest. */
struct stack {
    rw_tensor *v[MOST + 3];
    int n;
};

static rw_tensor *at(const struct stack *s, int back)
{
    return s->v[s->n - 1 - back % s->n];
}

static rw_tensor *swap_halves(rw_tape *t, rw_tensor *x, int size)
{
    rw_tensor *part[2];
    if (rw_split(t, x, 1, (const int64_t[]){ size / 2, size - size / 2 }, 2, part)) return NULL;
    return rw_concat(t, (rw_tensor *[]){ part[1], part[0] }, 2, 1);
}

static rw_tensor *apply(const struct program *p, rw_tape *t, const struct instruction *c, const struct stack *s, rw_tensor *w, rw_tensor *g)
{
    rw_tensor *const a = at(s, c->a), *const b = at(s, c->b);
    const int n = p->size;
    switch ((enum code)c->code) {
    case ADD: return rw_add(t, a, b);
    case MUL: return rw_mul(t, a, rw_tanh(t, b));
    case SUB: return rw_sub(t, a, b);
    case TANH: return rw_tanh(t, a);
    case GELU: return rw_gelu(t, a);
    case SIGMOID: return rw_sigmoid(t, a);
    case EXP_SMALL: return rw_exp(t, rw_tanh(t, a));
    case DROPOUT: return rw_dropout(t, a, 0.1f + 0.1f * (float)c->b);
    case LINEAR: return rw_linear(t, a, w, g);
    case MATMUL: return rw_tanh(t, rw_matmul(t, a, rw_transpose(t, b, 0, 1)));
    case LAYERNORM: return rw_layernorm(t, a, g, RW_NONE, 1e-3f);
    case SOFTMAX: return rw_softmax(t, a, c->b % 2);
    case SUM_ROWS: return rw_sub(t, a, rw_mean(t, b, RW_AXES(c->b % 2), true));
    case MAX_ROWS: return rw_mul(t, a, rw_tanh(t, rw_max(t, b, RW_AXES(1), true)));
    case TRANSPOSE: return rw_transpose(t, a, 0, 1);
    case RESHAPE: return rw_reshape(t, rw_reshape(t, a, RW_SHAPE(-1)), RW_SHAPE(n, n));
    case SLICE_PAD: return rw_concat(t, (rw_tensor *[]){ rw_slice(t, a, 0, n / 2, n), rw_slice(t, b, 0, 0, n / 2) }, 2, 0);
    case SPLIT_SWAP: return swap_halves(t, a, n);
    case NOISE: return rw_add(t, a, rw_randn(t, p->dtype, RW_SHAPE(n, n)));
    default: return NULL;
    }
}

static rw_tensor *interpret(const struct program *p, rw_tape *t, rw_tensor *w, rw_tensor *g, rw_tensor *x)
{
    static const char *const names[] = { "a", "b", "c" };
    struct stack s = { .v = { w, x }, .n = 2 };
    int depth = 0;
    for (int i = 0; i < p->n; i++) {
        const struct instruction *const c = &p->code[i];
        if (c->skip) continue;
        if (c->code == BEGIN) {
            if (depth < 4) ckpt_begin(t, names[c->a % 3]), depth++;
        } else if (c->code == END) {
            if (depth) ckpt_end(t), depth--;
        } else if (c->code == SAVE || c->code == RECOMPUTE || c->code == NAME) {
            if (s.n < 3) continue;
            rw_tensor *const v = s.v[2 + (c->a + c->b) % (s.n - 2)];
            if (c->code == SAVE) ckpt_save(t, v);
            else if (c->code == RECOMPUTE) ckpt_recompute(t, v);
            else ckpt_name(t, v, "tag");
        } else {
            s.v[s.n] = apply(p, t, c, &s, w, g);
            s.n++;
        }
    }
    while (depth--) ckpt_end(t);
    rw_tensor *const y = rw_mul(t, at(&s, 0), rw_tanh(t, at(&s, 3)));
    rw_tensor *const loss = rw_add(t, rw_mean(t, y, RW_ALL_AXES, false), rw_mean(t, w, RW_ALL_AXES, false));
    if (p->seed % 5) return loss;
    rw_tensor *slope = NULL; /* every fifth program: a gradient of a gradient */
    if (rw_grad(t, loss, &w, 1, &slope)) return NULL;
    return rw_add(t, loss, rw_mean(t, rw_mul(t, slope, slope), RW_ALL_AXES, false));
}

struct outcome {
    double loss;
    unsigned char *gradients;
    size_t bytes;
    uint64_t offset;
    char error[512];
};

static struct outcome run(const struct program *p, const char *policy, int threads, bool verify)
{
    struct outcome o = { 0 };
    struct bench b = bench_open(p->seed + 1, threads);
    const int n = p->size;
    rw_tensor *const w = rw_param(b.ctx, "w", p->dtype, RW_SHAPE(n, n)), *const g = rw_param(b.ctx, "g", p->dtype, RW_SHAPE(n));
    rw_init_normal(w, 0, 0.5);
    rw_init_normal(g, 1, 0.1);
    ckpt_set_policy(b.t, policy);
    for (int round = 0; round < 2 && !o.error[0]; round++) { /* the second runs from the plan cache */
        rw_generator_set(b.ctx, (rw_generator_state){ p->seed, 100 });
        rw_zero_grad(b.ctx);
        rw_tensor *const loss = interpret(p, b.t, w, g, rw_randn(b.t, p->dtype, RW_SHAPE(n, n)));
        const bool early = round == 1 && p->seed % 3 == 0;
        const double first = early ? rw_item(b.t, loss) : 0;
        rw_status status = rw_backward(b.t, loss);
        if (!status && p->seed % 7 == 0) status = rw_backward(b.t, loss); /* adds the same once more */
        o.loss = rw_item(b.t, loss);
        rw_memory m;
        rw_memory_stats(b.ctx, &m);
        if (!status && early && memcmp(&first, &o.loss, sizeof first)) snprintf(o.error, sizeof o.error, "the loss read first differs");
        if (!status && !early && m.predicted_peak != m.measured_peak)
            snprintf(o.error, sizeof o.error, "predicted peak %zu, measured %zu", m.predicted_peak, m.measured_peak);
        if (!status && verify && round == 0) status = ckpt_verify(b.t, loss, NULL);
        if (status) snprintf(o.error, sizeof o.error, "%s: %s", rw_status_name(status), rw_error_message(b.ctx));
        free(o.gradients);
        o.gradients = all_gradients(b.ctx, &o.bytes);
        o.offset = rw_generator_get(b.ctx).offset;
        rw_tape_reset(b.t);
    }
    bench_close(&b);
    return o;
}

/* What is wrong, in words; empty when nothing is. */
static void judge(const struct program *p, char *text, size_t size)
{
    struct outcome none = run(p, "none", 1, false), other = run(p, p->policy, p->threads, true);
    text[0] = '\0';
    if (none.error[0]) snprintf(text, size, "policy none: %s", none.error);
    else if (other.error[0]) snprintf(text, size, "policy %s: %s", p->policy, other.error);
    else if (memcmp(&none.loss, &other.loss, sizeof none.loss)) snprintf(text, size, "losses %.17g and %.17g", none.loss, other.loss);
    else if (first_difference(none.gradients, other.gradients, none.bytes) >= 0) snprintf(text, size, "gradients differ");
    else if (none.offset != other.offset) snprintf(text, size, "the generator stands at %llu and %llu", (unsigned long long)none.offset,
                                                   (unsigned long long)other.offset);
    free(none.gradients);
    free(other.gradients);
}

static void shrink(struct program *p)
{
    char text[600];
    for (bool smaller = true; smaller;) {
        smaller = false;
        for (int i = 0; i < p->n; i++) {
            if (p->code[i].skip) continue;
            p->code[i].skip = true;
            judge(p, text, sizeof text);
            if (text[0]) smaller = true;
            else p->code[i].skip = false;
        }
    }
}

static void print(const struct program *p, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, "seed %llu, %s [%d, %d], policy %s, %d threads:\n", (unsigned long long)p->seed,
                                rw_dtype_name(p->dtype), p->size, p->size, p->policy, p->threads);
    for (int i = 0; i < p->n && n < size; i++)
        if (!p->code[i].skip)
            n += (size_t)snprintf(text + n, size - n, "  %s(%d, %d)\n", code_names[p->code[i].code], p->code[i].a, p->code[i].b);
}

static uint64_t from_environment(const char *name, uint64_t fallback)
{
    const char *const text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : fallback;
}

Test(fuzz, random_programs_under_random_policies, .timeout = 3000)
{
    const uint64_t count = from_environment("REWIND_FUZZ_PROGRAMS", 300), first = from_environment("REWIND_FUZZ_SEED", 1);
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct program p = make(seed);
        char text[600], listing[4096];
        judge(&p, text, sizeof text);
        if (!text[0]) continue;
        shrink(&p);
        judge(&p, text, sizeof text);
        print(&p, listing, sizeof listing);
        cr_assert_fail("%s\n%s", text, listing);
    }
}
