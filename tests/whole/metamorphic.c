/*
 * Metamorphic sessions: random programs of the public API over several tapes and steps, each run in a process of its
 * own. The same program with extra calls that must not change a byte, in other modes, under other policies, or with
 * graphs instead of recorded steps, is compared with it byte by byte (metamorphic/random_session.h).
 *
 *   REWIND_METAMORPHIC_SECONDS   how long (10)
 *   REWIND_METAMORPHIC_RUNS      or how many variants of sessions
 *   REWIND_METAMORPHIC_SEED      the first seed (1)
 *   REWIND_METAMORPHIC_VARIANT   only this variant of each seed
 *   REWIND_METAMORPHIC_HERE      1: runs that variant of that seed in this very process, for a debugger
 *   REWIND_METAMORPHIC_FINDINGS  ends after so many findings of different kinds (1)
 *   REWIND_METAMORPHIC_WITHOUT   events and ops that sessions omit, for example "rw_rand,fuzz_store"
 *   REWIND_METAMORPHIC_STRICT    a mode, for example "REWIND_EAGER=1": a documented refusal there is a failure, too
 *   REWIND_METAMORPHIC_REPORT    1: prints what was covered; 2: each documented refusal, too
 *
 * A session that fails is shrunk and printed as a list of calls. The last line is the verdict.
 */
#include "whole/metamorphic/judge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define VARIANTS 4 /* of each seed */
#define KNOWN 64
#define LIKE 4     /* findings with the same extra calls */

static uint64_t from_environment(const char *name, uint64_t fallback)
{
    const char *const text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : fallback;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The properties by which findings differ. */
struct finding {
    struct mm_verdict verdict;
    uint32_t extras; /* kinds of the remaining extra events, a bit each */
    uint64_t ops;    /* a hash of the remaining statements' ops */
    enum mm_mode mode;
    bool launches;
};

struct campaign {
    struct mm_court court;
    struct mm_coverage coverage;
    struct mm_session *plain, *variant;
    double until;
    uint64_t runs, variants, only, most_findings, failing;
    struct finding known[KNOWN];
    uint64_t n_known;
};

static struct finding finding_of(const struct mm_session *s, const struct mm_verdict *v)
{
    struct finding f = { .verdict = *v, .mode = s->mode, .launches = s->launches };
    for (int i = 0; i < s->n; i++)
        if (!s->event[i].dropped && mm_is_extra(s->event[i].kind)) f.extras |= 1u << (s->event[i].kind - MM_X_READ);
    bool has[256] = { false };
    for (int i = 0; i < s->n; i++)
        if (!s->event[i].dropped && s->event[i].kind == MM_STATEMENT)
            has[s->body[s->event[i].tape]->s[s->event[i].a].op] = true;
    for (int i = 0; i < 256; i++)
        if (has[i]) f.ops = (f.ops ^ (uint64_t)i) * 0x9e3779b97f4a7c15u + 1;
    return f;
}

static bool is_like(const struct finding *a, const struct finding *b)
{
    return mm_same_failure(&a->verdict, &b->verdict) && a->extras == b->extras && a->mode == b->mode &&
           a->launches == b->launches;
}

/* Shrinks and prints a failure that differs from all earlier findings: by other extra calls, or by other ops, of which
   a few are reported. */
static void report(struct campaign *c, struct mm_session *s, const struct mm_verdict *before)
{
    uint64_t like = 0;
    bool same = false;
    c->failing++;
    printf("seed %llu, variant %llu: %s: %s\n", (unsigned long long)s->seed, (unsigned long long)s->variant,
           mm_failures[before->failure], before->text);
    fflush(stdout);
    struct mm_verdict v = mm_shrink(&c->court, s, false);
    if (!mm_is_failure(&v)) v = *before, strncat(v.text, " (not again)", sizeof v.text - strlen(v.text) - 1);
    struct finding f = finding_of(s, &v);
    for (uint64_t i = 0; i < c->n_known; i++) like += is_like(&c->known[i], &f);
    if (like >= LIKE || c->n_known == KNOWN) return;
    v = mm_shrink(&c->court, s, true);
    f = finding_of(s, &v);
    for (uint64_t i = 0; i < c->n_known; i++) same |= is_like(&c->known[i], &f) && c->known[i].ops == f.ops;
    if (same) return;
    c->known[c->n_known++] = f;
    printf("--- finding %llu\n", (unsigned long long)c->n_known);
    mm_print(stdout, s, &v);
    fflush(stdout);
}

static bool is_over(const struct campaign *c)
{
    if (c->n_known >= c->most_findings) return true;
    return c->runs ? c->variants >= c->runs : now() >= c->until;
}

/* Judges the plain session of a seed and its variants. */
static void try_seed(struct campaign *c, uint64_t seed)
{
    mm_generate(c->plain, seed);
    struct mm_verdict v = mm_judge_plain(&c->court, c->plain, &c->coverage);
    if (mm_is_failure(&v)) report(c, c->plain, &v);
    if (v.failure == MM_INVALID && from_environment("REWIND_METAMORPHIC_REPORT", 0) > 1)
        printf("seed %llu is no session: %s\n", (unsigned long long)seed, v.text);
    for (uint64_t i = 1; v.failure == MM_EQUAL && i <= VARIANTS && !is_over(c); i++) {
        const uint64_t variant = c->only ? c->only : i;
        mm_vary(c->variant, c->plain, variant);
        const struct mm_verdict found = mm_judge_variant(&c->court, c->variant, &c->coverage);
        c->variants++;
        if (found.failure == MM_ALLOWED && from_environment("REWIND_METAMORPHIC_REPORT", 0) > 1)
            printf("seed %llu, variant %llu, mode %s, allowed: %s\n", (unsigned long long)seed,
                   (unsigned long long)variant, mm_modes[c->variant->mode], found.text);
        if (mm_is_failure(&found)) {
            report(c, c->variant, &found);
            if (is_over(c)) return;
            /* Shrinking has overwritten the log of the plain run. */
            v = mm_judge_plain(&c->court, c->plain, &(struct mm_coverage){ 0 });
        }
        if (c->only) return;
    }
}

static void print_coverage(const struct mm_coverage *c)
{
    printf("%llu sessions, %llu of them refused; %llu runs, %llu with a documented refusal; %llu in which eager mode "
           "goes on where the plain one is refused\n",
           (unsigned long long)c->sessions, (unsigned long long)c->invalid, (unsigned long long)c->runs,
           (unsigned long long)c->allowed, (unsigned long long)c->eager_goes_on);
    for (int i = MM_X_READ; i < MM_KINDS; i++)
        printf("%s: %llu, refused %llu\n", mm_names[i], (unsigned long long)c->extras[i],
               (unsigned long long)c->refused[i]);
}

static int run_here(struct campaign *c, uint64_t seed)
{
    mm_generate(c->plain, seed);
    mm_vary(c->variant, c->plain, c->only);
    mm_run(c->court.other, c->variant, c->court.folder);
    mm_court_close(&c->court);
    printf("seed %llu, variant %llu ran\n", (unsigned long long)seed, (unsigned long long)c->only);
    return 0;
}

int main(void)
{
    struct campaign *const c = calloc(1, sizeof *c);
    if (!c) abort();
    const uint64_t first = from_environment("REWIND_METAMORPHIC_SEED", 1);
    const double began = now();
    c->until = began + (double)from_environment("REWIND_METAMORPHIC_SECONDS", 10);
    c->runs = from_environment("REWIND_METAMORPHIC_RUNS", 0);
    c->only = from_environment("REWIND_METAMORPHIC_VARIANT", 0);
    c->most_findings = from_environment("REWIND_METAMORPHIC_FINDINGS", 1);
    c->plain = mm_new();
    c->variant = mm_new();
    mm_court_open(&c->court);
    if (from_environment("REWIND_METAMORPHIC_HERE", 0)) return run_here(c, first);
    uint64_t seed = first;
    for (; !is_over(c); seed++) try_seed(c, seed);
    mm_court_close(&c->court);
    if (from_environment("REWIND_METAMORPHIC_REPORT", 0)) print_coverage(&c->coverage);
    printf("metamorphic: %llu runs of seeds %llu to %llu, %.0f a second: %llu differ\n",
           (unsigned long long)c->coverage.runs, (unsigned long long)first, (unsigned long long)seed - 1,
           (double)c->coverage.runs / (now() - began), (unsigned long long)c->failing);
    const bool wrong = c->failing > 0;
    mm_free(c->plain);
    mm_free(c->variant);
    free(c);
    return wrong;
}
