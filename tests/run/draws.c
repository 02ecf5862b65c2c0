/*
 * Law 3 over whole processes: no two draws share a Philox word, and a repeated draw (a replay, a mask in backward, a
 * value read twice) has the words of the first time.
 *
 * Programs make random calls on three tapes: ops are recorded, values read, steps run backward, verified and searched
 * for NaN, graphs created, launched and destroyed, tapes reset, the generator set, parameters initialized, checkpoints
 * saved and loaded, kernels fail. The oracle is independent of the library's accounting: the kernel of the test's own
 * op records the seed and the first block that it receives, and the test itself determines which draw that has to be.
 *
 *     a draw    an op, as recorded or of one launch of a graph
 *     recorded  the op's draw until a graph of its tape is launched, and in the first launch of a tape
 *     launched  its draw from a later launch on, until the next, if it was recorded before that graph
 *
 * A launch that fails draws nothing. Loading a checkpoint undoes the draws after it was saved.
 *
 * REWIND_DRAWS_PROGRAMS=10000 REWIND_DRAWS_SEED=1 runs as many programs, from a seed on.
 */
#include "support/support.h"

#include <rewind/ops.h>

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAPES = 3, OPS = 10, GRAPHS = 2, PARAMS = 4, DRAWS = 4096, SEEN = 65536, CALLS = 50, NONE = -1 };

/* ---- the test's own ops, which record what their kernels receive ---- */

struct call_of {
    int64_t tape, op, n;
};

static struct seen {
    int tape, op;
    rw_ticket ticket;
    uint64_t blocks;
} seen[SEEN];
static int n_seen;
static int fail_in; /* the n-th kernel from now on fails; 0: none */

static rw_status words_cpu(const rw_kernel *k)
{
    const struct call_of *const c = k->attrs;
    const int64_t n = k->out[0].layout->numel;
    cr_assert_lt(n_seen, SEEN);
    seen[n_seen++] = (struct seen){ (int)c->tape, (int)c->op, k->ticket, (uint64_t)(n + 3) / 4 };
    for (int64_t i = 0; i < n; i++) {
        uint64_t x = (k->ticket.seed ^ (k->ticket.offset + (uint64_t)i / 4) * 0x9e3779b97f4a7c15u) + (uint64_t)i % 4;
        x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
        const float factor = (float)(x >> 40) * 0x1p-24f + 0.5f;
        ((float *)k->out[0].data)[i] = k->n_inputs ? ((const float *)k->in[0].data)[i] * factor : factor;
    }
    return fail_in && !--fail_in ? RW_ERR_DEVICE : RW_OK;
}

static rw_status noise_check(rw_op_call *call)
{
    return rw_op_output(call, 0, RW_F32, RW_SHAPE(((const struct call_of *)call->attrs)->n));
}

static rw_status mask_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static const rw_op_def noise = { .name = "noise_words", .n_inputs = 0, .n_outputs = 1, .check = noise_check,
                                 .flags = RW_OP_RANDOM | RW_OP_NO_GRADIENT,
                                 .kernel = { [RW_DEVICE_CPU] = words_cpu } };

static rw_status mask_grad(rw_grad_call *g);
static const rw_op_def mask = { .name = "mask_words", .n_inputs = 1, .n_outputs = 1, .check = mask_check,
                                .flags = RW_OP_RANDOM, .inplace = RW_INPLACE({ 0, 0 }),
                                .kernel = { [RW_DEVICE_CPU] = words_cpu }, .grad = mask_grad };

/* As in dropout: the same mask once more. */
static rw_status mask_grad(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &mask, &dy, 1, rw_grad_attrs(g), sizeof(struct call_of), NULL));
}

/* ---- expected draws ---- */

struct draw {
    bool known, live; /* its words were seen; no checkpoint has undone it */
    uint64_t seed, first, blocks;
};

/* The test's knowledge of one tape. */
struct taped {
    rw_tape *t;
    uint64_t steps;
    rw_tensor *loss, *x[OPS], *p[OPS];
    int n; /* ops */
    int recorded[OPS], launched[OPS], n_launched; /* draws; those of the last launch's ops */
    bool used; /* the recorded draws were launched, or a checkpoint was loaded */
    struct graphed {
        rw_graph *g;
        uint64_t step;
        int n; /* number of ops when it was created */
    } graph[GRAPHS];
};

struct program {
    uint64_t number, state;
    rw_context *ctx;
    rw_tensor *p[PARAMS];
    struct taped tape[TAPES];
    struct draw draws[DRAWS];
    int n_draws, n_saved; /* numbers of draws when the checkpoint was saved */
    uint64_t seeds;
    rw_checkpoint *ck;
    bool has_saved, has_loaded;
    char calls[8192]; /* the calls that the program has made */
};

static struct {
    int programs, launches, later_launches, failures, loads, repeated, draws, reads;
} total;

static uint64_t chance(struct program *w, uint64_t n)
{
    w->state ^= w->state << 13;
    w->state ^= w->state >> 7;
    w->state ^= w->state << 17;
    return (w->state >> 20) % n;
}

static void note(struct program *w, const char *call, int tape, rw_status status)
{
    const size_t used = strlen(w->calls);
    snprintf(w->calls + used, sizeof w->calls - used, "%s(%d)%s%s ", call, tape, status ? ": " : "",
             status ? rw_status_name(status) : "");
}

static int new_draw(struct program *w)
{
    cr_assert_lt(w->n_draws, DRAWS);
    w->draws[w->n_draws] = (struct draw){ .live = true };
    total.draws++;
    return w->n_draws++;
}

static void claim(struct program *w, struct draw *d, uint64_t seed, uint64_t first, uint64_t blocks)
{
    const struct draw words = { true, d->live, seed, first, blocks };
    for (int i = 0; d->live && i < w->n_draws; i++) {
        const struct draw *const o = &w->draws[i];
        if (o == d || !o->known || !o->live || o->seed != seed) continue;
        cr_assert(first + blocks <= o->first || o->first + o->blocks <= first,
                  "program %" PRIu64 ": draws %d and %d share words: blocks %" PRIu64 "+%" PRIu64 " and %" PRIu64
                  "+%" PRIu64 "\n%s", w->number, i, (int)(d - w->draws), o->first, o->blocks, first, blocks, w->calls);
    }
    *d = words;
}

/* Checks the draws that kernels have received since the last check. */
static void judge(struct program *w)
{
    for (int i = 0; i < n_seen; i++) {
        const struct seen *const s = &seen[i];
        const struct taped *const k = &w->tape[s->tape];
        struct draw *const d = &w->draws[s->op < k->n_launched ? k->launched[s->op] : k->recorded[s->op]];
        if (d->known) {
            total.repeated++;
            cr_assert(d->seed == s->ticket.seed && d->first == s->ticket.offset && d->blocks == s->blocks,
                      "program %" PRIu64 ": op %d of tape %d drew block %" PRIu64 ", then %" PRIu64 "\n%s", w->number,
                      s->op, s->tape, d->first, s->ticket.offset, w->calls);
        } else {
            claim(w, d, s->ticket.seed, s->ticket.offset, s->blocks);
        }
    }
    n_seen = 0;
}

/* Calls may be refused, because a value changed or a tape was executed. Differing bytes are a bug of the library. */
static void done(struct program *w, const char *call, int tape, rw_status status)
{
    note(w, call, tape, status);
    judge(w);
    if (!status) return;
    cr_assert_neq(status, RW_ERR_MISMATCH, "program %" PRIu64 ": %s\n%s", w->number, rw_error_message(w->ctx),
                  w->calls);
    rw_error_clear(w->ctx);
}

/* ---- calls ---- */

/* Records a random op, sometimes in a region, and adds its sum to the tape's loss. */
static void record(struct program *w, int tape)
{
    struct taped *const k = &w->tape[tape];
    if (k->n == OPS) return;
    const int op = k->n++;
    rw_tensor *x = k->p[op] = w->p[chance(w, PARAMS)];
    const struct call_of c = { tape, op, rw_tensor_shape(x).dim[0] };
    const bool region = chance(w, 2);
    k->recorded[op] = new_draw(w);
    if (region) ckpt_begin(k->t, "r");
    if (chance(w, 2)) x = rw_mul(k->t, x, rw_apply(k->t, &noise, NULL, 0, &c, sizeof c, NULL));
    else x = rw_apply(k->t, &mask, &x, 1, &c, sizeof c, NULL);
    x = rw_mul(k->t, x, x);
    if (region) ckpt_end(k->t);
    k->x[op] = x;
    rw_tensor *const sum = rw_sum(k->t, x, RW_ALL_AXES, false);
    k->loss = k->loss ? rw_add(k->t, k->loss, sum) : sum;
    done(w, "record", tape, rw_error_status(w->ctx));
}

static void read_one(struct program *w, int tape)
{
    struct taped *const k = &w->tape[tape];
    float x[32];
    if (!k->n) return;
    rw_tensor *const v = k->x[chance(w, (uint64_t)k->n)];
    done(w, "read", tape, rw_read(k->t, v, x, rw_tensor_bytes(v)));
    total.reads++;
}

/* A random action on a tape's step: read, backward, verification or search for NaN. */
static void step(struct program *w, int tape)
{
    struct taped *const k = &w->tape[tape];
    if (!k->n) return;
    rw_tensor *grad = NULL, *p = k->p[chance(w, (uint64_t)k->n)];
    ckpt_report report;
    rw_nonfinite found;
    switch (chance(w, 6)) {
    case 0: rw_item(k->t, k->loss); done(w, "item", tape, rw_error_status(w->ctx)); break;
    case 1: done(w, "verify", tape, ckpt_verify(k->t, k->loss, &report)); break;
    case 2: done(w, "nonfinite", tape, rw_find_nonfinite(k->t, k->loss, 0, &found)); break;
    case 3:
        done(w, "grad", tape, rw_grad(k->t, k->loss, &p, 1, &grad));
        if (grad) done(w, "eval", tape, rw_eval(k->t, &grad, 1));
        break;
    default: done(w, "backward", tape, rw_backward(k->t, k->loss));
    }
}

static void graph(struct program *w, int tape)
{
    struct taped *const k = &w->tape[tape];
    struct graphed *const g = &k->graph[chance(w, GRAPHS)];
    if (!k->n) return;
    rw_graph_destroy(&g->g);
    const rw_status status = rw_graph_create(&g->g, k->t, k->loss, NULL);
    *g = (struct graphed){ g->g, k->steps, k->n };
    done(w, "graph", tape, status);
}

/* The draws of a launch are determined before it runs, and discarded if it fails. */
static void launch(struct program *w, int tape)
{
    struct taped *const k = &w->tape[tape], before = *k;
    const struct graphed *const g = &k->graph[chance(w, GRAPHS)];
    if (!g->g) return;
    if (chance(w, 8)) rw_zero_grad(w->ctx);
    judge(w);
    const int n_draws = w->n_draws;
    k->n_launched = k->used && g->step == k->steps ? g->n : 0;
    for (int i = 0; i < k->n_launched; i++) k->launched[i] = new_draw(w);
    /* ops recorded before a checkpoint was loaded may share words with those recorded afterwards */
    const rw_status status = w->has_loaded ? rw_graph_launch(g->g) : audited_launch(g->g, k->t);
    if (status) {
        total.failures++;
        n_seen = 0;
        *k = before;
        w->n_draws = n_draws;
    } else {
        total.launches++;
        total.later_launches += k->used;
        k->used = true;
    }
    done(w, "launch", tape, status);
}

static void forget_graphs(struct taped *k)
{
    for (int i = 0; i < GRAPHS; i++) rw_graph_destroy(&k->graph[i].g);
}

static void reset(struct program *w, int tape)
{
    struct taped *const k = &w->tape[tape];
    if (chance(w, 4)) forget_graphs(k);
    rw_tape_reset(k->t);
    k->steps++;
    k->loss = NULL;
    k->n = k->n_launched = 0;
    k->used = false;
    if (chance(w, 2)) ckpt_set_policy(k->t, chance(w, 2) ? "full" : "none");
    done(w, "reset", tape, rw_error_status(w->ctx));
}

/* A step recorded in order to be launched. */
static void begin(struct program *w, int tape)
{
    reset(w, tape);
    for (uint64_t n = 1 + chance(w, 4); n; n--) record(w, tape);
    for (uint64_t n = 1 + chance(w, 3); n; n--) graph(w, tape);
}

/* Draws of the context: an initializer, or a new state of the generator that was not used before. */
static void draw(struct program *w)
{
    const rw_generator_state at = rw_generator_get(w->ctx);
    if (chance(w, 2)) {
        rw_init_uniform(w->p[1], 0.5, 1.5);
        struct draw *const d = &w->draws[new_draw(w)];
        claim(w, d, at.seed, at.offset, rw_generator_get(w->ctx).offset - at.offset);
        done(w, "init", NONE, rw_error_status(w->ctx));
    } else {
        rw_generator_set(w->ctx, (rw_generator_state){ ++w->seeds, chance(w, 3) ? chance(w, 1000) : UINT64_MAX - 9 });
        done(w, "set", NONE, RW_OK);
    }
}

static void save(struct program *w)
{
    if (!w->ck) return;
    const rw_status status = rw_checkpoint_save(w->ck, 1, NULL, 0);
    if (!status) w->n_saved = w->n_draws;
    w->has_saved |= !status;
    done(w, "save", NONE, status);
}

/* Loads the saved checkpoint; draws made after the save count as undone. */
static void load(struct program *w)
{
    rw_checkpoint_found found = { 0 };
    if (!w->has_saved) return;
    for (int i = 0; i < TAPES; i++) /* a recorded step without a graph prevents loading */
        if (!w->tape[i].graph[0].g && !w->tape[i].graph[1].g && chance(w, 8)) reset(w, i);
    const rw_status status = rw_checkpoint_load(w->ck, &found);
    if (!status) {
        cr_assert(found.found);
        total.loads++;
        w->has_loaded = true;
        for (int i = w->n_saved; i < w->n_draws; i++) w->draws[i].live = false;
        for (int i = 0; i < TAPES; i++) w->tape[i].used |= w->tape[i].n > 0;
    }
    done(w, "load", NONE, status);
}

/* Makes one random call. */
static void call(struct program *w)
{
    const int tape = (int)chance(w, TAPES);
    const uint64_t what = chance(w, 40);
    if (!chance(w, 10)) fail_in = 1 + (int)chance(w, 4);
    if (what < 12) launch(w, tape);
    else if (what < 16) fail_in = 0, begin(w, tape);
    else if (what < 22) fail_in = 0, record(w, tape);
    else if (what < 26) read_one(w, tape);
    else if (what < 31) step(w, tape);
    else if (what < 32) graph(w, tape);
    else if (what < 33) reset(w, tape);
    else if (what < 35) draw(w);
    else if (what < 36) save(w);
    else if (what < 38) load(w);
    else rw_zero_grad(w->ctx);
    fail_in = 0;
}

/* ---- programs ---- */

static const char *folder_name;

static void set_mode(struct program *w)
{
    static const char *const verify[] = { NULL, NULL, NULL, "1", "digest" };
    const char *const v = verify[chance(w, 5)];
    unsetenv("REWIND_EAGER");
    unsetenv("REWIND_VERIFY");
    if (v) setenv("REWIND_VERIFY", v, 1);
    if (!chance(w, 5)) setenv("REWIND_EAGER", "1", 1);
}

/* Runs one program in a context of its own. */
static void run_program(uint64_t number)
{
    static struct program w;
    memset(&w, 0, sizeof w);
    w.number = number;
    w.state = (number + 1) * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < 8; i++) chance(&w, 2);
    set_mode(&w);
    w.seeds = 1;
    struct fixture b = fixture_open(1, 1);
    w.ctx = b.ctx;
    for (int i = 0; i < PARAMS; i++) {
        char name[8];
        snprintf(name, sizeof name, "p%d", i);
        w.p[i] = rw_param(w.ctx, name, RW_F32, RW_SHAPE(1 + 5 * i));
        rw_init_constant(w.p[i], 1);
    }
    for (int i = 0; i < TAPES; i++)
        if (i) cr_assert_eq(rw_tape_create(&w.tape[i].t, w.ctx), RW_OK);
        else w.tape[i].t = b.t;
    if (!chance(&w, 4))
        cr_assert_eq(rw_checkpoint_create(&w.ck, w.ctx, &(rw_checkpoint_params){ .folder = folder_name, .keep = 1 }),
                     RW_OK, "%s", rw_error_message(w.ctx));
    for (int i = 0; i < CALLS; i++) call(&w);
    total.programs++;
    for (int i = 0; i < TAPES; i++) forget_graphs(&w.tape[i]);
    for (int i = 1; i < TAPES; i++) rw_tape_destroy(&w.tape[i].t);
    rw_checkpoint_destroy(&w.ck);
    fixture_close(&b);
}

static uint64_t number_from(const char *variable, uint64_t otherwise)
{
    const char *const text = getenv(variable);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

Test(draws, no_word_is_drawn_twice, .timeout = 3600)
{
    NEEDS_HOST_MEMORY(); /* a captured kernel is called only once, at its capture */
    char folder[96], command[128];
    const bool in_memory = !access("/dev/shm", W_OK); /* checkpoints wait for a disk */
    snprintf(folder, sizeof folder, "%.60s/rewind-draws-XXXXXX", in_memory ? "/dev/shm" : P_tmpdir);
    cr_assert_not_null(mkdtemp(folder));
    folder_name = folder;
    const uint64_t first = number_from("REWIND_DRAWS_SEED", 0);
    const uint64_t programs = number_from("REWIND_DRAWS_PROGRAMS", (uint64_t)test_steps(1000, 100));
    for (uint64_t i = 0; i < programs; i++) run_program(first + i);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    cr_assert_eq(system(command), 0);
    if (getenv("REWIND_TEST_SHOW"))
        fprintf(stderr, "# %d programs: %d draws, %d repeated; %d launches, %d of them later ones, %d failed; "
                "%d reads, %d loads\n", total.programs, total.draws, total.repeated, total.launches,
                total.later_launches, total.failures, total.reads, total.loads);
    cr_assert_gt(total.later_launches, total.programs / 2, "launches that draw: %d", total.later_launches);
    cr_assert_gt(total.failures, total.programs / 20);
    cr_assert_gt(total.loads, total.programs / 200);
}
