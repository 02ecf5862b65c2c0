/* Runs programs in child processes and compares the results. */
#include "whole/fuzz/judge.h"
#include "whole/fuzz/generate.h"
#include "whole/fuzz/custom_ops.h"
#include "support/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECONDS 300 /* for one program, with the slowest tool */

/* Written by the child, read by the parent. */
struct shared {
    struct fz_verdict verdict;
    struct fz_coverage coverage;
    uint64_t seed;
};

bool fz_host(void)
{
    return test_device() == RW_DEVICE_CPU;
}

static bool has(const struct fz_program *p, const char *name)
{
    for (int i = 0; i < p->n; i++)
        if (!p->s[i].dropped && !strcmp(fz_op(p->s[i].op)->name, name)) return true;
    return false;
}

static int depth_of(const struct fz_program *p)
{
    int depth = 0, most = 0;
    for (int i = 0; i < p->n; i++) {
        depth += !strcmp(fz_op(p->s[i].op)->name, "ckpt_begin") - !strcmp(fz_op(p->s[i].op)->name, "ckpt_end");
        if (depth > most) most = depth;
    }
    return most;
}

/* Adds one run to the coverage. */
static void cover(struct fz_coverage *c, const struct fz_program *p, const struct fz_run *run)
{
    bool empty = false;
    c->programs++;
    c->replaying += run->replayed > 0;
    c->finite += run->finite;
    c->with_grad += has(p, "rw_grad");
    c->nested += depth_of(p) > 1;
    c->two_tapes += p->two_tapes;
    c->assigns += has(p, "rw_assign");
    c->nodes += run->nodes;
    c->replayed += run->replayed;
    for (int i = 0; i < p->n; i++) {
        c->statements[p->s[i].op]++;
        for (int k = 0; k < p->s[i].n_out; k++) empty |= rw_shape_numel(p->s[i].out[k].shape) == 0;
    }
    c->empty += empty;
}

/* A hash of a message without its numbers, names and shapes: a smaller program must be refused for the same reason. */
static int reason_of(const char *text)
{
    uint32_t hash = 0;
    int depth = 0;
    for (const char *c = text; *c; c++) {
        depth += (*c == '(' || *c == '[') - (*c == ')' || *c == ']');
        if (!depth && ((*c >= 'a' && *c <= 'z') || *c == ' ')) hash = hash * 31 + (uint32_t)*c;
    }
    return (int)(hash >> 1);
}

/* Runs the program plainly and under its policy in this process, and compares. */
static void judge_here(const struct fz_program *p, const struct fz_sabotage *sabotage, struct shared *out)
{
    struct fz_run plain, other;
    struct fz_verdict v = { 0 };
    fz_run(&plain, p, true);
    if (sabotage) rw_fault = sabotage->fault;
    if (sabotage) fuzz_plant = (enum fuzz_plant)sabotage->plant;
    fz_run(&other, p, false);
    rw_fault = (struct rw_fault){ 0 };
    fuzz_plant = FUZZ_HONEST;
    v.failure = fz_compare(&plain, &other, v.text, sizeof v.text);
    if (v.failure == FZ_REFUSED) v.detail = reason_of(strstr(v.text, ": ") ? strstr(v.text, ": ") : v.text);
    cover(&out->coverage, p, &other);
    out->verdict = v;
    fz_run_finish(&plain);
    fz_run_finish(&other);
}

static struct shared *begin(void)
{
    struct shared *const s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) abort();
    return s;
}

/* In the parent: how the child ended. */
static void wait_for(pid_t child, struct shared *s)
{
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) abort();
    if (WIFEXITED(status) && !WEXITSTATUS(status)) return;
    s->verdict.failure = FZ_CRASH;
    s->verdict.detail = WIFSIGNALED(status) ? WTERMSIG(status) : 1000 + WEXITSTATUS(status);
    snprintf(s->verdict.text, sizeof s->verdict.text, WIFSIGNALED(status) ? "signal %d" : "exit status %d",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static struct fz_verdict finish(struct shared *s)
{
    const struct fz_verdict v = s->verdict;
    munmap(s, sizeof *s);
    return v;
}

void fz_in_child(void)
{
    signal(SIGABRT, SIG_DFL);
    signal(SIGSEGV, SIG_DFL);
    alarm(SECONDS);
}

struct fz_verdict fz_judge(const struct fz_program *p, const struct fz_sabotage *sabotage)
{
    struct shared *const s = begin();
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        fz_in_child();
        judge_here(p, sabotage, s);
        _exit(0);
    }
    wait_for(child, s);
    return finish(s);
}

/* In a child: continues until a candidate fails as wanted; s->seed is its number, or that of the one that ends the
   process. */
static void search(fz_candidate_fn make, void *context, const struct fz_verdict *wanted,
                   const struct fz_sabotage *sabotage, struct shared *s)
{
    struct fz_program *const p = malloc(sizeof *p);
    if (!p) abort();
    for (;; s->seed++) {
        const enum fz_candidate c = make(context, p, (int)s->seed);
        if (c == FZ_NO_MORE) break;
        if (c == FZ_SKIP) continue;
        fz_in_child();
        judge_here(p, sabotage, s);
        if (fz_same_failure(&s->verdict, wanted)) _exit(0);
    }
    s->verdict.failure = FZ_FINE;
}

int fz_judge_first(fz_candidate_fn make, void *context, int from, const struct fz_verdict *wanted,
                   const struct fz_sabotage *sabotage, struct fz_verdict *ret_verdict)
{
    for (;;) {
        struct shared *const s = begin();
        s->seed = (uint64_t)from;
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) {
            search(make, context, wanted, sabotage, s);
            _exit(0);
        }
        wait_for(child, s);
        from = (int)s->seed;
        const struct fz_verdict v = finish(s);
        if (v.failure == FZ_FINE) return -1;
        if (fz_same_failure(&v, wanted)) {
            *ret_verdict = v;
            return from;
        }
        from++; /* another crash than the wanted one */
    }
}

struct fz_verdict fz_judge_seeds(uint64_t first, uint64_t count, int64_t most, uint64_t *ret_seed,
                                 struct fz_coverage *coverage)
{
    struct shared *const s = begin();
    s->coverage = *coverage;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        struct fz_program *const p = malloc(sizeof *p);
        if (!p) abort();
        for (s->seed = first; s->seed < first + count && !s->verdict.failure; s->seed++) {
            fz_in_child();
            fz_generate(p, s->seed, most, fz_host());
            judge_here(p, NULL, s);
            if (s->verdict.failure) break;
        }
        free(p);
        _exit(0);
    }
    wait_for(child, s);
    *ret_seed = s->seed;
    *coverage = s->coverage;
    return finish(s);
}

/* Exists in a build with AddressSanitizer, which looks for leaks when a process exits, but not by _exit(). */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

void fz_look_for_leaks(uint64_t first, uint64_t count, int64_t most)
{
    struct shared *const s = begin();
    struct fz_program *const p = malloc(sizeof *p);
    if (!p) abort();
    for (uint64_t seed = first; __lsan_do_recoverable_leak_check && seed < first + count; seed++) {
        fz_generate(p, seed, most, fz_host());
        judge_here(p, NULL, s);
    }
    free(p);
    finish(s);
}
