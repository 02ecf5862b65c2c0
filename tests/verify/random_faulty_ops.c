/*
 * The verifier on ops that break their law, in random programs: whether it accepts a program is compared with whether
 * bytes really differ with recompute on and off. The verifier does not know the planted faults.
 *
 *   REWIND_CAMPAIGN_PROGRAMS   number of programs of each kind (24)
 *   REWIND_CAMPAIGN_SEED       the first seed (1)
 *   REWIND_CAMPAIGN_REPORT     1: prints a row for each kind
 *
 * Three results are determined for each program, each in a process of its own, because a wild write may have any
 * effect:
 *   what the program itself shows with recompute and without: losses, values, gradients, parameters;
 *   the verdict of REWIND_VERIFY=1, which promises that all of these are right or that a call fails;
 *   the verdict of ckpt_verify() before each backward, which promises it of the gradients of that step, if the
 *     program has read nothing before: a value that is read is computed once and stays. A rehearsal promises nothing of
 *     an op that is wrong only in a later execution.
 */
#include "whole/fuzz/generate.h"
#include "whole/fuzz/judge.h"
#include "whole/fuzz/custom_ops.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    enum fuzz_plant plant;
    const char *name;
} kinds[] = {
    { FUZZ_HONEST, "nothing is wrong with it" },
    { FUZZ_LEAVES_LAST, "leaves its last element unwritten" },
    { FUZZ_ADDRESS, "depends on its address" },
    { FUZZ_SERIAL, "depends on its serial number" },
    { FUZZ_NEXT_BUFFER, "writes into the next buffer" },
    { FUZZ_ONE_PAST, "writes one past its output" },
    { FUZZ_READS_PAST, "reads past its input" },
    { FUZZ_MUTATES, "writes to its input" },
    { FUZZ_REMEMBERS, "remembers" },
    { FUZZ_BEFORE, "writes before its output" },
    { FUZZ_ONCE, "is wrong once" },
    { FUZZ_THREADS, "depends on threads" },
};
#define KINDS (sizeof kinds / sizeof *kinds)

struct verdict {
    bool whole; /* the process completed */
    bool yes, gradients;
    char text[400];
};

/* Results for one program. */
struct trial {
    const struct fz_program *p;
    enum fuzz_plant plant;
    const rw_op_def *op;
    uint64_t seed;
};

static void run(struct fz_run *r, const struct trial *x, const struct fz_program *p, bool plain)
{
    fuzz_plant_begin(x->plant, x->op, x->seed / 3);
    fz_run(r, p, plain);
    fuzz_plant_begin(FUZZ_HONEST, NULL, 0);
}

static void drop_reads(struct fz_program *p)
{
    for (int i = 0; i < p->n_actions; i++) {
        const int kind = p->action[i].kind;
        p->action[i].dropped |= kind == FZ_ITEM || kind == FZ_READ || kind == FZ_EVAL;
    }
}

/* Runs the program in `mode`, and for FZ_PLAIN also without recompute; stores the verdict. */
static void ask(const struct trial *x, enum fz_mode mode, bool reads, struct verdict *v)
{
    struct fz_program *const p = malloc(sizeof *p);
    struct fz_run plain, other;
    if (!p) abort();
    *p = *x->p;
    p->mode = mode;
    if (!reads) drop_reads(p);
    run(&other, x, p, false);
    v->yes = other.failure == FZ_REPORT || other.failure == FZ_REFUSED;
    snprintf(v->text, sizeof v->text, "%s", other.text);
    if (mode == FZ_PLAIN) {
        run(&plain, x, p, true);
        v->yes = fz_compare(&plain, &other, v->text, sizeof v->text) != FZ_FINE;
        v->gradients = fz_gradients_differ(&plain, &other);
        fz_run_finish(&plain);
    }
    fz_run_finish(&other);
    free(p);
    v->whole = true;
}

/* The same in a child process. */
static struct verdict ask_apart(const struct trial *x, enum fz_mode mode, bool reads)
{
    struct verdict *const shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                                        0);
    if (shared == MAP_FAILED) abort();
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        fz_in_child();
        ask(x, mode, reads, shared);
        _exit(0);
    }
    if (child < 0 || waitpid(child, NULL, 0) != child) abort();
    const struct verdict v = *shared;
    munmap(shared, sizeof *shared);
    return v;
}

/* Results for the programs of one kind. */
struct row {
    int programs, differ, gradients, said, escaped, asked, slipped;
    char escape[400];
};

/* Determines the verdicts on one program, and adds them to the row. */
static void judge(const struct trial *x, struct row *row)
{
    const struct verdict real = ask_apart(x, FZ_PLAIN, true), watched = ask_apart(x, FZ_VERIFIED, true),
                         quiet = ask_apart(x, FZ_PLAIN, false), asked = ask_apart(x, FZ_ASKED, false);
    const bool differ = real.yes || !real.whole;
    row->programs++;
    row->differ += differ;
    row->gradients += quiet.gradients;
    row->said += watched.yes;
    row->asked += asked.yes;
    const bool escaped = differ && !watched.yes;
    const bool slipped = quiet.gradients && !asked.yes && x->plant != FUZZ_ONCE;
    row->escaped += escaped;
    row->slipped += slipped;
    if ((escaped || slipped) && !*row->escape)
        snprintf(row->escape, sizeof row->escape, "seed %llu: %s: %.300s", (unsigned long long)x->seed,
                 escaped ? "REWIND_VERIFY=1" : "ckpt_verify()", escaped ? real.text : quiet.text);
    if (x->plant == FUZZ_HONEST && (watched.yes || asked.yes || !watched.whole || !asked.whole) && !*row->escape)
        snprintf(row->escape, sizeof row->escape, "seed %llu: %.300s", (unsigned long long)x->seed,
                 watched.yes ? watched.text : asked.text);
}

static bool has(const struct fz_program *p, const rw_op_def *op)
{
    for (int i = 0; i < p->n; i++)
        if (!p->s[i].dropped && !strcmp(fz_op(p->s[i].op)->name, op->name)) return true;
    return false;
}

static uint64_t from_environment(const char *name, uint64_t fallback)
{
    const char *const text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : fallback;
}

static struct row campaign(size_t kind)
{
    static const rw_op_def *const ops[] = { &fuzz_pair, &fuzz_top, &fuzz_jitter };
    const uint64_t n = from_environment("REWIND_CAMPAIGN_PROGRAMS", 24);
    struct row row = { 0 };
    struct fz_program *const p = malloc(sizeof *p);
    cr_assert_not_null(p);
    for (uint64_t seed = from_environment("REWIND_CAMPAIGN_SEED", 1); (uint64_t)row.programs < n; seed++) {
        const struct trial x = { p, kinds[kind].plant, ops[seed % 3], seed };
        fz_generate(p, seed, 40, true);
        if (has(p, x.op)) judge(&x, &row);
    }
    free(p);
    return row;
}

/* Whether AddressSanitizer detects the fault, an access out of bounds, before the verifier does. */
static bool is_stopped_by_a_sanitizer(enum fuzz_plant plant)
{
#ifdef __SANITIZE_ADDRESS__
    return plant == FUZZ_NEXT_BUFFER || plant == FUZZ_ONE_PAST || plant == FUZZ_READS_PAST || plant == FUZZ_BEFORE;
#else
    (void)plant;
    return false;
#endif
}

Test(random_faulty_ops, no_op_that_breaks_its_law_passes, .timeout = 36000)
{
    const bool report = from_environment("REWIND_CAMPAIGN_REPORT", 0);
    if (!fz_host()) cr_skip_test("the ops' kernels run on the CPU alone");
    if (report)
        fprintf(stderr, "%-36s %8s | %7s %7s %7s | %9s %7s %7s\n", "an op that", "programs", "differ", "said",
                "escaped", "gradients", "said", "escaped");
    for (size_t kind = 0; kind < KINDS; kind++) {
        if (is_stopped_by_a_sanitizer(kinds[kind].plant)) continue;
        const struct row r = campaign(kind);
        if (report)
            fprintf(stderr, "%-36s %8d | %7d %7d %7d | %9d %7d %7d\n", kinds[kind].name, r.programs, r.differ, r.said,
                    r.escaped, r.gradients, r.asked, r.slipped);
        cr_expect_eq(r.escaped, 0, "%s: %d of %d escape REWIND_VERIFY=1; %s", kinds[kind].name, r.escaped, r.differ,
                     r.escape);
        cr_expect_eq(r.slipped, 0, "%s: %d of %d escape ckpt_verify(); %s", kinds[kind].name, r.slipped, r.gradients,
                     r.escape);
        if (kinds[kind].plant == FUZZ_HONEST)
            cr_expect_eq(r.said + r.asked + r.differ, 0, "an honest op is accused; %s", r.escape);
        else
            cr_expect_geq(2 * r.said, r.programs, "%s: found in %d of %d programs", kinds[kind].name, r.said,
                          r.programs);
    }
}
