/*
 * Random programs with inputs that are written between requests (input_writes.c). Each runs in steps of equal
 * structure, in fresh contexts, in one context, and with REWIND_EAGER=1. Every value that is read, every gradient,
 * buffer and effect is compared with a model: a requested value binds the inputs that it depends on to the elements
 * that they have at that time, and nothing else does. Only a request that depends on an input which was written since
 * may be refused. The model computes in whole numbers that float32 represents exactly.
 *
 *   REWIND_RANDOM_WRITES_SEED       the first program (1); its steps are listed on standard error
 *   REWIND_RANDOM_WRITES_PROGRAMS   how many
 */
#include "run/recording_ops.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(ctx, call) cr_assert_eq((call), RW_OK, "%s: %s", #call, rw_error_message(ctx))

enum { SHORT = 4, LONG = RECORDING_ELEMENTS };
enum { INPUTS = 3, PARAMS = 2, STATEMENTS = 16, FIRST = INPUTS + PARAMS, VALUES = FIRST + STATEMENTS, EVENTS = 40 };
#define EXACT 65536.0 /* greatest number: sums of as many as are added are exact in float32 */

enum op { ADD, MUL, TIMES, SUM, WIDEN, TELL, NOISE, ASSIGN, GRAD, OPS };
enum call { RECORD, ITEM, READ, EVAL, EFFECTS, FORWARD, BACKWARD_FROM, BACKWARD, WRITE, CALLS };
static const char *const op_names[] = { "add", "mul", "times", "sum", "widen", "tell", "noise", "assign",
                                        "grad" };
static const char *const call_names[] = { "record", "item", "read",  "eval", "effects",
                                          "forward", "backward from", "backward", "write" };

/* A program: statement i is value FIRST + i, after the inputs and parameters. */
struct program {
    struct {
        enum op op;
        int a, b, n; /* operands, of GRAD the root and the parameter; elements */
    } s[STATEMENTS];
    struct {
        enum call call;
        int v, w; /* values */
        int share; /* of 100: so many steps make the call */
    } e[EVENTS];
    int n_statements, n_events;
    uint64_t cone[VALUES]; /* the value and those that it depends on, a bit each */
    uint64_t flow[VALUES]; /* the same for those that get gradients from it */
    bool trains; /* otherwise an evaluation */
    bool scaled; /* backward is rw_scaler_backward(), with a scale of 1 */
    const char *policy;
};

/* What the rule says about the step that runs. */
struct model {
    int n; /* statements recorded */
    struct {
        float now[SHORT], bound[SHORT];
        bool is_bound, is_stale; /* by a request; written since */
        bool is_told;            /* an op with an effect has read it ahead, in eager mode */
    } input[INPUTS];
    uint64_t held, done, requested; /* values that were read; effects that have happened; that were requested */
    double gradient[PARAMS][SHORT];
    float assigned[SHORT];
};

struct world {
    struct fixture b;
    const struct program *p;
    struct model m;
    rw_tensor *param[PARAMS], *buffer, *wide, *value[VALUES];
    rw_scaler *scaler;
    float data[PARAMS][SHORT];
    bool eager;
    uint64_t random;
    char text[4096]; /* the calls of this step */
    size_t n_text;
};

static uint32_t draw(uint64_t *random, uint32_t below)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33) % below;
}

static int elements_of(const struct program *p, int v)
{
    return v < FIRST ? SHORT : p->s[v - FIRST].n;
}

static bool is_effect(const struct program *p, int v)
{
    return v >= FIRST && (p->s[v - FIRST].op == TELL || p->s[v - FIRST].op == ASSIGN);
}

/* One of the values before v with so many elements; -1 for none. */
static int draw_value(const struct program *p, uint64_t *random, int before, int n)
{
    int found[VALUES], count = 0;
    for (int v = 0; v < before; v++) {
        if (elements_of(p, v) != n || (v >= FIRST && p->s[v - FIRST].op == ASSIGN)) continue;
        found[count++] = v;
        if (v >= FIRST) found[count++ % VALUES] = v;
        count = count < VALUES ? count : VALUES - 1;
    }
    return count ? found[draw(random, (uint32_t)count)] : -1;
}

/* The values that the gradient of a root with respect to a parameter depends on. */
static uint64_t gradient_cone(const struct program *p, int root, int param)
{
    uint64_t cone[VALUES] = { 0 };
    bool flows[VALUES] = { 0 };
    flows[root] = true;
    for (int v = root; v >= FIRST; v--) {
        const enum op op = p->s[v - FIRST].op;
        const int from[] = { p->s[v - FIRST].a, p->s[v - FIRST].b };
        for (int k = 0; flows[v] && k < 2; k++) {
            if (!(p->flow[from[k]] >> param & 1)) continue;
            flows[from[k]] = true;
            cone[from[k]] |= cone[v] | (op == MUL || op == TIMES ? p->cone[from[!k]] : 0);
        }
    }
    return cone[param];
}

static void record_event(struct program *p)
{
    p->e[p->n_events].call = RECORD;
    p->e[p->n_events].v = FIRST + p->n_statements - 1;
    p->e[p->n_events++].share = 100;
}

/* n: elements. */
static void add(struct program *p, enum op op, int a, int b, int n)
{
    const int i = p->n_statements++, v = FIRST + i;
    p->s[i].op = op, p->s[i].a = a, p->s[i].b = b, p->s[i].n = n;
    p->cone[v] = 1ull << v | (op == GRAD ? gradient_cone(p, a, b) : p->cone[a] | p->cone[b]);
    p->flow[v] = op == GRAD ? 0 : 1ull << v | p->flow[a] | p->flow[b];
    record_event(p);
}

/* A gradient, and a scalar of it and of another value, which a step may compute before the gradient. */
static void add_gradient(struct program *p, uint64_t *random, int root, int param)
{
    const int first = FIRST + p->n_statements, input = (int)draw(random, INPUTS);
    add(p, ADD, input, input, SHORT);
    add(p, GRAD, root, param, SHORT);
    add(p, MUL, first, first + 1, SHORT);
    add(p, SUM, first + 2, first + 2, 1);
}

static void add_statement(struct program *p, uint64_t *random)
{
    static const int sizes[] = { SHORT, SHORT, SHORT, 1, 1, LONG };
    const int before = FIRST + p->n_statements, i = p->n_statements;
    int a = -1, b = -1, n = 0;
    enum op op = ADD;
    while (a < 0 || b < 0) {
        op = (enum op)draw(random, p->trains ? OPS : TELL);
        n = sizes[draw(random, 6)];
        if (op == TIMES || op == ASSIGN) n = SHORT;
        if (op == SUM) n = draw(random, 2) ? SHORT : LONG;
        if (op == WIDEN || op == GRAD) n = 1;
        a = draw_value(p, random, before, n);
        b = op == ADD || op == MUL ? draw_value(p, random, before, n)
            : op == TIMES          ? draw_value(p, random, before, 1)
            : op == GRAD           ? INPUTS + (int)draw(random, PARAMS)
                                   : a;
        if (op == GRAD && (a < 0 || !(p->flow[a] >> b & 1) || i + 4 > STATEMENTS)) a = -1;
    }
    for (int k = 0; k < i; k++)
        if (op == ASSIGN && p->s[k].op == ASSIGN) op = NOISE; /* one, because all are to the same buffer */
    if (!i) op = MUL, a = 0, b = INPUTS, n = SHORT; /* something requires a gradient, so effects belong to backward */
    if (op == GRAD) add_gradient(p, random, a, b);
    else add(p, op, a, b, op == SUM ? 1 : op == WIDEN ? LONG : n);
}

static bool requires_gradient(const struct program *p, int v)
{
    return p->trains && (p->flow[v] & (((1ull << PARAMS) - 1) << INPUTS));
}

static void add_call(struct program *p, uint64_t *random, enum call call, int v, int w)
{
    if (p->n_events == EVENTS) return;
    p->e[p->n_events].call = call;
    p->e[p->n_events].v = v;
    p->e[p->n_events].w = w;
    p->e[p->n_events++].share = draw(random, 3) ? 90 : 40;
}

static void add_event(struct program *p, uint64_t *random)
{
    const int end = FIRST + p->n_statements;
    int v = FIRST + (int)draw(random, (uint32_t)p->n_statements);
    const int w = FIRST + (int)draw(random, (uint32_t)p->n_statements);
    enum call call = (enum call)(ITEM + draw(random, BACKWARD - ITEM + 1));
    if (p->scaled && call == BACKWARD_FROM) call = BACKWARD; /* sums have one scale */
    if (!p->trains && call >= EFFECTS) call = ITEM;
    const bool scalar = call == ITEM || call == FORWARD || call == BACKWARD_FROM || call == BACKWARD;
    if (scalar) v = draw_value(p, random, end, 1);
    if (v < FIRST || p->n_events == EVENTS || p->s[v - FIRST].op == ASSIGN || p->s[w - FIRST].op == ASSIGN) return;
    if (call >= FORWARD && !requires_gradient(p, v)) return;
    add_call(p, random, call, v, w);
}

/* Both halves of a step that the read of a scalar begins, and a value of its gradient: read in the step before as well,
   that value is computed with the step, by whichever call. */
static void add_halves(struct program *p, uint64_t *random)
{
    int gradient = FIRST;
    while (gradient < FIRST + p->n_statements && p->s[gradient - FIRST].op != GRAD) gradient++;
    if (gradient == FIRST + p->n_statements) return;
    const int root = draw_value(p, random, gradient, 1), first = draw_value(p, random, gradient, 1);
    if (root < FIRST || first < FIRST || !requires_gradient(p, root)) return;
    add_call(p, random, ITEM, first, first);
    add_call(p, random, FORWARD, root, root);
    add_call(p, random, WRITE, p->s[gradient - 1 - FIRST].a, 0);
    add_call(p, random, BACKWARD, root, root);
    add_call(p, random, ITEM, gradient + 2, gradient);
}

/* Statements and calls, mixed: a step may be recorded in parts. */
static struct program draw_program(uint64_t *random)
{
    struct program p = { .trains = draw(random, 4) > 0, .policy = draw(random, 3) ? "none" : "full" };
    const bool mixed = draw(random, 2);
    p.scaled = draw(random, 2);
    for (int v = 0; v < FIRST; v++) p.cone[v] = p.flow[v] = 1ull << v;
    const int n = 4 + (int)draw(random, STATEMENTS - 3);
    while (p.n_statements < n) {
        add_statement(&p, random);
        if (mixed && !draw(random, 3)) add_event(&p, random);
    }
    if (draw(random, 2)) add_halves(&p, random);
    for (int i = 0; i < 12; i++) add_event(&p, random);
    return p;
}

/* ---- the model ---- */

/* The gradients of all values, for a scalar root. False if a number is too large. */
TEST_RECKONS static bool reverse(const struct program *p, int root, double x[VALUES][LONG], double g[VALUES][LONG])
{
    bool fits = true;
    memset(g, 0, VALUES * sizeof *g);
    g[root][0] = 1;
    for (int i = root - FIRST; i >= 0; i--) {
        const int va = p->s[i].a, vb = p->s[i].b;
        const enum op op = p->s[i].op;
        const double *const dy = g[FIRST + i];
        if (op == ASSIGN || op == GRAD) continue;
        for (int k = 0; op == SUM && k < elements_of(p, va); k++) g[va][k] += dy[0];
        for (int k = 0; op != SUM && k < p->s[i].n; k++) {
            fits &= fabs(dy[k]) <= EXACT;
            if (op == WIDEN) g[va][0] += dy[k];
            else g[va][k] += op == MUL ? dy[k] * x[vb][k] : op == TIMES ? dy[k] * x[vb][0] : dy[k];
            if (op == ADD || op == MUL) g[vb][k] += op == MUL ? dy[k] * x[va][k] : dy[k];
            if (op == TIMES) g[vb][0] += dy[k] * x[va][k];
        }
    }
    return fits;
}

/* The values that are recorded, from the elements that the step is bound to. False if a number is too large. */
TEST_RECKONS static bool forward(const struct world *w, double x[VALUES][LONG])
{
    static double g[VALUES][LONG];
    double greatest = 0;
    bool fits = true;
    for (int i = 0; i < INPUTS; i++)
        for (int k = 0; k < SHORT; k++)
            x[i][k] = (double)(w->m.input[i].is_bound ? w->m.input[i].bound[k] : w->m.input[i].now[k]);
    for (int i = 0; i < PARAMS; i++)
        for (int k = 0; k < SHORT; k++) x[INPUTS + i][k] = (double)w->data[i][k];
    for (int i = 0; i < w->m.n; i++) {
        const enum op op = w->p->s[i].op;
        const double *a = x[w->p->s[i].a], *const b = x[w->p->s[i].b];
        double *const y = x[FIRST + i];
        if (op == SUM) y[0] = 0;
        if (op == GRAD) fits &= reverse(w->p, w->p->s[i].a, x, g);
        if (op == GRAD) a = g[w->p->s[i].b];
        for (int k = 0; op == SUM && k < elements_of(w->p, w->p->s[i].a); k++) y[0] += a[k];
        for (int k = 0; op != SUM && k < w->p->s[i].n; k++)
            y[k] = op == ADD ? a[k] + b[k] : op == MUL ? a[k] * b[k] : op == TIMES ? a[k] * b[0]
                   : op == WIDEN ? a[0] : a[k];
        for (int k = 0; k < w->p->s[i].n; k++) greatest = fmax(greatest, fabs(y[k]));
    }
    return fits && greatest <= EXACT;
}

/* Adds the gradients of a scalar to those of the parameters. False if a number is too large. */
TEST_RECKONS static bool backward(struct world *w, int root)
{
    static double x[VALUES][LONG], g[VALUES][LONG];
    bool fits = forward(w, x);
    fits &= reverse(w->p, root, x, g);
    for (int i = 0; i < PARAMS; i++)
        for (int k = 0; k < SHORT; k++) {
            w->m.gradient[i][k] += g[INPUTS + i][k];
            fits &= fabs(w->m.gradient[i][k]) <= EXACT;
        }
    return fits;
}

static bool is_stale(const struct world *w, uint64_t cone)
{
    bool stale = false;
    for (int i = 0; i < INPUTS; i++) stale |= (cone >> i & 1) && w->m.input[i].is_stale;
    return stale;
}

/* The program has requested values: their inputs are what they are now, and effects among them have happened. */
static void bind(struct world *w, uint64_t cone)
{
    for (int i = 0; i < INPUTS; i++) {
        if (!(cone >> i & 1) || w->m.input[i].is_bound) continue;
        memcpy(w->m.input[i].bound, w->m.input[i].now, SHORT * sizeof(float));
        w->m.input[i].is_bound = true;
    }
    for (int v = FIRST; v < FIRST + w->m.n; v++)
        if ((cone >> v & 1) && is_effect(w->p, v)) {
            w->m.done |= 1ull << v;
            w->m.requested |= 1ull << v;
        }
}

/* Does a step compute the value before its backward? Only if it is recorded before all gradients. */
static bool is_in_forward(const struct world *w, int v)
{
    bool is = true;
    for (int i = 0; i < v - FIRST; i++) is &= w->p->s[i].op != GRAD;
    return is;
}

/* The cones of the effects that have not been requested yet. forward: only of those in the forward part of a step. */
static uint64_t pending(const struct world *w, bool forward)
{
    uint64_t cone = 0;
    for (int v = FIRST; v < FIRST + w->m.n && (!forward || is_in_forward(w, v)); v++)
        if (is_effect(w->p, v) && !(w->m.requested >> v & 1)) cone |= w->p->cone[v];
    return cone;
}

static bool assigns(const struct world *w)
{
    bool does = false;
    for (int i = 0; i < w->m.n; i++) does |= w->p->s[i].op == ASSIGN;
    return does;
}

/* ---- the library beside it ---- */

/* Judges the status of a call that requests a cone of values. Only a stale one may be refused. False if it was. */
static bool is_granted(struct world *w, rw_status status, uint64_t cone)
{
    if (status == RW_ERR_MODIFIED && is_stale(w, cone)) {
        rw_error_clear(w->b.ctx);
        return false;
    }
    cr_assert_eq(status, RW_OK, "%s\n%s: %s", w->text, rw_status_name(status), rw_error_message(w->b.ctx));
    bind(w, cone);
    return true;
}

static void expect_floats(struct world *w, const float *got, const double *expected, int n, const char *what, int v)
{
    for (int k = 0; k < n; k++)
        cr_assert_eq((double)got[k], expected[k], "%s\n%s %d, element %d: %g, expected %g", w->text, what, v, k,
                     (double)got[k], expected[k]);
}

static rw_tensor *record_value(struct world *w, int v)
{
    rw_tape *const t = w->b.t;
    rw_tensor *const a = w->value[w->p->s[v - FIRST].a], *b = w->value[w->p->s[v - FIRST].b], *g;
    switch (w->p->s[v - FIRST].op) {
    case ADD: return rw_add(t, a, b);
    case MUL: return rw_mul(t, a, b);
    case TIMES: return rw_mul(t, a, rw_broadcast_to(t, b, RW_SHAPE(SHORT)));
    case SUM: return rw_sum(t, a, RW_ALL_AXES, false);
    case WIDEN: return rw_mul(t, rw_broadcast_to(t, a, RW_SHAPE(LONG)), w->wide);
    case TELL: return recording_apply(t, &recording_once, a, v - FIRST);
    case NOISE: return recording_apply(t, &recording_noise, a, STATEMENTS);
    case ASSIGN: return rw_assign(t, w->buffer, a) ? NULL : a;
    case GRAD: return rw_grad(t, a, &b, 1, &g) ? NULL : rw_detach(t, g);
    default: return NULL;
    }
}

/* False if eager mode could not compute it, because an input that it depends on was written. */
static bool record(struct world *w, int v)
{
    const uint64_t cone = w->p->cone[v];
    w->value[v] = record_value(w, v);
    if (!w->value[v] && w->eager && is_stale(w, cone)) {
        cr_assert_eq(rw_error_status(w->b.ctx), RW_ERR_MODIFIED);
        rw_error_clear(w->b.ctx);
        return false;
    }
    cr_assert(w->value[v], "%s\n%s", w->text, rw_error_message(w->b.ctx));
    w->m.n++;
    const bool runs = w->eager && w->p->s[v - FIRST].op == TELL;
    for (int i = 0; runs && i < INPUTS; i++) w->m.input[i].is_told |= cone >> i & 1;
    if (runs) w->m.done |= 1ull << v;
    return true;
}

static void read_one(struct world *w, enum call call, int v)
{
    static double x[VALUES][LONG];
    float got[LONG];
    const int n = elements_of(w->p, v);
    rw_tensor *const eval[] = { w->value[v] };
    rw_status status = RW_OK;
    if (call == ITEM) {
        got[0] = (float)rw_item(w->b.t, w->value[v]);
        status = rw_error_status(w->b.ctx);
    } else {
        if (call == EVAL) status = rw_eval(w->b.t, eval, 1);
        if (!status) status = rw_read(w->b.t, w->value[v], got, (size_t)n * sizeof *got);
    }
    if (w->m.held >> v & 1) cr_assert_eq(status, RW_OK, "%s\n%s", w->text, rw_error_message(w->b.ctx));
    else if (!is_granted(w, status, w->p->cone[v])) return;
    w->m.held |= 1ull << v;
    forward(w, x);
    expect_floats(w, got, x[v], n, "value", v);
}

static void eval_two(struct world *w, int v, int other)
{
    uint64_t cone = 0;
    for (int i = 0; i < 2; i++)
        if (!(w->m.held >> (i ? other : v) & 1)) cone |= w->p->cone[i ? other : v];
    if (!is_granted(w, rw_eval(w->b.t, (rw_tensor *[]){ w->value[v], w->value[other] }, 2), cone)) return;
    read_one(w, READ, v);
    read_one(w, READ, other);
}

/* An effect that reads a gradient happens here only if the gradient is held. */
static void run_forward(struct world *w, int v)
{
    rw_tensor *const root = w->value[v];
    const bool is_step = is_in_forward(w, v);
    const uint64_t cone = w->p->cone[v] | (is_step ? pending(w, true) : 0);
    const uint64_t all = cone | (is_step ? pending(w, false) : 0);
    const rw_status status = rw_forward(w->b.t, &root, 1);
    if (!is_granted(w, status, status ? all : cone)) return;
    for (int k = FIRST; k < FIRST + w->m.n; k++)
        if ((all >> k & 1) && w->p->s[k - FIRST].op == TELL && recording_runs[k - FIRST]) bind(w, w->p->cone[k]);
}

static void run_backward(struct world *w, enum call call, int v)
{
    rw_tensor *const root = w->value[v];
    const rw_status status = call == BACKWARD_FROM ? rw_backward_from(w->b.t, &root, NULL, 1)
                             : w->p->scaled        ? rw_scaler_backward(w->scaler, w->b.t, root)
                                                   : rw_backward(w->b.t, root);
    if (is_granted(w, status, w->p->cone[v] | pending(w, false))) backward(w, v);
}

/* Another input's elements. In eager mode an op with an effect may have read it: then nothing happens. */
static void write_input(struct world *w, int i)
{
    float data[SHORT];
    for (int k = 0; k < SHORT; k++) data[k] = (float)draw(&w->random, 5) - 1;
    const rw_status status = rw_input_write(w->value[i], data, sizeof data);
    if (w->m.input[i].is_told && !w->m.input[i].is_bound) {
        cr_assert_eq(status, RW_ERR_MODIFIED, "%s", w->text);
        rw_error_clear(w->b.ctx);
        return;
    }
    cr_assert_eq(status, RW_OK, "%s\n%s", w->text, rw_error_message(w->b.ctx));
    memcpy(w->m.input[i].now, data, sizeof data);
    w->m.input[i].is_stale = w->m.input[i].is_bound;
}

/* Gradients, the buffer and effects are what the model says. */
static void expect_state(struct world *w)
{
    static double x[VALUES][LONG];
    float got[SHORT];
    forward(w, x);
    for (int i = 0; i < PARAMS; i++) {
        OK(w->b.ctx, rw_read(NULL, rw_gradient(w->param[i]), got, sizeof got));
        expect_floats(w, got, w->m.gradient[i], SHORT, "gradient", i);
    }
    for (int v = FIRST; v < FIRST + w->m.n; v++) {
        const bool done = w->m.done >> v & 1;
        if (w->p->s[v - FIRST].op == TELL) {
            const int runs = recording_runs[v - FIRST];
            cr_assert_eq(runs, done, "%s\neffect of %d: %d times", w->text, v, runs);
            if (done) expect_floats(w, recording_read[v - FIRST], x[v], elements_of(w->p, v), "effect", v);
        }
        if (w->p->s[v - FIRST].op != ASSIGN || !done) continue;
        for (int k = 0; k < SHORT; k++) w->m.assigned[k] = (float)x[v][k];
    }
    OK(w->b.ctx, rw_read(NULL, w->buffer, got, sizeof got));
    for (int k = 0; k < SHORT; k++)
        cr_assert_eq(got[k], w->m.assigned[k], "%s\nbuffer: %g, expected %g", w->text, (double)got[k],
                     (double)w->m.assigned[k]);
}

static void note(struct world *w, enum call call, int v, int other)
{
    w->n_text += (size_t)snprintf(w->text + w->n_text, sizeof w->text - w->n_text, "  %s %d", call_names[call], v);
    if (call == RECORD)
        w->n_text += (size_t)snprintf(w->text + w->n_text, sizeof w->text - w->n_text, " %s %d %d",
                                      op_names[w->p->s[v - FIRST].op], w->p->s[v - FIRST].a, w->p->s[v - FIRST].b);
    if (call == EVAL) w->n_text += (size_t)snprintf(w->text + w->n_text, sizeof w->text - w->n_text, " %d", other);
    if (w->n_text < sizeof w->text - 1) w->text[w->n_text++] = '\n', w->text[w->n_text] = '\0';
}

/* One call of the program. False if the step ends with it. */
static bool call(struct world *w, enum call call, int v, int other)
{
    note(w, call, v, other);
    switch (call) {
    case RECORD: return record(w, v);
    case EVAL:
        if (v != other) {
            eval_two(w, v, other);
            break;
        } /* fall through */
    case ITEM:
    case READ: read_one(w, call, v); break;
    case EFFECTS:
        is_granted(w, rw_eval_effects(w->b.t), pending(w, false));
        break;
    case FORWARD: /* while the step is suspended, it holds what an assignment has read; later it may not */
        if (!assigns(w)) run_forward(w, v);
        break;
    case BACKWARD_FROM:
    case BACKWARD: run_backward(w, call, v); break;
    case WRITE: write_input(w, v); break;
    default: break;
    }
    expect_state(w);
    return true;
}

static void open_world(struct world *w, const struct program *p, bool eager)
{
    static const char *const names[PARAMS] = { "p", "q" };
    if (eager) setenv("REWIND_EAGER", "1", 1);
    w->b = fixture_open(7, 1);
    unsetenv("REWIND_EAGER");
    w->p = p;
    w->eager = eager;
    for (int i = 0; i < PARAMS; i++) {
        w->param[i] = rw_param(w->b.ctx, names[i], RW_F32, RW_SHAPE(SHORT));
        for (int k = 0; k < SHORT; k++) w->data[i][k] = (float)((k + i) % 3) - 1;
        OK(w->b.ctx, rw_write(w->param[i], w->data[i], sizeof w->data[i]));
    }
    w->buffer = rw_buffer(w->b.ctx, "b", RW_F32, RW_SHAPE(SHORT));
    w->wide = rw_buffer(w->b.ctx, "wide", RW_F32, RW_SHAPE(LONG));
    OK(w->b.ctx, rw_init_constant(w->wide, 1));
    OK(w->b.ctx, rw_init_constant(w->buffer, 0));
    OK(w->b.ctx, ckpt_set_policy(w->b.t, p->policy));
    OK(w->b.ctx, rw_scaler_create(&w->scaler, w->b.ctx, &(rw_scaler_params){ .init_scale = 1 }));
    memset(w->m.assigned, 0, sizeof w->m.assigned);
}

static void close_world(struct world *w)
{
    rw_scaler_destroy(&w->scaler);
    fixture_close(&w->b);
}

static void run_step(struct world *w, int writes)
{
    float assigned[SHORT];
    memcpy(assigned, w->m.assigned, sizeof assigned);
    memset(&w->m, 0, sizeof w->m);
    memcpy(w->m.assigned, assigned, sizeof assigned);
    memset(recording_runs, 0, sizeof recording_runs);
    w->n_text = 0;
    rw_zero_grad(w->b.ctx);
    if (!w->p->trains) OK(w->b.ctx, rw_no_grad_begin(w->b.t));
    for (int i = 0; i < INPUTS; i++) {
        for (int k = 0; k < SHORT; k++) w->m.input[i].now[k] = (float)((k + 2 * i) % 4) - 1;
        w->value[i] = rw_input(w->b.t, RW_F32, RW_SHAPE(SHORT), w->m.input[i].now, SHORT * sizeof(float));
    }
    for (int i = 0; i < PARAMS; i++) w->value[INPUTS + i] = w->param[i];
    bool goes_on = true;
    for (int i = 0; goes_on && i < w->p->n_events; i++) {
        if (draw(&w->random, 100) < (uint32_t)writes) call(w, WRITE, (int)draw(&w->random, INPUTS), 0);
        if ((int)draw(&w->random, 100) >= w->p->e[i].share) continue;
        goes_on = call(w, w->p->e[i].call, w->p->e[i].v, w->p->e[i].w);
    }
    if (!w->p->trains && goes_on) OK(w->b.ctx, rw_no_grad_end(w->b.t));
    rw_tape_reset(w->b.t);
}

/* Does every number of the program stay small, whatever is written? */
static bool is_exact(const struct program *p)
{
    static double x[VALUES][LONG];
    static struct world w;
    memset(&w, 0, sizeof w);
    w.p = p;
    w.m.n = p->n_statements;
    for (int i = 0; i < INPUTS; i++)
        for (int k = 0; k < SHORT; k++) w.m.input[i].now[k] = 3;
    for (int i = 0; i < PARAMS; i++)
        for (int k = 0; k < SHORT; k++) w.data[i][k] = 1;
    bool fits = forward(&w, x);
    for (int i = 0; fits && i < p->n_events; i++)
        if (p->e[i].call == BACKWARD || p->e[i].call == BACKWARD_FROM) fits = backward(&w, p->e[i].v);
    return fits;
}

/* Steps in fresh contexts, in one, and in eager mode. */
Test(random_writes, bind_as_the_model_says, .timeout = 600)
{
    const char *const first = getenv("REWIND_RANDOM_WRITES_SEED");
    const char *const count = getenv("REWIND_RANDOM_WRITES_PROGRAMS");
    const uint64_t from = first ? strtoull(first, NULL, 10) : 1;
    const uint64_t n = count ? strtoull(count, NULL, 10) : (uint64_t)test_steps(600, 40);
    static struct world w;
    for (uint64_t seed = from; seed < from + n; seed++) {
        uint64_t random = seed * 0x9e3779b97f4a7c15u;
        struct program p = draw_program(&random);
        while (!is_exact(&p)) p = draw_program(&random);
        for (int mode = 0; mode < 3; mode++) {
            memset(&w, 0, sizeof w);
            w.random = random;
            open_world(&w, &p, mode == 2);
            for (int step = 0; step < 4; step++) {
                if (getenv("REWIND_RANDOM_WRITES_SEED"))
                    fprintf(stderr, "seed %llu, mode %d, step %d\n", (unsigned long long)seed, mode, step);
                run_step(&w, step % 2 ? 30 : 4);
                if (mode || step == 3) continue;
                close_world(&w);
                open_world(&w, &p, false);
            }
            close_world(&w);
        }
    }
}
