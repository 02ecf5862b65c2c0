/*
 * Inserts the copies of offloaded values into a schedule: finds them, places copies out and in by predicted times, and
 * renumbers the actions.
 */
#include "remat/schedule/copy_schedule.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One value that is copied out and back. Actions are numbered without the moves. */
struct rw_trip {
    uint32_t buffer;
    uint32_t out_after;  /* the last read of forward */
    uint32_t out_wait;   /* the action that waits for the copy out */
    uint32_t in_before;  /* the copy in begins before this action */
    uint32_t first_late; /* and this one waits for it */
    double out_end;      /* predicted time at which the copy out ends */
};

struct planner {
    const struct rw_problem *p;
    struct rw_schedule *s;
    struct rw_copy_schedule_scratch *scratch;
    double *time; /* action -> predicted time at which it begins; one more entry for the end */
    struct rw_trip *trip;
    size_t n;
};

static bool is_moved(const struct rw_choice *c, const struct rw_schedule *s, uint32_t buffer)
{
    const struct rw_buffer *const b = &s->buffers[buffer];
    return b->source == RW_NONE_ID && b->value != RW_NONE_ID && !b->replay && b->first < s->n_forward &&
           b->last >= s->n_forward && c->fate[b->value].what == RW_MOVE;
}

static bool any_is_moved(const struct rw_choice *c, const struct rw_schedule *s)
{
    for (uint32_t i = 0; i < s->n_buffers; i++)
        if (is_moved(c, s, i)) return true;
    return false;
}

/* Finds the offloaded buffers, with the last read of forward and the first of backward. */
static void find_trips(struct planner *w, const struct rw_choice *c)
{
    const struct rw_schedule *const s = w->s;
    uint32_t *const of = w->scratch->of;
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        of[i] = is_moved(c, s, i) ? (uint32_t)w->n : RW_NONE_ID;
        if (of[i] != RW_NONE_ID) w->trip[w->n++] = (struct rw_trip){ .buffer = i, .first_late = RW_NONE_ID };
    }
    double time = 0;
    for (uint32_t i = 0; i < s->n_actions; i++) {
        w->time[i] = time;
        time += rw_problem_seconds(w->p, s->actions[i].node);
        for (uint32_t k = 0; k < s->actions[i].n_words; k++) {
            const uint32_t t = of[s->refs[s->actions[i].word + k]];
            if (t == RW_NONE_ID) continue;
            if (i < s->n_forward) w->trip[t].out_after = i;
            else if (w->trip[t].first_late == RW_NONE_ID) w->trip[t].first_late = i;
        }
    }
    w->time[s->n_actions] = time;
}

static int by_out(const void *pa, const void *pb)
{
    const struct rw_trip *const a = pa, *const b = pb;
    if (a->out_after != b->out_after) return a->out_after < b->out_after ? -1 : 1;
    return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

static int by_in(const void *pa, const void *pb)
{
    const struct rw_trip *const a = pa, *const b = pb;
    if (a->first_late != b->first_late) return a->first_late < b->first_late ? -1 : 1;
    return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

static double seconds_of(const struct planner *w, const struct rw_trip *t, int lane)
{
    return rw_move_seconds(w->p, lane, w->s->buffers[t->buffer].bytes);
}

/* Places the copies out. Compute waits where the copy is expected to end, at the latest before backward begins. The
   lane's time increases from copy to copy, so the search for each wait begins at the previous one. */
static void place_ways_out(struct planner *w)
{
    double lane = 0;
    uint32_t wait = 0;
    qsort(w->trip, w->n, sizeof *w->trip, by_out);
    for (size_t i = 0; i < w->n; i++) {
        struct rw_trip *const t = &w->trip[i];
        const double begin = w->time[t->out_after + 1];
        lane = t->out_end = fmax(begin, lane) + seconds_of(w, t, RW_LANE_OUT);
        if (wait < t->out_after + 1) wait = t->out_after + 1;
        while (wait < w->s->n_forward && w->time[wait] < lane) wait++;
        t->out_wait = wait;
    }
}

/*
 * Places the copies in, from the last to the first: each begins as late as possible, not before backward, and in the
 * order of the waits.
 */
static void place_ways_back(struct planner *w)
{
    const uint32_t least = (uint32_t)w->s->n_forward;
    double lane = w->time[w->s->n_actions];
    uint32_t before = (uint32_t)w->s->n_actions;
    qsort(w->trip, w->n, sizeof *w->trip, by_in);
    for (size_t i = w->n; i-- > 0;) {
        struct rw_trip *const t = &w->trip[i];
        const double end = w->time[t->first_late];
        lane = (end < lane ? end : lane) - seconds_of(w, t, RW_LANE_IN);
        t->in_before = t->first_late < before ? t->first_late : before;
        while (t->in_before > least && w->time[t->in_before] > lane) t->in_before--;
        before = t->in_before;
    }
}

/* The time at which compute reaches the actions of backward, including its waits and its losses to copies. */
struct compute_clock {
    const struct planner *w;
    double between; /* lost in forward, and waited for copies out before backward's first action */
    double lost;    /* to the copies in so far */
    double waited;  /* for the copies in that actions before `at` wait for */
    double all;     /* for all copies in so far */
    size_t passed;  /* number of copies in that are counted in `waited` */
};

/*
 * The time before action `at` begins, and before it waits for anything. `at` must not decrease from call to call. wait:
 * by trip.
 */
static double reach(struct compute_clock *c, const double *wait, size_t n, uint32_t at)
{
    const struct planner *const w = c->w;
    while (c->passed < n && w->trip[c->passed].first_late < at) c->waited += wait[c->passed++];
    return w->time[at] + c->lost + c->waited + (at > w->s->n_forward ? c->between : 0);
}

static struct compute_clock clock_before_backward(const struct planner *w)
{
    double lost = 0, out_end = 0;
    for (size_t i = 0; i < w->n; i++) {
        lost += rw_move_loss(w->p, w->s->buffers[w->trip[i].buffer].bytes);
        out_end = fmax(out_end, w->trip[i].out_end);
    }
    return (struct compute_clock){ .w = w, .between = fmax(0, out_end - w->time[w->s->n_forward] - lost),
                                   .lost = lost };
}

/*
 * Delays copies in. A lane copies one value after the other. A copy in that would wait for its lane, or for its own
 * copy out, begins where compute is expected to be when the lane is free. It ends no later, and its memory is free
 * until then. So a store that is slower than compute has one value in flight at a time, instead of all of them from the
 * beginning of backward.
 */
static void delay_ways_back(struct planner *w)
{
    struct compute_clock c = clock_before_backward(w);
    double *const wait = w->scratch->wait, lane = 0;
    uint32_t at = (uint32_t)w->s->n_forward;
    for (size_t i = 0; i < w->n; i++) {
        struct rw_trip *const t = &w->trip[i];
        const double ready = fmax(lane, t->out_end);
        if (at < t->in_before) at = t->in_before;
        double begin = reach(&c, wait, i, at);
        for (double next; at < t->first_late && (next = reach(&c, wait, i, at + 1)) <= ready; at++) begin = next;
        t->in_before = at;
        lane = fmax(begin, ready) + seconds_of(w, t, RW_LANE_IN);
        c.lost += rw_move_loss(w->p, w->s->buffers[t->buffer].bytes);
        wait[i] = fmax(0, lane - w->time[t->first_late] - c.between - c.lost - c.all);
        c.all += wait[i];
    }
}

static uint32_t add_ref(struct rw_schedule *s, uint32_t buffer)
{
    if (!rw_grow(&s->refs, &s->cap_refs, s->n_refs, 1, sizeof *s->refs)) return RW_NONE_ID;
    s->refs[s->n_refs] = buffer;
    return (uint32_t)s->n_refs++;
}

/* A move to be inserted before action `at`, or at the end for n_actions. */
struct rw_insertion {
    uint32_t at, order; /* copies in follow copies out */
    struct rw_action action;
    uint32_t wait;       /* the action that waits for it */
    uint32_t of, buffer; /* the buffer of forward; the copied one: the same, or the second one */
    uint32_t slot;
};

/* The copied-in value has its own buffer. */
static uint32_t second_buffer(struct rw_schedule *s, uint32_t first)
{
    if (!rw_grow(&s->buffers, &s->cap_buffers, s->n_buffers, 1, sizeof *s->buffers)) return RW_NONE_ID;
    const uint32_t back = (uint32_t)s->n_buffers++;
    s->buffers[back] = s->buffers[first];
    s->buffers[back].merged = back;
    return back;
}

/* Makes every read of backward use the copied-in buffer. */
static rw_status redirect(struct rw_copy_schedule_scratch *scratch, struct rw_schedule *s,
                          const struct rw_insertion *in, size_t n)
{
    if (!rw_grow(&scratch->of, &scratch->cap_buffers, 0, s->n_buffers, sizeof *scratch->of)) return RW_ERR_MEMORY;
    uint32_t *const now = scratch->of;
    for (uint32_t b = 0; b < s->n_buffers; b++) now[b] = b;
    for (size_t i = 0; i < n; i++)
        if (in[i].action.kind == RW_ACTION_IN) now[in[i].of] = in[i].buffer;
    for (size_t i = s->n_forward; i < s->n_actions; i++)
        for (uint32_t k = 0; k < s->actions[i].n_words; k++) {
            uint32_t *const ref = &s->refs[s->actions[i].word + k];
            *ref = now[*ref];
        }
    return RW_OK;
}

/* Adds a slot of the store, with a source and a buffer. */
static uint32_t add_slot(struct rw_schedule *s, uint64_t bytes)
{
    if (!rw_grow(&s->sources, &s->cap_sources, s->n_sources, 1, sizeof *s->sources) ||
        !rw_grow(&s->slots, &s->cap_slots, s->n_slots, 1, sizeof *s->slots) ||
        !rw_grow(&s->buffers, &s->cap_buffers, s->n_buffers, 1, sizeof *s->buffers))
        return RW_NONE_ID;
    s->slots[s->n_slots] = (struct rw_lifetime){ .bytes = bytes };
    s->sources[s->n_sources] = (struct rw_source){ .kind = RW_SOURCE_STORE,
                                                   .index = (uint32_t)s->n_slots++,
                                                   .leaf = RW_NONE_ID };
    const uint32_t buffer = (uint32_t)s->n_buffers++;
    s->buffers[buffer] = (struct rw_buffer){
        .value = RW_NONE_ID, .source = (uint32_t)s->n_sources++, .bytes = bytes, .merged = buffer
    };
    return buffer;
}

static int by_place(const void *pa, const void *pb)
{
    const struct rw_insertion *const a = pa, *const b = pb;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

/* Makes the two moves of each trip, sorted by place. */
static rw_status make_insertions(struct planner *w, struct rw_insertion *to)
{
    struct rw_schedule *const s = w->s;
    for (size_t i = 0; i < w->n; i++) {
        const struct rw_trip *const t = &w->trip[i];
        const uint32_t node = rw_tape_value(w->p->t, s->buffers[t->buffer].value)->producer;
        const uint32_t back = second_buffer(s, t->buffer);
        const uint32_t slot = add_slot(s, s->buffers[t->buffer].bytes);
        if (back == RW_NONE_ID || slot == RW_NONE_ID) return RW_ERR_MEMORY;
        const uint32_t out = add_ref(s, t->buffer), out_slot = add_ref(s, slot);
        const uint32_t in = add_ref(s, slot), in_back = add_ref(s, back);
        if (out == RW_NONE_ID || out_slot == RW_NONE_ID || in == RW_NONE_ID || in_back == RW_NONE_ID)
            return RW_ERR_MEMORY;
        struct rw_action move = { .node = node, .word = out, .n_words = 2, .kind = RW_ACTION_OUT, .lane = RW_LANE_OUT };
        to[2 * i] = (struct rw_insertion){
            t->out_after + 1, (uint32_t)i, move, t->out_wait, t->buffer, t->buffer, slot
        };
        move = (struct rw_action){ .node = node, .word = in, .n_words = 2, .kind = RW_ACTION_IN, .lane = RW_LANE_IN };
        to[2 * i + 1] = (struct rw_insertion){ t->in_before, (uint32_t)(w->n + i), move, t->first_late, t->buffer, back,
                                               slot };
    }
    qsort(to, 2 * w->n, sizeof *to, by_place);
    return redirect(w->scratch, s, to, 2 * w->n);
}

/* moved[i]: number of moves before action i. */
static void count_moves(const struct rw_insertion *in, size_t n, size_t n_actions, uint32_t *moved)
{
    size_t k = 0;
    for (size_t i = 0; i <= n_actions; i++) {
        while (k < n && in[k].at <= i) k++;
        moved[i] = (uint32_t)k;
    }
}

static int by_waiting(const void *pa, const void *pb)
{
    const struct rw_wait *const a = pa, *const b = pb;
    if (a->action != b->action) return a->action < b->action ? -1 : 1;
    return a->on < b->on ? -1 : a->on > b->on;
}

/*
 * A copy in that begins before compute has waited for the copy out waits for it itself. This ends the lifetime of the
 * copied-out buffer. Its memory is next used by a later copy in, which is in the same lane, or by compute, which waits
 * before its next action. So a value never has two buffers at a time.
 */
static size_t wait_for_own_way_out(struct rw_schedule *s, const struct rw_insertion *in, size_t n, struct rw_wait *to)
{
    size_t added = 0;
    for (uint32_t k = 0; k < n; k++) {
        const struct rw_lifetime *const slot = &s->slots[s->sources[s->buffers[in[k].slot].source].index];
        const uint32_t here = in[k].at + k;
        if (in[k].action.kind != RW_ACTION_IN || here > s->buffers[in[k].of].last) continue;
        to[added++] = (struct rw_wait){ .action = here, .on = slot->first };
        s->buffers[in[k].of].last = here - 1;
    }
    return added;
}

/* Inserts the moves, and renumbers the actions of buffers, waits and slots. */
static rw_status insert(struct rw_schedule *s, const struct rw_insertion *in, size_t n, const uint32_t *moved)
{
    if (!rw_grow(&s->actions, &s->cap_actions, s->n_actions, n, sizeof *s->actions) ||
        !rw_grow(&s->waits, &s->cap_waits, 0, n + n / 2, sizeof *s->waits))
        return RW_ERR_MEMORY;
    for (size_t i = s->n_actions; i-- > 0;) s->actions[i + moved[i]] = s->actions[i];
    for (uint32_t b = 0; b < s->n_buffers; b++) {
        struct rw_buffer *const x = &s->buffers[b];
        if (x->first != UINT32_MAX) x->first += moved[x->first];
        x->last += moved[x->last];
    }
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t here = in[k].at + k, wait = in[k].wait + moved[in[k].wait];
        struct rw_buffer *const b = &s->buffers[in[k].buffer];
        struct rw_lifetime *const slot = &s->slots[s->sources[s->buffers[in[k].slot].source].index];
        s->actions[here] = in[k].action;
        s->waits[k] = (struct rw_wait){ .action = wait, .on = here };
        if (in[k].action.kind == RW_ACTION_OUT) b->last = wait, slot->first = here;
        else b->first = here, slot->last = wait;
        s->buffers[in[k].slot].first = slot->first;
        s->buffers[in[k].slot].last = wait;
    }
    s->n_waits = n + wait_for_own_way_out(s, in, n, s->waits + n);
    qsort(s->waits, s->n_waits, sizeof *s->waits, by_waiting);
    const bool one = s->n_before == s->n_forward;
    s->n_forward += n / 2; /* every copy out is part of forward, every copy in of backward */
    if (one) s->n_before = s->n_forward;
    else s->n_before += s->n_before < s->n_actions ? moved[s->n_before] : n;
    s->n_actions += n;
    return RW_OK;
}

static rw_status reserve(struct rw_copy_schedule_scratch *x, const struct rw_schedule *s)
{
    size_t cap = x->cap_actions, cap_wait = x->cap_trips;
    if (!rw_grow(&x->wait, &cap_wait, 0, s->n_buffers, sizeof *x->wait) ||
        !rw_grow(&x->trip, &x->cap_trips, 0, s->n_buffers, sizeof *x->trip) ||
        !rw_grow(&x->insertion, &x->cap_insertions, 0, 2 * s->n_buffers, sizeof *x->insertion) ||
        !rw_grow(&x->of, &x->cap_buffers, 0, s->n_buffers, sizeof *x->of) ||
        !rw_grow(&x->moved, &cap, 0, s->n_actions + 1, sizeof *x->moved))
        return RW_ERR_MEMORY;
    return rw_grow(&x->time, &x->cap_actions, 0, s->n_actions + 1, sizeof *x->time) ? RW_OK : RW_ERR_MEMORY;
}

void rw_copy_schedule_scratch_finish(struct rw_copy_schedule_scratch *x)
{
    rw_free(x->trip);
    rw_free(x->wait);
    rw_free(x->insertion);
    rw_free(x->of);
    rw_free(x->moved);
    rw_free(x->time);
    *x = (struct rw_copy_schedule_scratch){ 0 };
}

rw_status rw_copy_schedule(const struct rw_problem *p, const struct rw_choice *c,
                           struct rw_copy_schedule_scratch *scratch, struct rw_schedule *s)
{
    s->n_waits = s->n_slots = 0;
    if (!s->moves || !any_is_moved(c, s)) return RW_OK;
    if (reserve(scratch, s)) return RW_ERR_MEMORY;
    struct planner w = { .p = p, .s = s, .scratch = scratch, .time = scratch->time, .trip = scratch->trip };
    find_trips(&w, c);
    place_ways_out(&w);
    place_ways_back(&w);
    delay_ways_back(&w);
    const rw_status status = make_insertions(&w, scratch->insertion);
    if (status) return status;
    count_moves(scratch->insertion, 2 * w.n, s->n_actions, scratch->moved);
    return insert(s, scratch->insertion, 2 * w.n, scratch->moved);
}
