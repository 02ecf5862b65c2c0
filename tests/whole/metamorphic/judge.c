/* Runs sessions in child processes and compares their logs. The parent never runs a session itself: OpenMP's threads do
   not survive a fork(). */
#include "whole/metamorphic/judge.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECONDS 60 /* for one run, with the slowest tool */

const char *const mm_failures[MM_FAILURES] = {
    "equal", "a documented refusal", "no session", "bytes differ", "statuses differ", "other calls were made",
    "random numbers were drawn twice", "the process ended"
};

static struct mm_log *new_log(void)
{
    struct mm_log *const log = mmap(NULL, sizeof *log, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (log == MAP_FAILED) abort();
    return log;
}

void mm_court_open(struct mm_court *c)
{
    c->plain = new_log();
    c->other = new_log();
    strcpy(c->folder, "/dev/shm/rewind-metamorphic-XXXXXX"); /* not on a disk, which each save would wait for */
    if (mkdtemp(c->folder)) return;
    strcpy(c->folder, "/tmp/rewind-metamorphic-XXXXXX");
    if (!mkdtemp(c->folder)) abort();
}

static void empty(const char *folder)
{
    DIR *const dir = opendir(folder);
    char path[400];
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' && (!entry->d_name[1] || entry->d_name[1] == '.')) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        unlink(path);
    }
    if (dir) closedir(dir);
}

void mm_court_close(struct mm_court *c)
{
    empty(c->folder);
    rmdir(c->folder);
    munmap(c->plain, sizeof *c->plain);
    munmap(c->other, sizeof *c->other);
}

/* Runs in a child. 0, or the signal that ended it. */
static int run(struct mm_log *log, const struct mm_session *s, const char *folder)
{
    int status = 0;
    memset(log, 0, offsetof(struct mm_log, data));
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) abort();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        alarm(SECONDS);
        mm_run(log, s, folder);
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child) abort();
    if (WIFSIGNALED(status)) return WTERMSIG(status);
    return WIFEXITED(status) && !WEXITSTATUS(status) && log->complete ? 0 : 1000 + WEXITSTATUS(status);
}

static struct mm_verdict crash(const struct mm_log *log, int signal)
{
    struct mm_verdict v = { .failure = MM_CRASH, .event = -1, .detail = signal };
    snprintf(v.text, sizeof v.text, signal < 1000 ? "signal %d at %s" : "exit status %d at %s", signal % 1000,
             log->last);
    return v;
}

static struct mm_verdict clash(const struct mm_log *log)
{
    struct mm_verdict v = { .failure = MM_CLASHES, .event = -1 };
    snprintf(v.text, sizeof v.text, "%d times", log->clashes);
    return v;
}

/* ---- comparing ---- */

/* Whether a variant may be refused a call that the plain session is not, or vice versa. */
static bool is_allowed(const struct mm_session *s, const struct mm_entry *plain, const struct mm_entry *other)
{
    const char *const strict = getenv("REWIND_METAMORPHIC_STRICT");
    if (strict && !strcmp(strict, mm_modes[s->mode]) && !s->launches) return false;
    if (other->status == RW_ERR_MODIFIED && other->excused) return true;
    if (plain->status == RW_ERR_MODIFIED && plain->excused) return true;
    if (other->status == RW_ERR_MISMATCH && other->excused && (s->mode == MM_VERIFY || s->mode == MM_DIGEST))
        return true;
    if (other->status == RW_ERR_BUDGET) return true;
    if (other->status == RW_ERR_ARGUMENT && s->launches && s->mode == MM_EAGER) return true; /* already executed */
    return other->status == RW_ERR_UNSUPPORTED && s->launches; /* kept quantized weights; two passes */
}

/* Whether an eager context refuses the statement at recording, which others refuse at execution. */
static bool is_refused_later(const struct mm_session *s, const struct mm_entry *plain, const struct mm_entry *other)
{
    return plain && other && s->mode == MM_EAGER && other->kind == MM_STATEMENT && is_allowed(s, plain, other);
}

static bool same_call(const struct mm_entry *a, const struct mm_entry *b)
{
    return a->kind == b->kind && a->tape == b->tape && a->id == b->id && a->step == b->step && a->what == b->what;
}

static void describe(struct mm_verdict *v, const struct mm_entry *e, const char *what)
{
    v->event = e->kind;
    snprintf(v->text, sizeof v->text, "step %d, tape %d, plain event %d (%s), number %d: %s", e->step, e->tape, e->id,
             mm_names[e->kind], e->what, what);
}

static void describe_statuses(struct mm_verdict *v, const struct mm_entry *a, const struct mm_entry *b,
                              const struct mm_court *c)
{
    char text[600];
    snprintf(text, sizeof text, "%s without the extra calls, %s with them: %s", rw_status_name(a->status),
             rw_status_name(b->status), b->status ? c->other->text : c->plain->text);
    describe(v, b, text);
    v->detail = a->status * 1000 + b->status;
}

static void describe_bytes(struct mm_verdict *v, const struct mm_entry *a, const struct mm_entry *b)
{
    const unsigned char *const x = (const unsigned char *)(a + 1), *const y = (const unsigned char *)(b + 1);
    char text[200];
    size_t i = 0;
    while (i < a->bytes && x[i] == y[i]) i++;
    const size_t first = i / 4 * 4;
    float p = 0, q = 0;
    if (first + 4 <= a->bytes) memcpy(&p, x + first, 4), memcpy(&q, y + first, 4);
    snprintf(text, sizeof text,
             "bytes differ from byte %zu of %llu on: as float32 %.9g without the extra calls, %.9g with", i,
             (unsigned long long)a->bytes, (double)p, (double)q);
    describe(v, a, text);
    v->detail = a->what / 1000 == 2 ? a->what : a->what / 1000;
}

/* A failed launch has executed its ops with effects, and the next one executes them again. An extra rw_forward(), and
   eager mode, have executed those of a step whose backward is refused later. Otherwise executions are counted
   exactly. */
static bool counts_more(const struct mm_session *s, const struct mm_entry *e, bool refused)
{
    bool more = refused && s->mode == MM_EAGER;
    for (int i = 0; i < s->n; i++) {
        if (s->event[i].dropped) continue;
        more |= (s->launches && s->event[i].kind == MM_X_FAIL) || (refused && s->event[i].kind == MM_X_FORWARD);
    }
    return more && e->what == MM_RUNS;
}

/* Compares the plain entries of two logs in order. */
static struct mm_verdict compare(const struct mm_court *c, const struct mm_session *s, struct mm_coverage *coverage)
{
    struct mm_verdict v = { .failure = MM_EQUAL, .event = -1 };
    bool refused = false; /* a backward was */
    for (uint64_t at = 0, to = 0;;) {
        const struct mm_entry *const a = mm_entry_at(c->plain, at), *const b = mm_entry_at(c->other, to);
        if (!a && !b) return v;
        if (a && b && same_call(a, b) && a->status != b->status) {
            v.failure = is_allowed(s, a, b) ? MM_ALLOWED : MM_STATUS;
            if (a->status == RW_ERR_MODIFIED && !b->status && s->mode == MM_EAGER) coverage->eager_goes_on++;
            describe_statuses(&v, a, b, c);
            return v;
        }
        if (!a || !b || !same_call(a, b) || a->bytes != b->bytes) {
            v.failure = is_refused_later(s, a, b) ? MM_ALLOWED : MM_SCRIPT;
            describe(&v, a ? a : b, b && b->status ? c->other->text : "");
            return v;
        }
        refused |= a->kind == MM_BACKWARD && a->status == RW_ERR_MODIFIED;
        if (memcmp(a + 1, b + 1, a->bytes) && !counts_more(s, a, refused)) {
            v.failure = MM_BYTES;
            describe_bytes(&v, a, b);
            return v;
        }
        at += mm_entry_size(a);
        to += mm_entry_size(b);
    }
}

/* ---- judging ---- */

static void cover(struct mm_coverage *coverage, const struct mm_log *log)
{
    coverage->runs++;
    for (int i = 0; i < MM_KINDS; i++) {
        coverage->extras[i] += log->extras[i];
        coverage->refused[i] += log->refused[i];
    }
}

static bool is_refused(const struct mm_log *log)
{
    const struct mm_entry *e;
    for (uint64_t at = 0; (e = mm_entry_at(log, at)); at += mm_entry_size(e))
        if (e->kind == MM_STATEMENT && e->status) return true;
    return !log->bytes;
}

struct mm_verdict mm_judge_plain(struct mm_court *c, const struct mm_session *s, struct mm_coverage *coverage)
{
    const int signal = run(c->plain, s, c->folder);
    struct mm_verdict v = { .failure = MM_EQUAL, .event = -1 };
    cover(coverage, c->plain);
    coverage->sessions++;
    if (signal) return crash(c->plain, signal);
    if (is_refused(c->plain)) {
        v.failure = MM_INVALID;
        snprintf(v.text, sizeof v.text, "%s", c->plain->text);
        coverage->invalid++;
    } else if (c->plain->clashes) {
        return clash(c->plain);
    }
    return v;
}

struct mm_verdict mm_judge_variant(struct mm_court *c, const struct mm_session *s, struct mm_coverage *coverage)
{
    const int signal = run(c->other, s, c->folder);
    cover(coverage, c->other);
    if (signal) return crash(c->other, signal);
    const struct mm_verdict v = compare(c, s, coverage);
    coverage->allowed += v.failure == MM_ALLOWED;
    return !mm_is_failure(&v) && c->other->clashes ? clash(c->other) : v;
}

static int by_id(const void *a, const void *b)
{
    return ((const struct mm_event *)a)->id - ((const struct mm_event *)b)->id;
}

void mm_make_plain(struct mm_session *s)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        if (!mm_is_extra(s->event[i].kind)) s->event[n++] = s->event[i];
    s->n = n;
    qsort(s->event, (size_t)n, sizeof *s->event, by_id);
    s->variant = 0;
    s->mode = MM_PLAIN;
    s->threads = 1;
    s->launches = false;
    strcpy(s->policy, "none");
}

struct mm_verdict mm_judge(struct mm_court *c, const struct mm_session *variant)
{
    struct mm_coverage unused = { 0 };
    struct mm_session *const plain = mm_new();
    mm_copy(plain, variant);
    mm_make_plain(plain);
    struct mm_verdict v = mm_judge_plain(c, plain, &unused);
    if (v.failure == MM_EQUAL && variant->variant) v = mm_judge_variant(c, variant, &unused);
    mm_free(plain);
    return v;
}
