/*
 * Finds trials that cover all pairs of values of two factors: for each uncovered pair, it draws random combinations
 * that contain it, and takes the one that covers most other pairs. See definition_runner.h.
 */
#include "support/definition_internal.h"

#include <criterion/criterion.h>
#include <string.h>

#define MAX_VALUES 168
struct pairs {
    const struct definition *d;
    int n_factors, first[DEF_FACTORS + 1];       /* number of a factor's first value */
    unsigned char state[MAX_VALUES][MAX_VALUES]; /* 0: open, 1: covered, 2: no combination found */
    uint64_t random;
};

static int any_of(struct pairs *p, int n)
{
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((p->random >> 33) % (uint64_t)n);
}

static void pairs_open(struct pairs *p, const struct definition *d)
{
    memset(p, 0, sizeof *p);
    p->d = d;
    p->random = 12345;
    for (; p->n_factors < DEF_FACTORS && d->factor[p->n_factors].name; p->n_factors++)
        p->first[p->n_factors + 1] = p->first[p->n_factors] + d->factor[p->n_factors].n;
    cr_assert(p->first[p->n_factors] <= MAX_VALUES);
}

static int gain_of(const struct pairs *p, const int *v)
{
    int gain = 0;
    for (int f = 0; f < p->n_factors; f++)
        for (int g = f + 1; g < p->n_factors; g++) gain += !p->state[p->first[f] + v[f]][p->first[g] + v[g]];
    return gain;
}

/* Draws random combinations with values a of f and b of g, and keeps the one that covers most open pairs. Returns false
   if none exists. */
static bool pairs_complete(struct pairs *p, int f, int a, int g, int b, int *best)
{
    static struct def_trial c;
    int most = -1, valid = 0;
    for (int k = 0; k < 600 && valid < 24; k++) {
        int v[DEF_FACTORS] = { 0 };
        for (int h = 0; h < p->n_factors; h++) v[h] = any_of(p, p->d->factor[h].n);
        v[f] = a, v[g] = b;
        if (!def_trial_make(&c, p->d, v, RW_F32)) continue;
        valid++;
        if (gain_of(p, v) <= most) continue;
        most = gain_of(p, v);
        memcpy(best, v, sizeof v);
    }
    return most >= 0;
}

/* Adds trials until every pair is covered, or known to be impossible. */
static int pairs_cover(struct pairs *p, int (*trials)[DEF_FACTORS], int max)
{
    int n = 0;
    for (int f = 0; f < p->n_factors; f++)
        for (int g = f + 1; g < p->n_factors; g++)
            for (int a = 0; a < p->d->factor[f].n; a++)
                for (int b = 0; b < p->d->factor[g].n; b++) {
                    unsigned char *const state = &p->state[p->first[f] + a][p->first[g] + b];
                    int v[DEF_FACTORS] = { 0 };
                    if (*state) continue;
                    if (n == max || !pairs_complete(p, f, a, g, b, v)) {
                        *state = 2;
                        continue;
                    }
                    for (int x = 0; x < p->n_factors; x++)
                        for (int y = x + 1; y < p->n_factors; y++) p->state[p->first[x] + v[x]][p->first[y] + v[y]] = 1;
                    memcpy(trials[n++], v, sizeof v);
                }
    return n;
}

static void pairs_count(const struct pairs *p, int *covered, int *possible)
{
    *covered = *possible = 0;
    for (int f = 0; f < p->n_factors; f++)
        for (int g = f + 1; g < p->n_factors; g++)
            for (int a = p->first[f]; a < p->first[f + 1]; a++)
                for (int b = p->first[g]; b < p->first[g + 1]; b++) {
                    ++*possible;
                    *covered += p->state[a][b] == 1;
                }
}

int def_pairs(const struct definition *d, int (*trials)[DEF_FACTORS], int max, int more, int *ret_covered,
              int *ret_possible)
{
    static struct pairs pairs;
    static struct def_trial c;
    pairs_open(&pairs, d);
    int n = pairs_cover(&pairs, trials, max);
    for (int k = 0; pairs.n_factors < 2 && k < (pairs.n_factors ? d->factor[0].n : 1); k++) trials[n++][0] = k;
    pairs_count(&pairs, ret_covered, ret_possible);
    for (int k = 0; k < 20 * more && n < max && pairs.n_factors > 1; k++) {
        int v[DEF_FACTORS] = { 0 };
        for (int h = 0; h < pairs.n_factors; h++) v[h] = any_of(&pairs, d->factor[h].n);
        if (!def_trial_make(&c, d, v, RW_F32) || more-- <= 0) continue;
        memcpy(trials[n++], v, sizeof v);
    }
    return n;
}
