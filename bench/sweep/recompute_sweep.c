/*
 * recompute_sweep: trains a model under several policies; prints step time, memory, and whether every byte is the same
 * as without recompute. Exits with 1 if a row is not identical, 2 for invalid options or data.
 */
#include "answer.h"
#include "device_roofline.h"
#include "sweep/fit_and_advise.h"
#include "sweep/measure_policies.h"
#include "sweep/model_session.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads the text into memory; false with a message. */
static bool read_text(const char *path, struct sweep_text *ret)
{
    struct stat about;
    const bool known = !stat(path, &about);
    if (known && !S_ISREG(about.st_mode)) { /* a device has no end, and a FIFO no beginning */
        fprintf(stderr, "recompute_sweep: %s: not a file\n", path);
        return false;
    }
    FILE *const f = known ? fopen(path, "rb") : NULL;
    if (!f) {
        fprintf(stderr, "recompute_sweep: %s: %s\n", path, strerror(errno));
        return false;
    }
    size_t n = 0, room = 1 << 20;
    unsigned char *bytes = malloc(room);
    for (size_t got; bytes && (got = fread(bytes + n, 1, room - n, f)) > 0;) {
        n += got;
        if (n == room) bytes = realloc(bytes, room *= 2);
    }
    const bool ok = bytes && !ferror(f);
    fclose(f);
    if (!ok) fprintf(stderr, "recompute_sweep: %s: cannot be read\n", path);
    *ret = (struct sweep_text){ bytes, n };
    return ok;
}

static void print_header(const struct sweep_options *o)
{
    const struct sweep_unit rate = sweep_rate_unit(o->ceiling);
    printf("%s, ", model_name(o->model.kind));
    if (sweep_has_layers(o)) printf("%d layers of ", o->model.layers);
    printf("width %d, %s, batch %d, %d threads on %s, %d steps; a plain matrix product reaches %.4g %s\n",
           o->model.width, rw_dtype_name(o->model.dtype), o->batch, o->threads, o->device, o->steps,
           o->ceiling / rate.of, rate.name);
    printf("%5s  %-32s %9s %9s %6s %8s %6s %12s %12s %12s %12s %8s %9s  %s\n", "seq", "policy", "step ms", "predicted",
           "ratio", rate.name, "of it", "kept bytes", "peak bytes", "predicted",
           strcmp(o->device, "cpu") ? "in use" : "resident", "replayed", "loss", "identical");
    fflush(stdout);
}

static void print_row(const struct sweep_options *o, const struct sweep_row *r)
{
    char device[24] = "-";
    if (r->device || r->resident) snprintf(device, sizeof device, "%zu", r->device ? r->device : r->resident);
    if (isatty(2)) fprintf(stderr, "\r\033[K");
    printf("%5d  %-32s %9.1f %9.1f %6.3f %8.4g %5.1f%% %12zu %12zu %12zu %12s %8zu %9.5f  %s\n", r->seq, r->policy,
           r->step_ms, r->predicted_ms, r->ratio, r->tflops / sweep_rate_unit(o->ceiling).of, sweep_utilisation(o, r),
           r->kept, r->peak, r->predicted, device, r->replayed, r->loss, r->identical ? "yes" : "NO");
    fflush(stdout);
}

/* The planner chooses, and may replay nothing. */
static bool is_budget(const char *policy)
{
    return !strncmp(policy, "budget:", 7) || !strncmp(policy, "total:", 6);
}

/* Reports what is wrong with a row, or unusual. False if it is wrong. */
static bool judge(const struct sweep_options *o, struct sweep_row *r, const struct sweep_row *none)
{
    char where[64];
    const bool rounds = outcome_same(&none->outcome, &r->outcome, where, sizeof where);
    if (!rounds) fprintf(stderr, "recompute_sweep: %s: results differ from those of none: %s\n", r->policy, where);
    const bool own = outcome_same(&none->own, &r->own, where, sizeof where);
    if (!own)
        fprintf(stderr, "recompute_sweep: %s: results differ from those of none in its own run: %s\n", r->policy,
                where);
    r->identical = rounds && own;
    if (r->peak != r->predicted)
        fprintf(stderr, "recompute_sweep: %s: predicted a peak of %zu bytes, measured %zu\n", r->policy, r->predicted,
                r->peak);
    if (sweep_utilisation(o, r) > 100)
        fprintf(stderr, "recompute_sweep: %s: %.1f %% of what a plain matrix product reaches: the machine was busy "
                        "while that was measured; run it again when it is idle\n",
                r->policy, sweep_utilisation(o, r));
    if (!r->replayed && strcmp(r->policy, "none") && !is_budget(r->policy) && !strstr(r->policy, "offload"))
        fprintf(stderr,
                "recompute_sweep: %s: replays nothing; regions of the models are block, core_attn and mlp; "
                "deepseek also has mla_up_proj, moe, moe_act, shared_experts and layernorm; mamba2 has "
                "block and ssd\n",
                r->policy);
    return r->identical && r->peak == r->predicted;
}

/* How far the time is from the prediction: 2 for half of it, and for twice. */
static double distance(const struct sweep_row *r)
{
    const double times = r->step_ms > 0 && r->predicted_ms > 0 ? r->predicted_ms / r->step_ms : 1;
    return times < 1 ? 1 / times : times;
}

/* Costs and steps are measured one after the other: other processes may slow down only one of them. Returns the row
   that this has changed most, for the page; NULL: none. */
static const struct sweep_row *compare_with_costs(const struct sweep_row *rows, int n)
{
    const struct sweep_row *worst = rows;
    for (int i = 1; i < n; i++)
        if (distance(&rows[i]) > distance(worst)) worst = &rows[i];
    if (distance(worst) <= 1.5) return NULL;
    fprintf(stderr,
            "recompute_sweep: %s was predicted to take %.1f ms and took %.1f: the machine was busy while costs, or "
            "while steps were measured; run it again when it is idle\n",
            worst->policy, worst->predicted_ms, worst->step_ms);
    return worst;
}

/* The predicted frontier; none if no step of the tape can be planned. */
static rw_status find_curve(const struct sweep_options *o, int seq, struct sweep_curve *ret)
{
    struct sweep_run r;
    rw_prediction none;
    rw_status status = sweep_plan_open(&r, o, seq);
    *ret = (struct sweep_curve){ 0 };
    if (!status) status = sweep_predict(&r, o->batch, seq, "none", &none);
    rw_tensor *const tokens = status ? NULL : rw_input(r.t, RW_I32, RW_SHAPE(o->batch, seq), NULL, 0);
    rw_tensor *const targets = tokens ? rw_input(r.t, RW_I32, RW_SHAPE(o->batch, seq), NULL, 0) : NULL;
    rw_tensor *const loss = targets ? model_loss_of(&r.m, r.t, tokens, targets) : NULL;
    if (!status) status = rw_error_status(r.m.ctx);
    ret->n = ret->n_moved = SWEEP_POINTS;
    if (!status) status = rw_tape_frontier(r.t, loss, ret->point, &ret->n);
    if (!sweep_has_store(o)) ret->n_moved = 0;
    else if (!status) status = sweep_moved_points(&r, loss, ret->moved, &ret->n_moved);
    if (!status) ret->none_ms = none.ms;
    for (size_t i = 0; !status && i < ret->n; i++) ret->has_bound |= ret->point[i].bound_ms > 0;
    return sweep_run_close(&r, status);
}

/* Runs all policies at one sequence length and compares them with `none`, listed or not. *ran: the rows have results,
   also if the curve fails. */
static rw_status sweep_seq(struct sweep_options *o, const struct sweep_text *text, int seq, struct sweep_row *rows,
                           int *n, struct sweep_curve *curve, bool *all_good, bool *ran)
{
    struct sweep_row unlisted = { .policy = "none", .seq = seq }, *none = NULL, *timed[SWEEP_MAX + 1];
    struct sweep_row *const first = rows + *n;
    rw_status status = o->measures_costs ? sweep_measure_costs(o, text, seq) : RW_OK;
    int n_timed = 0;
    for (int p = 0; p < o->n_policies; p++) {
        struct sweep_row *const r = &rows[(*n)++];
        *r = (struct sweep_row){ .policy = o->policies[p], .seq = seq };
        if (!none && !strcmp(r->policy, "none")) none = r;
        timed[n_timed++] = r;
    }
    if (!none) timed[n_timed++] = none = &unlisted;
    if (!status) status = sweep_run_rows(o, text, timed, n_timed);
    *ran = !status;
    if (!status) status = find_curve(o, seq, curve);
    for (int p = 0; *ran && p < o->n_policies; p++) {
        first[p].ratio = first[p].step_ms / none->step_ms;
        *all_good &= judge(o, &first[p], none);
        print_row(o, &first[p]);
    }
    if (*ran && o->measures_costs) curve->busy = compare_with_costs(first, o->n_policies);
    outcome_close(&unlisted.outcome);
    outcome_close(&unlisted.own);
    return status;
}

/* A run of minutes must not fail at its end because of an unwritable path: creates a file with that prefix, and removes
   it. errno is the reason. */
static bool can_write(const char *beginning)
{
    char path[SWEEP_PATH];
    const bool fits = snprintf(path, sizeof path, "%s.XXXXXX", beginning) < SWEEP_PATH;
    const int f = fits ? mkstemp(path) : -1;
    if (!fits) errno = ENAMETOOLONG;
    if (f < 0) return false;
    close(f);
    unlink(path);
    return true;
}

static bool is_same_file(const struct stat *about, const char *path)
{
    struct stat other;
    return path && !stat(path, &other) && other.st_dev == about->st_dev && other.st_ino == about->st_ino;
}

/* Whether --costs names this file in o->out, which does not exist yet. */
static bool is_new_costs(const struct sweep_options *o, const char *name)
{
    char folder[SWEEP_PATH];
    struct stat about;
    const char *const slash = o->costs ? strrchr(o->costs, '/') : NULL;
    if (!o->costs || strcmp(slash ? slash + 1 : o->costs, name) || stat(o->out, &about)) return false;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - o->costs) + 1 : 1, slash ? o->costs : ".");
    return is_same_file(&about, folder);
}

/* Whether the file in o->out does not exist, or is a regular one that is no input. */
static bool can_replace(const struct sweep_options *o, const char *name)
{
    char path[SWEEP_PATH];
    struct stat about;
    snprintf(path, sizeof path, "%s/%s", o->out, name);
    const bool exists = !stat(path, &about);
    const char *why = NULL;
    if (!exists && errno != ENOENT) why = strerror(errno);
    else if (exists && S_ISDIR(about.st_mode)) why = "a folder, not a file";
    else if (exists && !S_ISREG(about.st_mode)) why = "not a file";
    else if (exists && is_same_file(&about, o->data)) why = "the same file as --data";
    else if (exists ? is_same_file(&about, o->costs) : is_new_costs(o, name)) why = "the same file as --costs";
    if (why) fprintf(stderr, "recompute_sweep: %s: %s\n", path, why);
    return !why;
}

/* Measured costs are in the folder: a second sweep would plan with those of the first. Without locks on that file
   system there is none. The lock ends with close(). */
static bool lock_out(const struct sweep_options *o, int *ret_lock)
{
    *ret_lock = open(o->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool taken = *ret_lock >= 0 && flock(*ret_lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (taken) fprintf(stderr, "recompute_sweep: --out %s: another sweep writes to this folder\n", o->out);
    return !taken;
}

/* Creates and locks o->out, and checks the files in it that the sweep will replace. */
static bool prepare_out(const struct sweep_options *o, int *ret_lock)
{
    static const char *const names[] = { "sweep.csv", "sweep.json", "sweep.html", "sweep.svg", "costs.txt" };
    const size_t n = sizeof names / sizeof *names - (o->costs != NULL); /* --costs replaces the last one */
    char path[SWEEP_PATH];
    snprintf(path, sizeof path, "%s/.sweep", o->out);
    if ((mkdir(o->out, 0777) && errno != EEXIST) || !can_write(path)) {
        fprintf(stderr, "recompute_sweep: --out %s: %s\n", o->out, strerror(errno));
        return false;
    }
    if (!lock_out(o, ret_lock)) return false;
    for (size_t i = 0; i < n; i++)
        if (!can_replace(o, names[i])) return false;
    return true;
}

/* Checks that the cost file can be written, if it does not exist. */
static bool prepare_costs(const struct sweep_options *o)
{
    if (!o->costs || !access(o->costs, F_OK) || can_write(o->costs)) return true;
    fprintf(stderr, "recompute_sweep: --costs %s: %s\n", o->costs, strerror(errno));
    return false;
}

static bool report_written(const struct sweep_options *o, const char *name, bool written)
{
    if (!written) fprintf(stderr, "recompute_sweep: %s/%s: %s\n", o->out, name, strerror(errno));
    return written;
}

/* Writes the rows of the first n lengths. Each file is written, also if another one could not be. */
static bool write_files(const struct sweep_options *all, const struct sweep_row *rows, int n_seqs,
                        const struct sweep_curve *curves)
{
    struct sweep_options o = *all;
    const int n = n_seqs * o.n_policies;
    o.n_seqs = n_seqs;
    bool good = report_written(&o, "sweep.csv", sweep_write_csv(&o, rows, n));
    good &= report_written(&o, "sweep.json", sweep_write_json(&o, rows, n));
    good &= report_written(&o, "sweep.html", sweep_write_html(&o, rows, n, curves));
    return good & report_written(&o, "sweep.svg", sweep_write_svg(&o, rows, n, curves));
}

/* For --fit: the smallest step that the model can be recorded at, by batch or by length. The caller's own may be too
   large to plan. */
static rw_status predict_smallest(const struct sweep_options *o, struct sweep_run *r, rw_prediction *ret)
{
    const int own = o->fit_seq ? o->seqs[0] : o->batch, most = own > 64 ? own : 64;
    rw_status status = RW_ERR_SHAPE;
    for (int x = 1; status == RW_ERR_SHAPE && x <= most; x *= 2) {
        rw_error_clear(r->m.ctx);
        status = sweep_predict(r, o->fit_seq ? o->batch : x, o->fit_seq ? x : o->seqs[0], NULL, ret);
    }
    return status;
}

/* A step that no memory of this process could hold fails, maybe hours after the first row. False with a message. */
static bool can_hold(const struct sweep_options *o, const struct sweep_run *r, int seq, const char *policy,
                     size_t bytes)
{
    const bool fits = rw_context_device(r->m.ctx) != RW_DEVICE_CPU || bytes <= sweep_process_bytes();
    if (!fits)
        fprintf(stderr, "recompute_sweep: %s %d under %s takes %zu bytes, and the process may hold %zu\n",
                sweep_seq_name(o), seq, policy, bytes, sweep_process_bytes());
    return fits;
}

/* Without a question the steps will run, and with them those of none. */
static rw_status try_length(struct sweep_options *o, int seq, bool question)
{
    struct sweep_run r;
    rw_prediction p;
    bool fits = true;
    rw_status status = sweep_plan_open(&r, o, seq);
    for (int i = 0; !status && fits && i < o->n_policies + !question; i++) {
        const char *const policy = i < o->n_policies ? o->policies[i] : "none";
        status = ckpt_set_policy(r.t, policy);
        if (!status && o->fit && !o->advise) status = predict_smallest(o, &r, &p);
        else if (!status) status = sweep_predict(&r, o->batch, seq, NULL, &p);
        if (!status && !question) fits = can_hold(o, &r, seq, policy, p.total_bytes);
        if (question && status == RW_ERR_BUDGET) rw_error_clear(r.m.ctx), status = RW_OK;
    }
    if (!status) o->threads = rw_context_threads(r.m.ctx);
    if (!status) o->device = rw_device_name(rw_context_device(r.m.ctx));
    status = sweep_run_close(&r, status);
    return fits ? status : RW_ERR_MEMORY;
}

/* Plans, but does not run, a step of each length under every policy of the list: a mistake in the last one, or a budget
   that is too small, must be reported before the others have trained. For --fit and --advise any step suffices, because
   budgets are their result. Records the device. */
static rw_status try_policies(struct sweep_options *o)
{
    const bool question = o->fit || o->advise;
    rw_status status = RW_OK;
    for (int s = 0; !status && s < (question ? 1 : o->n_seqs); s++) status = try_length(o, o->seqs[s], question);
    return status;
}

static bool add_policy(struct sweep_options *o, const char *policy)
{
    return o->n_policies < SWEEP_MAX && (o->policies[o->n_policies] = strdup(policy)) && ++o->n_policies;
}

/* For --fit without policies: the size itself as a budget fits more than hand-written policies. */
static bool add_totals(struct sweep_options *o)
{
    char policy[64];
    snprintf(policy, sizeof policy, "total:%zuB", o->fit);
    if (!add_policy(o, policy)) return false;
    snprintf(policy, sizeof policy, "total:%zuB+offload", o->fit);
    return !sweep_has_store(o) || add_policy(o, policy);
}

/* An unusable store is not a failure, unless a policy needs it. */
static rw_status try_moves(struct sweep_options *o, struct sweep_run *r, int i, bool *ret_moves)
{
    rw_prediction p;
    rw_status status = ckpt_set_policy(r->t, o->policies[i]);
    if (!status) status = predict_smallest(o, r, &p);
    *ret_moves |= status != RW_ERR_IO;
    if (status == RW_ERR_IO && !o->names_policies && i == o->n_policies - 1) {
        fprintf(stderr, "recompute_sweep: %s is left out: %s\n", o->policies[i], rw_error_message(r->m.ctx));
        free(o->policies[--o->n_policies]);
    } else if (status != RW_ERR_BUDGET) return status;
    rw_error_clear(r->m.ctx);
    return RW_OK;
}

/* The store's rates are measured once and saved with the costs, in path: with rates measured anew, the step that proves
   a plan would have another one. */
static rw_status keep_rate(struct sweep_options *o, char *path)
{
    struct sweep_run r;
    bool moves = false;
    rw_status status = sweep_plan_open(&r, o, o->seqs[0]);
    for (int i = 0; !status && i < o->n_policies; i++)
        if (strstr(o->policies[i], "offload")) status = try_moves(o, &r, i, &moves);
    const int f = !status && moves ? mkstemp(path) : -1;
    if (!status && moves) status = f < 0 ? RW_ERR_IO : rw_costs_save(r.m.ctx, path);
    if (f >= 0) close(f), o->costs = path;
    return sweep_run_close(&r, status);
}

/* Loads an existing cost file; else costs are measured and written there. */
static void find_costs(struct sweep_options *o)
{
    static char path[SWEEP_PATH];
    const bool given = o->costs != NULL;
    snprintf(path, sizeof path, "%s/costs.txt", o->out);
    if (!given) o->costs = path;
    o->has_costs = given && !access(o->costs, F_OK);
    o->measures_costs = !o->has_costs;
}

/* Calibrates costs for the machine, in a temporary file: no step of the model has to run for them. */
static rw_status take_ceilings(struct sweep_options *o, char *path)
{
    const rw_context_params params = sweep_context_params(o);
    rw_context *ctx = NULL;
    rw_status status = rw_context_create(&ctx, &params);
    const int f = status ? -1 : mkstemp(path);
    if (!status) status = rw_costs_calibrate(ctx);
    if (!status) status = f < 0 ? RW_ERR_IO : rw_costs_save(ctx, path);
    if (status) sweep_print_error(ctx, status);
    if (f >= 0) close(f);
    rw_context_destroy(&ctx);
    o->costs = path;
    o->has_costs = o->has_ceilings = !status;
    return status;
}

/* Answers --fit and --advise from plans only; costs are measured first if the named file does not exist. */
static int answer(struct sweep_options *o, const struct sweep_text *text)
{
    char ceilings[] = "/tmp/rewind-ceilings-XXXXXX", moving[] = "/tmp/rewind-costs-XXXXXX";
    const bool named = o->costs != NULL;
    find_costs(o);
    rw_status status = try_policies(o);
    if (!status && !named) status = take_ceilings(o, ceilings);
    else if (!status && o->measures_costs) status = sweep_measure_costs(o, text, o->seqs[0]);
    if (isatty(2)) fprintf(stderr, "\r\033[K");
    const bool advised = !status && (!o->advise || sweep_advise(o));
    if (advised && o->fit && !o->names_policies && !add_totals(o)) status = RW_ERR_MEMORY;
    if (advised && o->fit && !status) status = keep_rate(o, moving);
    const bool good = advised && !status && (!o->fit || sweep_fit(o, text));
    if (!named) remove(ceilings);
    if (o->costs == moving) remove(moving);
    return status ? 2 : good ? 0 : 1;
}

/* Runs all lengths and policies and writes the files; returns the program's exit status. */
static int sweep(struct sweep_options *o, const struct sweep_text *text)
{
    static struct sweep_row rows[SWEEP_MAX * SWEEP_MAX];
    static struct sweep_curve curves[SWEEP_MAX];
    int n = 0, n_seqs = 0;
    bool good = true, written = false, ran = true;
    signal(SIGPIPE, SIG_IGN); /* a pipe whose reader has ended is an error at the end, after the files are written */
    signal(SIGXFSZ, SIG_IGN);
    find_costs(o);
    rw_status status = try_policies(o);
    const rw_context_params params = sweep_context_params(o);
    if (!status && (status = limit_matmul(&params, o->model.dtype, &o->ceiling))) sweep_print_error(NULL, status);
    if (!status) print_header(o);
    for (int i = 0; !status && i < o->n_seqs; i++) {
        status = sweep_seq(o, text, o->seqs[i], rows, &n, &curves[i], &good, &ran);
        if (!ran) break;
        written = write_files(o, rows, ++n_seqs, curves); /* a later length may fail, or end the process */
    }
    if (written) printf("wrote %s/sweep.csv, sweep.json, sweep.html, sweep.svg\n", o->out);
    if (written && n_seqs < o->n_seqs)
        fprintf(stderr, "recompute_sweep: they have %d of %d %ss\n", n_seqs, o->n_seqs, sweep_seq_name(o));
    for (int i = 0; i < n; i++) outcome_close(&rows[i].outcome), outcome_close(&rows[i].own);
    return status || !written ? 2 : good ? 0 : 1;
}

static int run(struct sweep_options *o, const struct sweep_text *text)
{
    char why[512];
    const rw_context_params params = sweep_context_params(o);
    if (rw_device_check(params.device, why, sizeof why)) {
        fprintf(stderr, "recompute_sweep: device %s: %s\n", o->device, why);
        return 2;
    }
    if (!prepare_costs(o)) return 2;
    if (o->fit || o->advise) return answer(o, text);
    int lock = -1;
    const int status = prepare_out(o, &lock) ? sweep(o, text) : 2;
    if (lock >= 0) close(lock);
    return status;
}

/* Variables that would change what every row does, and with it times and memory. */
static void ignore_environment(void)
{
    static const struct {
        const char *name, *why;
    } ignored[] = { { "REWIND_POLICY", "each row has its own policy" },
                    { "REWIND_VERIFY", "each row is compared with none by itself" },
                    { "REWIND_EAGER", "the steps of the rows are planned" } };
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) {
        if (getenv(ignored[i].name))
            fprintf(stderr, "recompute_sweep: %s is ignored: %s\n", ignored[i].name, ignored[i].why);
        unsetenv(ignored[i].name);
    }
}

int main(int argc, char **argv)
{
    ignore_environment();
    struct sweep_options o;
    const int read = sweep_options_read(&o, argc, argv);
    if (read) {
        sweep_options_finish(&o);
        return answer_end("recompute_sweep", read - 1);
    }
    struct sweep_text text = { 0 };
    int status = 2;
    if (read_text(o.data, &text)) {
        const bool plans_only = (o.fit || o.advise) && (!o.costs || !access(o.costs, F_OK));
        int longest = 0;
        for (int i = 0; i < o.n_seqs; i++) longest = o.seqs[i] > longest ? o.seqs[i] : longest;
        if (!plans_only && text.n <= (size_t)longest + 1)
            fprintf(stderr, "recompute_sweep: %s: %zu bytes, more than %d are needed\n", o.data, text.n, longest + 1);
        else status = run(&o, &text);
    }
    free(text.bytes);
    sweep_options_finish(&o);
    return answer_end("recompute_sweep", status);
}
