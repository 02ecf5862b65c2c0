/* Generates a session from a seed, and its variants. */
#include "whole/metamorphic/random_session.h"
#include "whole/fuzz/generate.h"

#include <stdlib.h>
#include <string.h>

const char *const mm_names[MM_KINDS] = {
    [MM_STATEMENT] = "statement",
    [MM_ZERO] = "rw_zero_grad",
    [MM_BACKWARD] = "rw_backward",
    [MM_FORWARD] = "rw_forward",
    [MM_EVAL] = "rw_eval",
    [MM_ITEM] = "rw_item",
    [MM_READ] = "rw_read",
    [MM_WRITE] = "rw_write",
    [MM_GRADIENTS] = "gradients",
    [MM_DRAW] = "rw_rand",
    [MM_UNSCALE] = "rw_scaler_unscale",
    [MM_CLIP] = "rw_clip_grad_norm",
    [MM_OPTIMIZE] = "rw_optimizer_step",
    [MM_UPDATE] = "rw_scaler_update",
    [MM_AVERAGE] = "rw_weight_average_step",
    [MM_STATE] = "state",
    [MM_RESET] = "rw_tape_reset",
    [MM_X_READ] = "extra rw_read",
    [MM_X_ITEM] = "extra rw_item",
    [MM_X_EVAL] = "extra rw_eval",
    [MM_X_EVAL_NOTHING] = "extra rw_eval of nothing",
    [MM_X_FORWARD] = "extra rw_forward",
    [MM_X_VERIFY] = "extra ckpt_verify",
    [MM_X_PLAN] = "extra rw_tape_plan",
    [MM_X_COST] = "extra rw_tape_cost",
    [MM_X_EXPLAIN] = "extra ckpt_explain",
    [MM_X_STATS] = "extra rw_memory_stats",
    [MM_X_NONFINITE] = "extra rw_find_nonfinite",
    [MM_X_THREADS] = "extra rw_context_set_threads",
    [MM_X_ZERO] = "extra rw_zero_grad",
    [MM_X_SAVE] = "extra rw_checkpoint_save",
    [MM_X_LOAD] = "extra save and load",
    [MM_X_FAIL] = "extra failure of the next call",
    [MM_X_GRAPH] = "extra graph not launched",
    [MM_X_POLICY] = "extra ckpt_set_policy",
    [MM_X_OTHER] = "extra tape",
    [MM_X_COPY] = "extra copy before rw_assign",
    [MM_X_VIEW] = "extra view of gradients",
    [MM_X_ROLLBACK] = "extra step rolled back",
    [MM_X_LEFT_OUT] = "extra step left out",
    [MM_X_SKIPPED] = "extra step skipped by the scaler",
    [MM_X_AVERAGE] = "extra averages",
};

const char *const mm_modes[MM_MODES] = { "plain", "REWIND_EAGER=1", "REWIND_VERIFY=1", "REWIND_VERIFY=digest",
                                         "REWIND_POLICY=full" };

struct mm_session *mm_new(void)
{
    struct mm_session *const s = calloc(1, sizeof *s);
    for (int i = 0; s && i < MM_TAPES; i++)
        if (!(s->body[i] = calloc(1, sizeof *s->body[i]))) abort();
    if (!s) abort();
    return s;
}

void mm_free(struct mm_session *s)
{
    for (int i = 0; i < MM_TAPES; i++) free(s->body[i]);
    free(s);
}

void mm_copy(struct mm_session *to, const struct mm_session *from)
{
    struct fz_program *body[MM_TAPES];
    memcpy(body, to->body, sizeof body);
    *to = *from;
    memcpy(to->body, body, sizeof body);
    for (int i = 0; i < from->tapes; i++) *to->body[i] = *from->body[i];
}

bool mm_without(const char *name)
{
    const char *const list = getenv("REWIND_METAMORPHIC_WITHOUT");
    const size_t length = strlen(name);
    for (const char *at = list; at && (at = strstr(at, name)); at += length)
        if ((at == list || at[-1] == ',') && (!at[length] || at[length] == ',')) return true;
    return false;
}

/* ---- the plain script ---- */

/* Events of one tape, in order. */
struct queue {
    int n, at;
    struct mm_event event[MM_EVENTS];
};

struct maker {
    struct fz_generator g; /* for its random numbers */
    struct mm_session *s;
    struct queue queue[MM_TAPES];
    bool writes;
};

static struct mm_event *add(struct maker *m, int tape, enum mm_kind kind, int a)
{
    struct queue *const q = &m->queue[tape];
    if (q->n == MM_EVENTS) abort();
    struct mm_event *const e = &q->event[q->n++];
    *e = (struct mm_event){ .kind = (uint8_t)kind, .tape = (uint8_t)tape, .steps = 0xff, .a = (int16_t)a,
                            .word = (uint32_t)fz_random(&m->g) };
    return e;
}

/* A floating-point value of the tape computed by an op; newer ones more often. */
static int a_value(struct fz_generator *g, const struct fz_program *p, bool leaves)
{
    int found[FZ_STATEMENTS * FZ_OUTS], n = 0;
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->s[i].n_out && !p->s[i].dropped; k++) {
            const int v = i * FZ_OUTS + k;
            if (fz_op(p->s[i].op)->flags & FZ_CONTEXT) continue;
            if (rw_dtype_is_float(p->s[i].out[k].dtype) && (leaves || !fz_is_leaf(p, v))) found[n++] = v;
        }
    if (!n) return -1;
    return fz_chance(g, 40) ? found[n - 1 - fz_below(g, n < 4 ? n : 4)] : found[fz_below(g, n)];
}

static void add_read(struct maker *m, int tape, enum mm_kind kind)
{
    const int v = a_value(&m->g, m->s->body[tape], false);
    if (v >= 0) add(m, tape, kind, v);
}

static void end_training(struct maker *m, int k)
{
    const struct fz_program *const p = m->s->body[k];
    const int loss = (int)fz_below(&m->g, p->n_losses);
    if (fz_chance(&m->g, m->writes ? 70 : 30)) add(m, k, MM_ITEM, loss);
    if (fz_chance(&m->g, 15)) add(m, k, MM_FORWARD, loss);
    if (fz_chance(&m->g, 10)) add_read(m, k, MM_READ);
    if (m->writes) add(m, k, fz_chance(&m->g, 70) ? MM_WRITE : MM_ZERO, (int)fz_below(&m->g, 2));
    add(m, k, MM_BACKWARD, loss);
    if (fz_chance(&m->g, 25) && !m->writes) add(m, k, MM_BACKWARD, (int)fz_below(&m->g, p->n_losses));
    if (fz_chance(&m->g, 30)) add_read(m, k, MM_READ);
    if (fz_chance(&m->g, 50)) add(m, k, MM_ITEM, loss);
}

/* One backward, before which nothing has been executed; in the last step possibly of another loss, by a graph of its
   own. */
static void end_launch(struct maker *m)
{
    const struct fz_program *const p = m->s->body[0];
    const int last = m->s->steps - 1;
    struct mm_event *const first = add(m, 0, MM_BACKWARD, 0);
    if (p->n_losses > 1 && m->s->graph == MM_BARE && fz_chance(&m->g, 50) && !mm_without("second graph")) {
        first->steps = (uint8_t)~(1 << last);
        add(m, 0, MM_BACKWARD, 1)->steps = (uint8_t)(1 << last);
    } else if (fz_chance(&m->g, 50)) {
        add(m, 0, MM_ITEM, 0);
    }
    if (fz_chance(&m->g, 50)) add(m, 0, MM_DRAW, 0);
}

static void end_evaluation(struct maker *m, int k)
{
    if (fz_chance(&m->g, 30)) add_read(m, k, MM_READ);
    add_read(m, k, MM_EVAL);
    if (fz_chance(&m->g, 30)) add_read(m, k, MM_EVAL);
    if (fz_chance(&m->g, 50)) add_read(m, k, MM_READ);
}

static void fill_queue(struct maker *m, int k)
{
    const struct fz_program *const p = m->s->body[k];
    for (int i = 0; i < p->n; i++)
        if (!(fz_op(p->s[i].op)->flags & FZ_CONTEXT)) add(m, k, MM_STATEMENT, i);
    if (m->s->graph && k == 0) end_launch(m);
    else if (m->s->trains[k]) end_training(m, k);
    else end_evaluation(m, k);
    if (fz_chance(&m->g, 15) && !m->s->graph) add(m, k, MM_DRAW, 0);
}

static void append(struct mm_session *s, struct mm_event e)
{
    if (e.kind != MM_STATEMENT && mm_without(mm_names[e.kind])) return;
    if (s->n == MM_EVENTS) abort();
    s->event[s->n++] = e;
}

static void put(struct maker *m, enum mm_kind kind, int tape)
{
    append(m->s, (struct mm_event){ .kind = (uint8_t)kind, .tape = (uint8_t)tape, .steps = 0xff });
}

/* Interleaves the tapes' events. */
static void merge(struct maker *m)
{
    /* A graph draws its numbers when it is launched, a step when it is recorded: nothing may draw in between. */
    for (struct queue *q = &m->queue[0]; m->s->graph && q->at < q->n && q->event[q->at].kind <= MM_BACKWARD;)
        append(m->s, q->event[q->at++]);
    for (;;) {
        int left = 0;
        for (int k = 0; k < m->s->tapes; k++) left += m->queue[k].at < m->queue[k].n;
        if (!left) return;
        const int k = (int)fz_below(&m->g, m->s->tapes);
        struct queue *const q = &m->queue[k];
        for (int64_t n = 1 + fz_below(&m->g, 24); n > 0 && q->at < q->n; n--) append(m->s, q->event[q->at++]);
    }
}

/* Appends the events of the end of a step: gradients, clip, update, state and resets. */
static void end_step(struct maker *m)
{
    struct mm_session *const s = m->s;
    const bool late = s->scales || s->graph, compares = s->graph != MM_INSIDE;
    for (int k = 0; k < s->tapes && !late; k++) put(m, MM_GRADIENTS, k);
    if (s->scales) put(m, MM_UNSCALE, 0);
    if (fz_chance(&m->g, 30)) put(m, MM_CLIP, 0);
    const bool resets_first = fz_chance(&m->g, 30) && !late;
    for (int k = 0; k < s->tapes && resets_first; k++) put(m, MM_RESET, k);
    if (s->optimizer) put(m, MM_OPTIMIZE, 0);
    if (s->scales) put(m, MM_UPDATE, 0);
    for (int k = 0; k < s->tapes && late && compares; k++) put(m, MM_GRADIENTS, k);
    if (s->averages) put(m, MM_AVERAGE, 0);
    put(m, MM_STATE, 0);
    for (int k = 0; k < s->tapes && !resets_first; k++) put(m, MM_RESET, k);
}

/* Draws the settings that stay fixed for the whole session. */
static void choose_settings(struct maker *m)
{
    struct fz_generator *const g = &m->g;
    struct mm_session *const s = m->s;
    const int64_t tapes = fz_below(g, 10);
    s->tapes = tapes < 5 ? 1 : tapes < 8 ? 2 : 3;
    s->steps = 2 + (int)fz_below(g, 2);
    s->optimizer = (int)fz_below(g, 6);
    s->graph = fz_chance(g, 25) ? MM_BARE + (enum mm_graph)fz_below(g, 3) : MM_NO_GRAPH;
    if (s->graph > MM_BARE && !s->optimizer) s->optimizer = 1;
    s->scales = s->optimizer && s->graph != MM_BARE && fz_chance(g, 25);
    s->averages = fz_chance(g, 20);
    s->threads = 1;
    if (s->graph > MM_BARE) s->tapes = 1; /* others would read the parameters that the launch updates */
    strcpy(s->policy, "none");
}

void mm_generate(struct mm_session *s, uint64_t seed)
{
    struct maker *const m = calloc(1, sizeof *m);
    struct fz_program *body[MM_TAPES];
    if (!m) abort();
    memcpy(body, s->body, sizeof body);
    memset(s, 0, sizeof *s);
    memcpy(s->body, body, sizeof body);
    s->seed = seed;
    m->s = s;
    m->g.state = seed * 0xd1342543de82ef95u + 11;
    choose_settings(m);
    const uint64_t shapes = fz_random(&m->g);
    const bool reads_gradients = !s->graph && !s->scales && fz_chance(&m->g, 20);
    m->writes = !s->graph && !s->scales && fz_chance(&m->g, reads_gradients ? 50 : 8);
    for (int k = 0; k < s->tapes; k++) {
        s->trains[k] = s->graph ? k == 0 : fz_chance(&m->g, 65);
        const struct mm_body how = { .seed = fz_random(&m->g),
                                     .shapes = shapes,
                                     .part = k,
                                     .length = 4 + (int)fz_below(&m->g, fz_chance(&m->g, 20) ? 26 : 10),
                                     .first = k ? s->body[0] : NULL,
                                     .trains = s->trains[k],
                                     .effects = fz_chance(&m->g, 50) &&
                                                (s->trains[k] || !mm_without("evaluated effects")),
                                     .reads_gradients = reads_gradients };
        mm_make_body(s->body[k], &how);
    }
    s->shared = 3;
    put(m, MM_ZERO, 0);
    if (!s->scales && !s->graph && fz_chance(&m->g, 25)) s->event[0].steps = 0x05;
    for (int k = 0; k < s->tapes; k++) fill_queue(m, k);
    merge(m);
    end_step(m);
    for (int i = 0; i < s->n; i++) s->event[i].id = (int16_t)i;
    free(m);
}

/* ---- variants ---- */

/* Weight of each kind. */
static const uint8_t weights[MM_KINDS] = {
    [MM_X_READ] = 14,  [MM_X_ITEM] = 8,      [MM_X_EVAL] = 8,   [MM_X_EVAL_NOTHING] = 2, [MM_X_FORWARD] = 6,
    [MM_X_VERIFY] = 5, [MM_X_PLAN] = 3,      [MM_X_COST] = 3,   [MM_X_EXPLAIN] = 1,      [MM_X_STATS] = 1,
    [MM_X_NONFINITE] = 3, [MM_X_THREADS] = 2, [MM_X_ZERO] = 4,  [MM_X_SAVE] = 1,         [MM_X_LOAD] = 3,
    [MM_X_FAIL] = 14,  [MM_X_GRAPH] = 5,     [MM_X_POLICY] = 6, [MM_X_OTHER] = 4,        [MM_X_COPY] = 6,
    [MM_X_VIEW] = 4,   [MM_X_ROLLBACK] = 3,  [MM_X_LEFT_OUT] = 4, [MM_X_SKIPPED] = 3,    [MM_X_AVERAGE] = 1
};

static enum mm_kind a_kind(struct fz_generator *g)
{
    int sum = 0, kind = 0;
    for (int i = 0; i < MM_KINDS; i++) sum += weights[i];
    for (int64_t at = fz_below(g, sum); (at -= weights[kind]) >= 0;) kind++;
    return (enum mm_kind)kind;
}

static struct mm_event an_extra(struct fz_generator *g, const struct mm_session *s, const struct mm_event *before)
{
    struct mm_event e = { .kind = (uint8_t)a_kind(g), .tape = (uint8_t)fz_below(g, s->tapes), .id = -1,
                          .steps = (uint8_t)(fz_chance(g, 50) ? 0xff : 1 << fz_below(g, s->steps)),
                          .word = (uint32_t)fz_random(g) };
    if (fz_chance(g, 70) && before->tape < s->tapes) e.tape = before->tape;
    const struct fz_program *const p = s->body[e.tape];
    if (e.kind == MM_X_READ || e.kind == MM_X_EVAL) e.a = (int16_t)a_value(g, p, true);
    else if (p->n_losses) e.a = (int16_t)fz_below(g, p->n_losses);
    else e.a = -1;
    return e;
}

static void choose_mode(struct fz_generator *g, struct mm_session *s)
{
    const int64_t mode = fz_below(g, 100);
    s->mode = mode < 60 ? MM_PLAIN : mode < 72 ? MM_EAGER : mode < 80 ? MM_VERIFY : mode < 88 ? MM_DIGEST : MM_FULL;
    if (mm_without(mm_modes[s->mode])) s->mode = MM_PLAIN;
    if (fz_chance(g, 60)) fz_make_policy(g, s->policy);
    s->threads = 1 + (int)fz_below(g, 3);
    s->launches = s->graph && fz_chance(g, 70);
}

/* Whether statements of one tape may be recorded before another tape is executed: neither affects the other. */
static bool is_independent(const struct mm_session *s)
{
    bool independent = s->tapes > 1 && !s->graph;
    for (int i = 0; i < s->n; i++) {
        const int kind = s->event[i].kind;
        independent &= kind != MM_WRITE && kind != MM_DRAW && (kind != MM_ZERO || i == 0);
    }
    for (int k = 0; k < s->tapes; k++) independent &= !mm_has(s->body[k], "gradient");
    return independent;
}

/* All tapes are recorded before anything is executed. */
static void record_first(struct mm_session *s)
{
    struct mm_event *const kept = malloc(sizeof s->event);
    if (!kept) abort();
    memcpy(kept, s->event, sizeof s->event);
    int n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < s->n; i++)
            if ((kept[i].kind == MM_STATEMENT || i == 0) == !pass) s->event[n++] = kept[i];
    free(kept);
}

void mm_vary(struct mm_session *to, const struct mm_session *plain, uint64_t variant)
{
    static const int densities[] = { 0, 2, 5, 15 };
    struct fz_generator *const g = calloc(1, sizeof *g);
    if (!g) abort();
    g->state = (plain->seed * 0xd1342543de82ef95u + variant * 0xbf58476d1ce4e5b9u) ^ 0x5851f42d4c957f2du;
    mm_copy(to, plain);
    to->variant = variant;
    if (variant) {
        struct mm_session *const order = mm_new();
        choose_mode(g, to);
        mm_copy(order, plain);
        if (is_independent(order) && fz_chance(g, 40)) record_first(order);
        const int density = densities[fz_below(g, 4)];
        to->n = 0;
        for (int i = 0; i < order->n; i++) {
            const int kind = order->event[i].kind, more = kind == MM_STATEMENT ? density : 2 * density + 2;
            while (fz_chance(g, more) && to->n < MM_EVENTS - (order->n - i))
                append(to, an_extra(g, order, &order->event[i]));
            append(to, order->event[i]);
        }
        mm_free(order);
    }
    free(g);
}
