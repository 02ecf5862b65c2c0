/* The choice between one thread and all threads for small nodes: a state machine per plan, driven by the time per
   unit of work. */
#include "run/small_op_threads.h"

#include "remat/schedule/schedule.h"

#define ENOUGH_S 2e-3 /* nominal: less says nothing */
#define CLEARLY 1.5   /* a smaller difference may be noise, or another mix of nodes */
/* A run in the slower mode may be long, so a clear difference is acted on before the run ends. */
#define SOON_ALONE_S 1e-3
#define SOON_TOGETHER_S 5e-3
#define VERY_CLEARLY 3
#define PATIENCE_FIRST 1
#define PATIENCE_GROWS 4
#define PATIENCE_MAX 32 /* times the speedup: so that trying all threads takes about 3 % of the time */
#define PATIENCE_EVER 4096

/* For a plan that has none, in place of the plan that has not run for longest. */
static struct rw_small_op_threads *take_entry(struct rw_op_thread_table *all, uint64_t plan)
{
    struct rw_small_op_threads *last = all->of, *first = all->of;
    for (struct rw_small_op_threads *c = all->of; c < all->of + RW_OP_THREAD_PLANS; c++) {
        if (c->last_run > last->last_run) last = c;
        if (c->last_run < first->last_run) first = c;
    }
    *first = (struct rw_small_op_threads){ .plan = plan, .alone = last->alone };
    return first;
}

struct rw_small_op_threads *rw_small_op_threads_of(struct rw_op_thread_table *all, uint64_t plan)
{
    struct rw_small_op_threads *const end = all->of + RW_OP_THREAD_PLANS, *own = all->of;
    while (own < end && !(own->last_run && own->plan == plan)) own++;
    if (own == end) own = take_entry(all, plan);
    own->last_run = ++all->last_run;
    return own;
}

static void begin(struct rw_small_op_threads *c, bool alone)
{
    c->alone = alone;
    c->seconds = c->work = 0;
}

/* One thread is faster: increases the number of runs for which this is assumed. */
static void gain_patience(struct rw_small_op_threads *c)
{
    const double most = PATIENCE_MAX * c->together / c->apart;
    const size_t limit = most < PATIENCE_EVER ? (size_t)most : PATIENCE_EVER;
    c->patience = c->patience ? c->patience * PATIENCE_GROWS : PATIENCE_FIRST;
    if (c->patience > limit) c->patience = limit;
    c->left = c->patience;
}

/* The first run is always slow, so one thread is then tried once, and again whenever all threads become slower than
   before. */
static void judge_together(struct rw_small_op_threads *c)
{
    const double rate = c->seconds / c->work, before = c->together;
    const bool slower = c->apart && rate > CLEARLY * c->apart, try = before && (!c->apart || rate > CLEARLY * before);
    c->together = rate;
    if (slower) gain_patience(c);
    else c->patience = c->left = 0;
    begin(c, slower || try);
}

static void judge_alone(struct rw_small_op_threads *c)
{
    c->apart = c->seconds / c->work;
    const bool faster = c->apart <= c->together;
    if (!faster) c->patience = 0;
    else if (!c->patience) gain_patience(c);
    else c->left--;
    begin(c, faster && c->left > 0);
}

void rw_small_op_threads_note(struct rw_small_op_threads *c, unsigned little, double seconds)
{
    c->seconds += seconds;
    c->work += little;
    if (c->alone) {
        if (c->together && c->seconds > SOON_ALONE_S && c->seconds > CLEARLY * c->together * c->work) judge_alone(c);
    } else if (c->apart && c->seconds > SOON_TOGETHER_S && c->seconds > VERY_CLEARLY * c->apart * c->work) {
        judge_together(c);
    }
}

void rw_small_op_threads_judge(struct rw_small_op_threads *c)
{
    if (c->work * RW_LITTLE_S < ENOUGH_S) return;
    if (c->alone) judge_alone(c);
    else judge_together(c);
}
