/* See company.h. */
#include "run/company.h"

#include "remat/schedule.h"

#define ENOUGH_S 2e-3 /* nominal: less says nothing */
#define CLEARLY 1.5   /* less may be noise, or another mixture of nodes */
/* A whole run of what is the slower way may be a long one: what is clear soon is judged soon. */
#define SOON_ALONE_S 1e-3
#define SOON_TOGETHER_S 5e-3
#define VERY_CLEARLY 3
#define PATIENCE_FIRST 1
#define PATIENCE_GROWS 4
#define PATIENCE_MOST 32 /* times how much faster it is: so trying takes some 3 % of the time */
#define PATIENCE_EVER 4096

struct rw_company *rw_company_of(struct rw_companies *all, uint64_t plan)
{
    struct rw_company *last = all->of, *first = all->of, *own = NULL;
    for (struct rw_company *c = all->of; c < all->of + RW_COMPANIES; c++) {
        if (c->asked && c->plan == plan) own = c;
        if (c->asked > last->asked) last = c;
        if (c->asked < first->asked) first = c;
    }
    if (!own) *(own = first) = (struct rw_company){ .plan = plan, .alone = last->alone };
    own->asked = ++all->asked;
    return own;
}

static void begin(struct rw_company *c, bool alone)
{
    c->alone = alone;
    c->seconds = c->work = 0;
}

/* Alone is faster: for how many runs more that is taken for granted. */
static void gain_patience(struct rw_company *c)
{
    const double most = PATIENCE_MOST * c->together / c->apart;
    const size_t limit = most < PATIENCE_EVER ? (size_t)most : PATIENCE_EVER;
    c->patience = c->patience ? c->patience * PATIENCE_GROWS : PATIENCE_FIRST;
    if (c->patience > limit) c->patience = limit;
    c->left = c->patience;
}

/* The first run is slow, whatever runs beside it. Then alone is tried once, and whenever all get slower than before. */
static void judge_together(struct rw_company *c)
{
    const double rate = c->seconds / c->work, before = c->together;
    const bool slower = c->apart && rate > CLEARLY * c->apart, try = before && (!c->apart || rate > CLEARLY * before);
    c->together = rate;
    if (slower) gain_patience(c);
    else c->patience = c->left = 0;
    begin(c, slower || try);
}

static void judge_alone(struct rw_company *c)
{
    c->apart = c->seconds / c->work;
    const bool faster = c->apart <= c->together;
    if (!faster) c->patience = 0;
    else if (!c->patience) gain_patience(c);
    else c->left--;
    begin(c, faster && c->left > 0);
}

void rw_company_note(struct rw_company *c, unsigned little, double seconds)
{
    c->seconds += seconds;
    c->work += little;
    if (c->alone) {
        if (c->together && c->seconds > SOON_ALONE_S && c->seconds > CLEARLY * c->together * c->work) judge_alone(c);
    } else if (c->apart && c->seconds > SOON_TOGETHER_S && c->seconds > VERY_CLEARLY * c->apart * c->work) {
        judge_together(c);
    }
}

void rw_company_judge(struct rw_company *c)
{
    if (c->work * RW_LITTLE_S < ENOUGH_S) return;
    if (c->alone) judge_alone(c);
    else judge_together(c);
}
