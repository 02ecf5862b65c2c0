/*
 * Invalid calls, each in a process of its own. None ends the process; each is refused with the status that the headers
 * state and a message that names the function, what was expected and what was given. It leaves the tape unchanged
 * (nodes, values, tickets, hash) and does not write to its destinations. Then a step on the same objects has the same
 * bytes as one without a refused call. A program without Criterion: a line of the table is a test.
 */
#include "api/mistakes/table.h"

#include <rewind/rewind.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void (*const tables[])(struct trial *, struct world *) = {
#define MISTAKES(table) table,
#include "test_tables.h"
};

/* The state that a failed call may not change. */
struct state {
    struct rw_tape_mark mark;
    size_t regions, retained, params;
    rw_generator_state generator;
    uint64_t ticket_end;
};

/* The report of a trial's process. */
struct verdict {
    int at; /* number of lines in the table, if this one was not found */
    bool found, unnamed, one_sided, left, touched, wrong, broken;
    rw_status expected, got;
    char call[256], message[512];
};

static struct state before[3];
static bool prints_messages;
static struct verdict *verdict; /* shared with the process of a trial, which may end at any point */

static struct state state_of(const rw_tape *t)
{
    return t ? (struct state){ rw_tape_mark(t), t->n_regions, t->n_retained, t->ctx->n_params, t->ctx->generator,
                               t->ticket_end }
             : (struct state){ 0 };
}

static bool is_same(const struct state *a, const struct state *b)
{
    const struct rw_tape_mark *const x = &a->mark, *const y = &b->mark;
    return x->nodes == y->nodes && x->operands == y->operands && x->attrs == y->attrs && x->values == y->values &&
           x->leaves == y->leaves && x->tickets == y->tickets && x->effects == y->effects && x->words == y->words &&
           x->hash.a == y->hash.a && x->hash.b == y->hash.b && a->regions == b->regions && a->retained == b->retained &&
           a->params == b->params && a->generator.seed == b->generator.seed &&
           a->generator.offset == b->generator.offset && a->ticket_end == b->ticket_end;
}

static void look(const struct world *w, struct state *s)
{
    s[0] = state_of(w->t);
    s[1] = state_of(w->other);
    s[2] = state_of(w->alien_t);
}

static void begin(struct trial *m)
{
    look(m->world, before);
}

static bool is_at(struct trial *m, const char *function, const char *call, rw_status expected, bool silent)
{
    if (m->at++ != m->wanted) return false;
    m->chosen = true;
    m->function = function;
    m->call = call;
    m->expected = expected;
    m->silent = silent;
    snprintf(verdict->call, sizeof verdict->call, "%s: %s", function, call);
    return true;
}

static void make_parameters(struct world *w)
{
    w->p = rw_param(w->ctx, "p", RW_F32, RW_SHAPE(2, 3));
    w->w = rw_param(w->ctx, "w", RW_F32, RW_SHAPE(5, 3));
    w->vector = rw_param(w->ctx, "vector", RW_F32, RW_SHAPE(3));
    w->table = rw_param(w->ctx, "table", RW_F32, RW_SHAPE(7, 3));
    w->bias = rw_param(w->ctx, "bias", RW_F32, RW_SHAPE(5));
    w->buffer = rw_buffer(w->ctx, "buffer", RW_F32, RW_SHAPE(2, 3));
    rw_init_constant(w->p, 1);
    w->p_grad = rw_gradient(w->p);
    rw_adamw_create(&w->opt, w->ctx, NULL);
}

static rw_tensor *input(rw_tape *t, rw_dtype dtype, rw_shape shape)
{
    return rw_input(t, dtype, shape, NULL, 0);
}

/* Makes stale tensors. */
static void make_dead(struct world *w)
{
    rw_tape *tape = NULL;
    rw_tape_create(&tape, w->ctx);
    w->gone = rw_tanh(tape, input(tape, RW_F32, RW_SHAPE(2, 3)));
    rw_tape_destroy(&tape);
    w->dead_input = input(w->t, RW_F32, RW_SHAPE(2, 3));
    w->dead = rw_tanh(w->t, w->dead_input);
    rw_tape_reset(w->t);
    for (int i = 0; i < 2; i++) {
        if (i) rw_tape_reset(w->other);
        w->foreign = rw_require_grad(w->other, input(w->other, RW_F32, RW_SHAPE(2, 3)));
        rw_backward(w->other, rw_mean(w->other, w->foreign, RW_ALL_AXES, false));
        *(i ? &w->v_grad : &w->dead_grad) = rw_gradient(w->foreign);
    }
}

/* Records one tensor of each kind. */
static void make_values(struct world *w)
{
    rw_tape *const t = w->t;
    w->x = input(t, RW_F32, RW_SHAPE(2, 3));
    w->y = input(t, RW_F32, RW_SHAPE(2, 3));
    w->v = rw_tanh(t, w->x);
    w->transposed = rw_transpose(t, w->v, 0, 1);
    w->image = rw_permute(t, rw_zeros(t, RW_F32, RW_SHAPE(1, 2, 2, 3)), (const int[]){ 0, 3, 1, 2 });
    w->four = input(t, RW_F32, RW_SHAPE(4));
    w->matrix = input(t, RW_F32, RW_SHAPE(3, 5));
    w->cube = input(t, RW_F32, RW_SHAPE(2, 3, 4));
    w->heads = input(t, RW_F32, RW_SHAPE(1, 2, 3, 4));
    w->wide = input(t, RW_F64, RW_SHAPE(2, 3));
    w->half = input(t, RW_BF16, RW_SHAPE(2, 3));
    w->index = input(t, RW_I32, RW_SHAPE(2));
    w->scalar = input(t, RW_F32, RW_SCALAR);
    w->empty = input(t, RW_F32, RW_SHAPE(0, 3));
    w->vast = rw_broadcast_to(t, w->scalar, RW_SHAPE((int64_t)1 << 29, (int64_t)1 << 29));
    w->loss = rw_sum(t, rw_mul(t, w->p, w->x), RW_ALL_AXES, false);
}

static void open_world(struct world *w, const char *path)
{
    const struct fixture here = fixture_open(1, 1), far = fixture_open(2, 1);
    *w = (struct world){ .ctx = here.ctx, .t = here.t, .alien_ctx = far.ctx, .alien_t = far.t, .path = path };
    memset(w->out, UNTOUCHED, sizeof w->out);
    memset(w->parts, UNTOUCHED, sizeof w->parts);
    rw_tape_create(&w->other, w->ctx);
    make_parameters(w);
    make_dead(w);
    make_values(w);
    w->alien = rw_tanh(far.t, input(far.t, RW_F32, RW_SHAPE(2, 3)));
    w->alien_p = rw_param(far.ctx, "far", RW_F32, RW_SHAPE(2, 3));
}

static void close_world(struct world *w)
{
    rw_optimizer_destroy(&w->opt);
    rw_tape_destroy(&w->t);
    rw_tape_destroy(&w->other);
    rw_tape_destroy(&w->alien_t);
    rw_context_destroy(&w->ctx);
    rw_context_destroy(&w->alien_ctx);
}

static bool works(struct world *w)
{
    if (!w->t || !w->ctx) return true; /* a trial of destruction */
    rw_error_clear(w->ctx);
    ckpt_set_policy(w->t, "none");
    rw_tape_reset(w->t);
    rw_zero_grad(w->ctx);
    float g[6] = { 0 };
    rw_tensor *const y = rw_sum(w->t, rw_scale(w->t, w->p, 3), RW_ALL_AXES, false);
    if (rw_backward(w->t, y) || rw_read(NULL, w->p_grad, g, sizeof g)) return false;
    return g[0] == 3 && g[5] == 3;
}

/* The results of a step on the world's own objects: gradients, then parameters. */
struct result {
    rw_status status;
    float loss, p_grad[6], w_grad[15], bias_grad[5], p[6], w[15], bias[5];
};

static struct result as_fresh; /* of a world without refused calls */

static rw_tensor *record_step(struct world *w)
{
    float x[6], weight[15];
    for (int i = 0; i < 6; i++) x[i] = (float)(i - 2) / 4;
    for (int i = 0; i < 15; i++) weight[i] = (float)(i % 7 - 3) / 8;
    rw_write(w->w, weight, sizeof weight);
    rw_generator_set(w->ctx, (rw_generator_state){ 11, 5 });
    ckpt_begin(w->t, "block");
    rw_tensor *h = rw_mul(w->t, w->p, rw_input(w->t, RW_F32, RW_SHAPE(2, 3), x, sizeof x));
    h = rw_dropout(w->t, rw_gelu(w->t, rw_linear(w->t, h, w->w, w->bias)), 0.5);
    ckpt_end(w->t);
    return rw_mean(w->t, rw_mul(w->t, h, h), RW_ALL_AXES, false);
}

/* Runs a step on the world's objects, and returns its results. */
static struct result step_of(struct world *w)
{
    struct result r;
    memset(&r, 0, sizeof r);
    rw_error_clear(w->ctx);
    rw_tape_reset(w->t);
    rw_zero_grad(w->ctx);
    ckpt_set_policy(w->t, "full");
    rw_tensor *const loss = record_step(w);
    r.status = rw_backward(w->t, loss);
    r.loss = (float)rw_item(w->t, loss);
    rw_read(NULL, w->p_grad, r.p_grad, sizeof r.p_grad);
    rw_read(NULL, rw_gradient(w->w), r.w_grad, sizeof r.w_grad);
    rw_read(NULL, rw_gradient(w->bias), r.bias_grad, sizeof r.bias_grad);
    if (!r.status) r.status = rw_optimizer_step(w->opt);
    rw_read(NULL, w->p, r.p, sizeof r.p);
    rw_read(NULL, w->w, r.w, sizeof r.w);
    rw_read(NULL, w->bias, r.bias, sizeof r.bias);
    if (!r.status) r.status = rw_error_status(w->ctx);
    return r;
}

/* After a refused call, a step on the same objects has the bytes of a world without it. */
static bool steps_as_fresh(struct world *w)
{
    if (!w->t || !w->ctx || !w->opt) return true;
    const struct result got = step_of(w);
    if (!memcmp(&got, &as_fresh, sizeof got)) return true;
    printf("#   a step afterwards: %s, loss %.9g where %.9g is expected; %s\n", rw_status_name(got.status),
           (double)got.loss, (double)as_fresh.loss, rw_error_message(w->ctx));
    return false;
}

/* Whether the message names the function, without the prefix of ops, and has the text that may follow it after ": ". */
static bool names(const char *message, const char *function)
{
    char name[64];
    const size_t n = strcspn(function, ":");
    snprintf(name, sizeof name, "%.*s", (int)n, function);
    return strstr(message, !strncmp(name, "rw_", 3) ? name + 3 : name) && strstr(message, function + n);
}

/* Whether the message has both what was expected and what was given; for a NULL argument the former is enough. */
static bool tells_both_sides(const char *message)
{
    return (strstr(message, "expected ") && strstr(message, " got ")) || strstr(message, " is NULL; expected ");
}

static bool is_about_arguments(rw_status status)
{
    return status == RW_ERR_ARGUMENT || status == RW_ERR_SHAPE || status == RW_ERR_DTYPE;
}

/* Checks message, status and state after the call, and stores the verdict. */
static void judge(const struct trial *m, struct world *w)
{
    struct verdict *const v = verdict;
    struct state after[3];
    look(w, after);
    const char *const text = rw_error_message(w->ctx), *const far = rw_error_message(w->alien_ctx);
    snprintf(v->message, sizeof v->message, "%s", *text ? text : *far ? far : rw_error_message(NULL));
    v->expected = m->expected;
    v->got = m->got;
    v->wrong = m->got != m->expected;
    v->unnamed = m->silent && m->expected == RW_OK ? false : !names(v->message, m->function);
    v->one_sided = is_about_arguments(m->expected) && !tells_both_sides(v->message);
    if (m->expected != RW_OK)
        for (int i = 0; i < 3; i++) v->left |= !is_same(&before[i], &after[i]);
    for (size_t i = 0; i < sizeof w->out; i++) v->touched |= w->out[i] != UNTOUCHED;
    if (m->expected != RW_OK) v->broken = !steps_as_fresh(w);
    v->broken |= !works(w);
}

static void try(int line, const char *path)
{
    struct world w;
    struct trial m = { .wanted = line, .is_at = is_at, .begin = begin, .world = &w };
    open_world(&w, path);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) tables[i](&m, &w);
    verdict->found = m.chosen;
    verdict->at = m.at;
    if (m.chosen) judge(&m, &w);
    close_world(&w);
}

/* How the process ended: 0, or the signal that ended it, or -1. */
static int run(int line, const char *path)
{
    int status = 0;
    memset(verdict, 0, sizeof *verdict);
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) return -1;
    if (child == 0) {
        alarm(120);
        try(line, path);
        exit(0);
    }
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) ? -1 : 0;
}

/* Prints the result of one line as TAP. */
static bool report(int line, int end, const struct verdict *v)
{
    const bool ok = !end && !v->unnamed && !v->one_sided && !v->left && !v->touched && !v->wrong && !v->broken;
    printf("%s %d - %s\n", ok ? "ok" : "not ok", line + 1, v->call);
    if (ok && !prints_messages) return true;
    if (ok) {
        printf("#   %s: %s\n", rw_status_name(v->got), v->message);
        return true;
    }
    if (end) printf("#   the process ended: %s\n", end > 0 ? strsignal(end) : "exit status");
    if (v->wrong)
        printf("#   %s where %s is expected\n", rw_status_name(v->got), rw_status_name(v->expected));
    if (v->unnamed) printf("#   no message that names the function\n");
    if (v->one_sided) printf("#   the message lacks what was expected or what was given\n");
    if (v->left) printf("#   the tape is not what it was\n");
    if (v->touched) printf("#   an output was touched\n");
    if (v->broken) printf("#   the context does not work afterwards\n");
    printf("#   message: %s\n", v->message);
    return false;
}

/* Runs the line with a given number, or all: --tap; --messages also prints each message. */
int main(int argc, char **argv)
{
    char path[] = "/tmp/rewind-mistakes-XXXXXX";
    const int file = mkstemp(path), only = argc > 1 && argv[1][0] != '-' ? atoi(argv[1]) - 1 : -1;
    int crashed = 0, unnamed = 0, one_sided = 0, left = 0, failed = 0, n = 0;
    prints_messages = argc > 1 && !strcmp(argv[1], "--messages");
    unsetenv("REWIND_POLICY");
    if (file < 0) return 1;
    if (write(file, "no weights", 10) != 10) return 1;
    close(file);
    verdict = mmap(NULL, sizeof *verdict, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (verdict == MAP_FAILED) return 1;
    struct world fresh;
    open_world(&fresh, path);
    as_fresh = step_of(&fresh);
    close_world(&fresh);
    if (as_fresh.status) {
        printf("not ok 1 - a step in which nothing was refused: %s\n", rw_status_name(as_fresh.status));
        return 1;
    }
    if (only >= 0) {
        try(only, path);
        remove(path);
        return !report(only, 0, verdict);
    }
    run(-1, path);
    n = verdict->at;
    for (int line = 0; line < n; line++) {
        const int end = run(line, path);
        failed += !report(line, end, verdict);
        crashed += end != 0;
        unnamed += !end && verdict->unnamed;
        one_sided += !end && verdict->one_sided;
        left += !end && verdict->left;
    }
    printf("1..%d\n# %d mistakes: %d crashed, %d unnamed, %d one-sided, %d left something on the tape, %d failed in "
           "all\n", n, n, crashed, unnamed, one_sided, left, failed);
    remove(path);
    return failed != 0 || n < 250;
}
