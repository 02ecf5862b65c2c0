/*
 * Shrinks a session by delta debugging: settings, events, then the statements of each tape by the passes of the
 * shrinker of programs (fz_reduce()). A candidate that still fails in the same way replaces the best one.
 */
#include "whole/metamorphic/judge.h"
#include "whole/fuzz/shrink.h"

#include <stdlib.h>
#include <string.h>

struct shrinker {
    struct mm_court *court;
    struct mm_session *best, *next;
    struct mm_verdict wanted;
};

/* Takes *next if it fails as wanted. */
static bool accept(struct shrinker *s)
{
    const struct mm_verdict v = mm_judge(s->court, s->next);
    if (!mm_same_failure(&v, &s->wanted)) return false;
    mm_copy(s->best, s->next);
    s->wanted = v;
    return true;
}

/* ---- settings ---- */

/* Simplifies setting number k; false if there is nothing to simplify. */
static bool set(struct mm_session *s, int k)
{
    const bool no_policy = !strcmp(s->policy, "none");
    switch (k) {
    case 0: return s->mode && (s->mode = MM_PLAIN, true);
    case 1: return s->threads > 1 && (s->threads = 1, true);
    case 2: return !no_policy && (strcpy(s->policy, "none"), true);
    case 3: return !no_policy && strcmp(s->policy, "full") && (strcpy(s->policy, "full"), true);
    case 4: return s->launches && (s->launches = false, true);
    case 5: return !s->launches && s->graph && (s->graph = MM_NO_GRAPH, true);
    case 6: return s->scales && (s->scales = false, true);
    case 7: return s->averages && (s->averages = false, true);
    case 8: return s->optimizer > 1 && (s->optimizer = 1, true);
    case 9: return s->optimizer && s->graph < MM_UPDATES && (s->optimizer = 0, true);
    case 10: return s->tapes > 1 && (s->tapes--, true);
    default: return s->steps > 1 && (s->steps--, true);
    }
}

/* Drops events whose objects have been removed. */
static void drop_orphans(struct mm_session *s)
{
    for (int i = 0; i < s->n; i++) {
        struct mm_event *const e = &s->event[i];
        const bool scales = e->kind == MM_UNSCALE || e->kind == MM_UPDATE || e->kind == MM_X_SKIPPED;
        e->dropped |= e->tape >= s->tapes || (scales && !s->scales) || (e->kind == MM_AVERAGE && !s->averages) ||
                      (e->kind == MM_OPTIMIZE && !s->optimizer);
    }
}

static bool shrink_settings(struct shrinker *s)
{
    bool any = false;
    for (int k = 0; k < 12; k++) {
        mm_copy(s->next, s->best);
        if (!set(s->next, k)) continue;
        drop_orphans(s->next);
        any |= accept(s);
    }
    return any;
}

/* ---- events ---- */

/* A graph is launched in every step, and each launch does what it was created for. */
static bool is_needed(const struct mm_session *s, const struct mm_event *e)
{
    const bool updates = e->kind == MM_UNSCALE || e->kind == MM_CLIP || e->kind == MM_OPTIMIZE || e->kind == MM_UPDATE;
    if (updates && (s->scales || s->graph > MM_BARE)) return true; /* a scaled gradient is compared when unscaled */
    return s->graph && (e->kind == MM_BACKWARD || e->kind == MM_ZERO || e->kind == MM_RESET);
}

/* If nothing is trained, effects happen with the evaluation: without it extra calls would be the first to execute
   them. */
static bool has_effects(const struct mm_session *s, const struct mm_event *e)
{
    return e->kind == MM_EVAL && mm_has_effects(s->body[e->tape]);
}

static bool is_droppable(const struct mm_session *s, const struct mm_event *e, bool extra)
{
    return !e->dropped && e->kind != MM_STATEMENT && mm_is_extra(e->kind) == extra && !is_needed(s, e) &&
           !has_effects(s, e);
}

/* Drops `size` events at a time, for all sizes from half of them down to one. */
static bool shrink_events(struct shrinker *s, bool extra)
{
    bool any = false;
    for (int size = s->best->n; size > 0; size = size == 1 ? 0 : (size + 1) / 2)
        for (int from = s->best->n; from > 0; from -= size) {
            bool changes = false;
            mm_copy(s->next, s->best);
            for (int i = from - size < 0 ? 0 : from - size; i < from; i++)
                if (is_droppable(s->next, &s->next->event[i], extra)) s->next->event[i].dropped = changes = true;
            if (changes) any |= accept(s);
        }
    return any;
}

/* Reduces the session to one step. */
static bool shrink_steps(struct shrinker *s)
{
    bool any = false;
    for (int i = 0; i < s->best->n; i++)
        for (int step = 0; step < s->best->steps; step++) {
            const struct mm_event *const e = &s->best->event[i];
            const int in = e->steps & ((1 << s->best->steps) - 1);
            if (!is_droppable(s->best, e, mm_is_extra(e->kind)) || !(in & (in - 1))) continue;
            mm_copy(s->next, s->best);
            s->next->event[i].steps &= (uint8_t)~(1 << step);
            if (s->next->event[i].steps != e->steps) any |= accept(s);
        }
    return any;
}

/* ---- statements ---- */

static bool reads_value(const struct mm_event *e)
{
    return !e->dropped && (e->kind == MM_READ || e->kind == MM_EVAL || e->kind == MM_X_READ || e->kind == MM_X_EVAL) &&
           e->a >= 0;
}

/* The values that events read become actions of the program, so that they count as used. */
static void note_reads(struct mm_session *s, int k)
{
    struct fz_program *const p = s->body[k];
    p->n_actions = 0;
    for (int i = 0; i < s->n && p->n_actions < FZ_ACTIONS; i++) {
        bool known = !reads_value(&s->event[i]) || s->event[i].tape != k;
        for (int j = 0; j < p->n_actions; j++) known |= p->action[j].value == s->event[i].a;
        const struct fz_statement *const made = known ? NULL : &p->s[s->event[i].a / FZ_OUTS];
        if (!made || made->dropped || s->event[i].a % FZ_OUTS >= made->n_out) continue;
        p->action[p->n_actions++] = (struct fz_action){ .kind = FZ_READ, .value = s->event[i].a };
    }
}

/* Updates the events of values that have moved, and drops the recording of removed statements. */
static void follow(struct mm_session *s, int k, const struct fz_program *before)
{
    const struct fz_program *const p = s->body[k];
    for (int i = 0; i < s->n; i++) {
        struct mm_event *const e = &s->event[i];
        if (e->tape != k) continue;
        if (e->kind == MM_STATEMENT) e->dropped |= p->s[e->a].dropped;
        for (int j = 0; reads_value(e) && j < before->n_actions; j++)
            if (before->action[j].value == e->a) {
                e->a = p->action[j].value;
                break;
            }
    }
}

/* Applies one pass of the shrinker of programs to tape k. */
static bool shrink_statements(struct shrinker *s, int k, int pass)
{
    bool any = false;
    struct fz_program *const before = malloc(sizeof *before);
    if (!before) abort();
    for (int candidate = 0;; candidate++) {
        mm_copy(s->next, s->best);
        note_reads(s->next, k);
        *before = *s->next->body[k];
        const enum fz_candidate c = fz_reduce(before, s->next->body[k], pass, candidate);
        if (c == FZ_NO_MORE) break;
        if (c == FZ_SKIP) continue;
        follow(s->next, k, before);
        any |= accept(s);
    }
    free(before);
    return any;
}

struct mm_verdict mm_shrink(struct mm_court *c, struct mm_session *session, bool statements)
{
    struct shrinker s = { .court = c, .best = mm_new(), .next = mm_new() };
    mm_copy(s.best, session);
    s.wanted = mm_judge(c, session);
    for (bool smaller = mm_is_failure(&s.wanted); smaller;) {
        smaller = shrink_events(&s, true);
        smaller |= shrink_settings(&s);
        smaller |= shrink_events(&s, false);
        smaller |= shrink_steps(&s);
        for (int pass = 0; statements && pass < FZ_REDUCTIONS; pass++)
            for (int k = 0; k < s.best->tapes; k++) smaller |= shrink_statements(&s, k, pass);
    }
    mm_copy(session, s.best);
    mm_free(s.best);
    mm_free(s.next);
    return s.wanted;
}

/* ---- printing ---- */

static const char *const optimizers[] = { "none", "SGD", "SGD with momentum", "AdamW", "Adam", "Lion" };
static const char *const graphs[] = { "", "forward and backward", "with the update",
                                      "with the update inside backward" };

/* Prints one event as a call. */
static void print_event(FILE *out, const struct mm_session *s, const struct mm_event *e)
{
    const struct fz_program *const p = s->body[e->tape];
    if (e->dropped || e->tape >= s->tapes) return;
    if (e->kind == MM_STATEMENT) {
        if (p->s[e->a].dropped || (fz_op(p->s[e->a].op)->flags & FZ_CONTEXT)) return;
        fprintf(out, "t%d", e->tape);
        fz_print_statement(out, p, e->a);
        return;
    }
    fprintf(out, "t%d          %s%s", e->tape, mm_is_extra(e->kind) ? "+ " : "", mm_names[e->kind]);
    if (e->kind == MM_READ || e->kind == MM_EVAL || e->kind == MM_X_READ || e->kind == MM_X_EVAL)
        fprintf(out, " v%d[%d]", e->a / FZ_OUTS, e->a % FZ_OUTS);
    else if (e->a >= 0 && e->a < p->n_losses &&
             (e->kind == MM_BACKWARD || e->kind == MM_FORWARD || e->kind == MM_ITEM || mm_is_extra(e->kind)))
        fprintf(out, " (loss v%d)", p->loss[e->a] / FZ_OUTS);
    fprintf(out, "   /* steps");
    for (int i = 0; i < s->steps; i++)
        if (e->steps >> i & 1) fprintf(out, " %d", i);
    fprintf(out, ", word %u */\n", e->word);
}

void mm_print(FILE *out, const struct mm_session *s, const struct mm_verdict *v)
{
    fprintf(out, "%s: %s\n", mm_failures[v->failure], v->text);
    fprintf(out, "again: REWIND_METAMORPHIC_SEED=%llu REWIND_METAMORPHIC_VARIANT=%llu REWIND_METAMORPHIC_RUNS=1\n",
            (unsigned long long)s->seed, (unsigned long long)s->variant);
    fprintf(out, "shrunk: %d steps, optimizer %s%s%s%s%s; the variant: mode %s, policy %s, %d threads%s\n", s->steps,
            optimizers[s->optimizer], s->scales ? ", scaler" : "", s->averages ? ", averages" : "",
            s->graph ? ", graph " : "", graphs[s->graph], mm_modes[s->mode], s->policy, s->threads,
            s->launches ? ", launches" : "");
    for (int k = 0; k < s->tapes; k++)
        for (int i = 0; i < s->body[k]->n; i++)
            if (!s->body[k]->s[i].dropped && (fz_op(s->body[k]->s[i].op)->flags & FZ_CONTEXT) && (!k || i >= s->shared))
                fprintf(out, "t%d", k), fz_print_statement(out, s->body[k], i);
    for (int i = 0; i < s->n; i++) print_event(out, s, &s->event[i]);
}
