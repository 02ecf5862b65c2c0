/*
 * rw_checkpoint_load(): restores the newest valid file, in three steps. First all digests of a file are verified,
 * before its contents are trusted. Then all required entries are found and checked. Only then is anything changed.
 */
#include "base/alloc.h"
#include "base/c_locale.h"
#include "io/checkpoint.h"
#include "record/tape.h"
#include "run/run_advance.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHY (RW_MESSAGE_MAX / 2)
#define LISTINGS 10 /* maximum number, while listed files are removed by a run that saves */

struct loading {
    rw_checkpoint *c;
    rw_context *ctx;
    int threads;
    struct rw_format_file file;
    char *path;
    char why[WHY];
    rw_checkpoint_found found;
    /* The data to apply in the last step. */
    const void **params, **states, **counts, **settings, **averages; /* settings: NULL if the file has none */
    rw_lr_schedule schedule;
    rw_generator_state generator;
    double lr;
};

static rw_status refuse(struct loading *l, rw_status status, const char *text, const char *name)
{
    snprintf(l->why, sizeof l->why, text, name);
    return status;
}

/* ---- is it whole? ---- */

static const char *text_of(const struct loading *l, const char *key)
{
    return rw_header_metadata(&l->file.header, key);
}

static bool is_digest_of(const struct loading *l, const char *text, const void *data, size_t bytes)
{
    char right[RW_DIGEST_TEXT];
    rw_digest_print(rw_digest_bytes(data, bytes, l->threads), right);
    return text && !strcmp(text, right);
}

static const unsigned char *elements_of(const struct loading *l, const struct rw_header_entry *e)
{
    return l->file.elements + e->from;
}

/* Verifies the header's own digest, which is in an entry that it names: the last bytes of the elements. */
static rw_status check_header(struct loading *l)
{
    struct rw_format_file *const f = &l->file;
    const struct rw_header_entry *const entry = rw_header_find(&f->header, RW_SNAPSHOT_HEADER);
    struct rw_digest there;
    if (!entry || rw_format_bytes(entry) != sizeof there)
        return refuse(l, RW_ERR_IO, "expected a checkpoint of rw_checkpoint_save(), got another file%s", "");
    const rw_status status = rw_format_read(f, entry, &there, l->why, sizeof l->why);
    if (status) return status;
    const struct rw_digest is = rw_digest_bytes(f->begin, f->n_begin, l->threads);
    return rw_digest_equal(there, is) ? RW_OK : refuse(l, RW_ERR_IO, "the header is damaged%s", "");
}

/* The tensor whose digest a metadata pair is. NULL: the pair is not a digest, or, with an error, there is no such
   tensor. */
static const struct rw_header_entry *digested(struct loading *l, const struct rw_header_pair *m, rw_status *status)
{
    static const size_t n_prefix = sizeof RW_SNAPSHOT_DIGEST - 1;
    if (strncmp(m->key, RW_SNAPSHOT_DIGEST, n_prefix) != 0) return NULL;
    const struct rw_header_entry *const entry = rw_header_find(&l->file.header, m->key + n_prefix);
    if (!entry) *status = refuse(l, RW_ERR_IO, "\"%.200s\" is not in the file", m->key + n_prefix);
    return entry;
}

/* Before memory is allocated: the file has the length that its header says, and every byte is covered by a digest. */
static rw_status check_covered(struct loading *l)
{
    const struct rw_header *const h = &l->file.header;
    rw_status status = RW_OK;
    uint64_t covered = 0;
    size_t n = 0;
    for (size_t i = 0; !status && i < h->n_pairs; i++) {
        const struct rw_header_entry *const entry = digested(l, &h->pair[i], &status);
        covered += entry ? rw_format_bytes(entry) : 0;
        n += entry != NULL;
    }
    const bool all = covered + sizeof(struct rw_digest) == l->file.n_elements && n + 1 == h->n;
    return status || all ? status : refuse(l, RW_ERR_IO, "its digests do not cover the whole file%s", "");
}

static rw_status check_tensors(struct loading *l)
{
    const struct rw_header *const h = &l->file.header;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < h->n_pairs; i++) {
        const struct rw_header_entry *const e = digested(l, &h->pair[i], &status);
        if (e && !is_digest_of(l, h->pair[i].value, elements_of(l, e), rw_format_bytes(e)))
            return refuse(l, RW_ERR_IO, "\"%.200s\" is damaged", e->name);
    }
    return status;
}

static rw_status check_whole(struct loading *l)
{
    rw_status status = rw_format_open(&l->file, l->path, l->why, sizeof l->why);
    if (!status) status = check_header(l);
    if (status) return status;
    const char *const version = text_of(l, RW_SNAPSHOT_VERSION);
    if (!version || strcmp(version, "1"))
        return refuse(l, RW_ERR_UNSUPPORTED,
                      "expected format version 1, got %.20s: another version of the library wrote the file",
                      version ? version : "?");
    status = check_covered(l);
    if (!status) status = rw_format_read_all(&l->file, l->why, sizeof l->why);
    return status ? status : check_tensors(l);
}

/* ---- does it fit? ---- */

/* A tensor of the parameter's shape. */
static rw_status find_like(struct loading *l, const char *name, const struct rw_param *p, rw_dtype dtype,
                           const void **ret)
{
    const struct rw_header_entry *entry;
    const rw_status status = rw_format_locate(&l->file, name, dtype, rw_layout_shape(rw_layout_of(l->ctx, &p->tensor)),
                                              &entry, l->why, sizeof l->why);
    if (!status) *ret = elements_of(l, entry);
    return status;
}

static rw_status find(struct loading *l, const char *name, const struct rw_param *p, const void **ret)
{
    return find_like(l, name, p, (rw_dtype)p->tensor.dtype, ret);
}

/* Refuses a number that no save writes, in a file whose digests are correct; the message names the field. */
static rw_status refuse_number(struct loading *l, const char *field, double x, const char *expected)
{
    snprintf(l->why, sizeof l->why, "\"%.300s\": expected %s, got %g", field, expected, x);
    return RW_ERR_IO;
}

static bool is_rate(double x)
{
    return x >= 0 && isfinite(x);
}

/* The number of an update has 32 bits. */
static rw_status check_count(struct loading *l, const char *name, const void *from)
{
    int64_t count[2];
    memcpy(count, from, sizeof count);
    if (count[0] < 0 || count[0] >= UINT32_MAX)
        return refuse_number(l, name, (double)count[0], "a number of updates from 0 to 2^32 - 2");
    return count[1] == 0 || count[1] == 1 ? RW_OK : refuse_number(l, name, (double)count[1], "0 or 1");
}

static void describe_missing(struct loading *l, const char *param)
{
    snprintf(l->found.missing, sizeof l->found.missing,
             "settings of rw_optimizer_set(): the program's settings are kept; first of \"%.120s\"", param);
}

/* Older files have none. */
static rw_status find_settings(struct loading *l, size_t i, const struct rw_kept *k)
{
    char name[RW_SNAPSHOT_NAME_MAX];
    double settings[2];
    rw_snapshot_name(name, "settings", k->param->name);
    const struct rw_header_entry *const entry = rw_header_find(&l->file.header, name);
    if (!entry) {
        if (!*l->found.missing) describe_missing(l, k->param->name);
        return RW_OK;
    }
    if (rw_format_bytes(entry) != sizeof settings)
        return refuse(l, RW_ERR_IO, "\"%.300s\": expected two numbers", name);
    memcpy(settings, elements_of(l, entry), sizeof settings);
    if (!is_rate(settings[0])) return refuse_number(l, name, settings[0], "an lr_factor that is finite and 0 or more");
    if (!isfinite(settings[1])) return refuse_number(l, name, settings[1], "a finite weight_decay");
    l->settings[i] = elements_of(l, entry);
    return RW_OK;
}

/* The file's rate with the settings that the parameter will have. */
static rw_status check_rate(struct loading *l, size_t i, const struct rw_kept *k)
{
    double settings[2] = { k->lr_factor, k->weight_decay };
    if (l->settings[i]) memcpy(settings, l->settings[i], sizeof settings);
    if (rw_optimizer_rate_fits(l->c->optimizer, i, l->lr, settings[0], settings[1])) return RW_OK;
    return refuse_number(l, RW_SNAPSHOT_LR, l->lr, "a learning rate whose product with each lr_factor is finite");
}

static rw_status find_kept(struct loading *l, size_t i)
{
    const struct rw_kept k = rw_optimizer_kept(l->c->optimizer, i);
    char name[RW_SNAPSHOT_NAME_MAX];
    rw_status status = RW_OK;
    for (int j = 0; !status && j < k.n; j++) {
        rw_snapshot_name(name, k.name[j], k.param->name);
        status = find_like(l, name, k.param, k.dtype[j], &l->states[i * RW_KEPT_MAX + (size_t)j]);
    }
    if (status) return status;
    rw_snapshot_name(name, "step", k.param->name);
    const struct rw_header_entry *const entry = rw_header_find(&l->file.header, name);
    if (!entry || rw_format_bytes(entry) != 2 * sizeof(int64_t))
        return refuse(l, RW_ERR_IO, "\"%.300s\" is not in the file", name);
    l->counts[i] = elements_of(l, entry);
    status = check_count(l, name, l->counts[i]);
    if (!status) status = find_settings(l, i, &k);
    return status ? status : check_rate(l, i, &k);
}

/* As it was written, to its end. */
static bool read_rate(const char *text, double *ret)
{
    char *end;
    const locale_t before = rw_c_locale_begin();
    *ret = strtod(text, &end);
    rw_c_locale_end(before);
    return *text && !*end;
}

static rw_status find_optimizer(struct loading *l)
{
    const char *const kind = text_of(l, RW_SNAPSHOT_OPTIMIZER), *const lr = text_of(l, RW_SNAPSHOT_LR);
    const char *const wanted = rw_optimizer_kind_name(l->c->optimizer);
    if (!kind || !lr) return refuse(l, RW_ERR_IO, "expected the state of an optimizer, got a file without one%s", "");
    if (strcmp(kind, wanted)) {
        snprintf(l->why, sizeof l->why, "optimizer: expected %s, got %.20s in the file", wanted, kind);
        return RW_ERR_ARGUMENT;
    }
    if (!read_rate(lr, &l->lr)) return refuse(l, RW_ERR_IO, "learning rate: expected a number, got \"%.40s\"", lr);
    if (!is_rate(l->lr)) return refuse_number(l, RW_SNAPSHOT_LR, l->lr, "a learning rate that is finite and 0 or more");
    const size_t n = rw_optimizer_members(l->c->optimizer);
    l->states = rw_calloc(n * RW_KEPT_MAX, sizeof *l->states);
    l->counts = rw_calloc(n, sizeof *l->counts);
    l->settings = rw_calloc(n, sizeof *l->settings);
    if (!l->states || !l->counts || !l->settings) return refuse(l, RW_ERR_MEMORY, "out of memory%s", "");
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n; i++) status = find_kept(l, i);
    return status;
}

static rw_status find_average(struct loading *l)
{
    const rw_weight_average *const a = l->c->average;
    const size_t n = rw_average_members(a);
    char name[RW_SNAPSHOT_NAME_MAX];
    l->averages = rw_calloc(n, sizeof *l->averages);
    rw_status status = l->averages ? RW_OK : refuse(l, RW_ERR_MEMORY, "out of memory%s", "");
    for (size_t i = 0; !status && i < n; i++) {
        rw_snapshot_name(name, "average", rw_average_param(a, i)->name);
        status = find(l, name, rw_average_state(a, i), &l->averages[i]);
    }
    return status;
}

static bool read_schedule(const char *text, rw_lr_schedule *s)
{
    int kind = 0, end = 0;
    const locale_t before = rw_c_locale_begin();
    const int n = sscanf(text, "%d %la %la %" SCNu64 " %" SCNu64 " %" SCNu64 " %la%n", &kind, &s->lr, &s->min_lr,
                         &s->warmup, &s->total, &s->every, &s->factor, &end);
    rw_c_locale_end(before);
    s->kind = (rw_lr_schedule_kind)kind;
    return n == 7 && !text[end];
}

static rw_status find_schedule(struct loading *l)
{
    const char *const text = text_of(l, RW_SNAPSHOT_SCHEDULE);
    if (!text) return refuse(l, RW_ERR_IO, "expected a learning-rate schedule, got a file without one%s", "");
    if (!read_schedule(text, &l->schedule))
        return refuse(l, RW_ERR_IO, "schedule: expected a learning-rate schedule, got \"%.120s\"", text);
    if (isfinite(rw_lr_schedule_rate(&l->schedule, 0))) return RW_OK;
    return refuse(l, RW_ERR_IO, RW_SNAPSHOT_SCHEDULE " \"%.120s\" gives no learning rate", text);
}

/* Copies the caller's bytes into memory of the checkpoint, because the file is closed. */
static rw_status find_extra(struct loading *l, void **ret_extra)
{
    const struct rw_header_entry *const entry = rw_header_find(&l->file.header, RW_SNAPSHOT_EXTRA);
    const size_t bytes = entry ? rw_format_bytes(entry) : 0;
    if (!entry) return refuse(l, RW_ERR_IO, "expected extra bytes of the caller, got a file without any%s", "");
    void *const extra = rw_malloc(bytes);
    if (!extra) return refuse(l, RW_ERR_MEMORY, "out of memory%s", "");
    memcpy(extra, elements_of(l, entry), bytes);
    *ret_extra = extra;
    l->found.extra_bytes = bytes;
    return RW_OK;
}

/* Finds and checks everything that the caller requests before take() writes the first byte: a file that lacks
   something changes nothing. */
static rw_status find_all(struct loading *l, void **ret_extra)
{
    const rw_context *const ctx = l->ctx;
    const char *const step = text_of(l, RW_SNAPSHOT_STEP), *const g = text_of(l, RW_SNAPSHOT_GENERATOR);
    int step_end = 0, end = 0;
    if (!step || sscanf(step, "%" SCNu64 "%n", &l->found.step, &step_end) != 1 || step[step_end] || !g ||
        sscanf(g, "%" SCNu64 " %" SCNu64 "%n", &l->generator.seed, &l->generator.offset, &end) != 2 || g[end])
        return refuse(l, RW_ERR_IO, "expected a step and the state of a generator, got a file without them%s", "");
    l->params = rw_calloc(ctx->n_params, sizeof *l->params);
    rw_status status = l->params ? RW_OK : refuse(l, RW_ERR_MEMORY, "out of memory%s", "");
    for (size_t i = 0; !status && i < ctx->n_params; i++)
        status = find(l, ctx->params[i]->name, ctx->params[i], &l->params[i]);
    if (!status && l->c->optimizer) status = find_optimizer(l);
    if (!status && l->c->average) status = find_average(l);
    if (!status && l->c->schedule) status = find_schedule(l);
    return status ? status : find_extra(l, ret_extra);
}

/* ---- applying ---- */

static rw_status upload(rw_context *ctx, const struct rw_param *p, const void *from)
{
    return ctx->device->upload(ctx->device_state, p->data, from, p->bytes);
}

static void take_settings(struct loading *l, size_t i)
{
    double settings[2];
    if (!l->settings[i]) return;
    memcpy(settings, l->settings[i], sizeof settings);
    rw_optimizer_resume_settings(l->c->optimizer, i, settings[0], settings[1]);
}

static rw_status take_optimizer(struct loading *l)
{
    rw_optimizer *const opt = l->c->optimizer;
    rw_status status = rw_optimizer_settle(opt);
    if (!status) status = rw_optimizer_rewrite_begin(opt);
    for (size_t i = 0; !status && i < rw_optimizer_members(opt); i++) {
        const struct rw_kept k = rw_optimizer_kept(opt, i);
        int64_t count[2];
        memcpy(count, l->counts[i], sizeof count);
        for (int j = 0; !status && j < k.n; j++)
            status = rw_optimizer_write(opt, i, j, l->states[i * RW_KEPT_MAX + (size_t)j]);
        if (!status) rw_optimizer_resume(opt, i, (uint64_t)count[0], count[1] != 0);
        if (!status) take_settings(l, i);
    }
    if (status) return status;
    rw_optimizer_rewrite_end(opt);
    rw_optimizer_set_lr(opt, l->lr);
    return status;
}

/* Graphs of recorded steps continue from the loaded generator, as the saved run does. */
static void let_launches_draw(rw_context *ctx)
{
    for (rw_tape *t = ctx->tapes; t; t = t->next)
        if (t->n_nodes) t->launch_draws = true;
}

/* Nothing in the file can make this fail, only the device, the file of offloaded optimizer states or a lack of memory:
   then the state is partly loaded, and offloaded states refuse to step until the next load. A parameter's version
   grows before its copy, so that values computed from the old bytes are stale in that case too. */
static rw_status take(struct loading *l)
{
    rw_context *const ctx = l->ctx;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < ctx->n_params; i++) {
        ctx->params[i]->version++;
        status = upload(ctx, ctx->params[i], l->params[i]);
    }
    if (!status && l->c->optimizer) status = take_optimizer(l);
    for (size_t i = 0; !status && l->c->average && i < rw_average_members(l->c->average); i++) {
        struct rw_param *const a = rw_average_state(l->c->average, i);
        a->version++;
        status = upload(ctx, a, l->averages[i]);
    }
    if (status)
        return rw_fail(ctx, status, "rw_checkpoint_load: %s: a copy to the device, or to the file of optimizer states, "
                                    "failed; the state is partly loaded: load again", l->path);
    if (l->c->schedule) *l->c->schedule = l->schedule;
    rw_generator_set(ctx, l->generator);
    let_launches_draw(ctx);
    rw_zero_grad(ctx);
    return RW_OK;
}

/* ---- which one ---- */

static void forget_file(struct loading *l)
{
    rw_format_finish(&l->file);
    rw_free(l->path);
    rw_free(l->params);
    rw_free(l->states);
    rw_free(l->counts);
    rw_free(l->settings);
    rw_free(l->averages);
    l->path = NULL;
    l->params = l->states = l->counts = l->settings = l->averages = NULL;
}

static rw_status open_file(struct loading *l, const struct rw_rotated *file)
{
    l->path = rw_retention_path(&l->c->rotation, file);
    return l->path ? check_whole(l) : refuse(l, RW_ERR_MEMORY, "out of memory%s", "");
}

/* Opens the newest valid file; found is false if there is none at all. *ret_is_gone: a listed file was removed
   meanwhile, and nothing was opened; NULL: such a name is skipped as a damaged file is. */
static rw_status search(struct loading *l, const struct rw_rotated *files, size_t n, bool *ret_is_gone)
{
    rw_status status = RW_OK;
    for (size_t i = 0; i < n && !l->found.found; i++) {
        status = open_file(l, &files[i]);
        l->found.found = !status;
        if (!status) break;
        if (ret_is_gone && l->file.is_gone) {
            *ret_is_gone = true;
            return RW_OK;
        }
        const char *const name = l->path ? strrchr(l->path, '/') + 1 : "";
        if (!l->found.skipped++) snprintf(l->found.why, sizeof l->found.why, "%s: %.200s", name, l->why);
        if (status != RW_ERR_IO || l->file.unreadable) break;
        if (!rw_retention_note_bad(&l->c->rotation, files[i].number))
            return refuse(l, RW_ERR_MEMORY, "out of memory%s", "");
        forget_file(l);
    }
    if (!status) return RW_OK;
    if (l->file.unreadable) return status;
    snprintf(l->why, sizeof l->why, "%s%s", status == RW_ERR_IO ? "no undamaged file: " : "", l->found.why);
    return status;
}

/* A run that saves to the folder meanwhile removes old files when it has written a new one: then the folder is listed
   again. A name that stays without a file, such as a link to nothing, is skipped in the end. */
static rw_status list_and_search(struct loading *l)
{
    rw_status status = RW_OK;
    bool is_gone = true;
    for (int attempt = 1; !status && is_gone; attempt++) {
        struct rw_rotated *files = NULL;
        size_t n = 0;
        is_gone = false;
        forget_file(l);
        l->found = (rw_checkpoint_found){ 0 };
        status = rw_retention_list(&l->c->rotation, &files, &n, l->why, sizeof l->why);
        if (!status) status = search(l, files, n, attempt < LISTINGS ? &is_gone : NULL);
        rw_free(files);
    }
    return status;
}

static rw_status load(struct loading *l)
{
    void *extra = NULL;
    rw_status status = list_and_search(l);
    if (!status && l->found.found) status = find_all(l, &extra);
    if (status)
        return rw_fail(l->ctx, status, "rw_checkpoint_load: %s: %s", l->path ? l->path : l->c->rotation.folder, l->why);
    if (!l->found.found) return RW_OK;
    status = take(l);
    rw_free(l->c->extra);
    l->c->extra = extra;
    l->found.extra = extra;
    const size_t length = strlen(l->path), most = sizeof l->found.path - 1;
    strcpy(l->found.path, l->path + (length > most ? length - most : 0));
    return status;
}

static rw_status check_tapes(rw_context *ctx)
{
    for (const rw_tape *t = ctx->tapes; t; t = t->next)
        if (t->n_nodes && t->n_users == 1)
            return rw_fail(ctx, RW_ERR_ARGUMENT,
                           "rw_checkpoint_load: expected no recorded step, got a tape that holds one with its random "
                           "numbers; load before recording, or after rw_tape_reset()");
    return RW_OK;
}

/* The writing thread ends first, because its file is the newest. Queued runs end before the files are read: they may
   still use the parameters. */
rw_status rw_checkpoint_load(rw_checkpoint *c, rw_checkpoint_found *ret_found)
{
    RW_ENTER(RW_CONTEXT_OF(c), RW_ERR_ARGUMENT);
    if (!c) return rw_fail_null(NULL, "rw_checkpoint_load", "checkpoint");
    if (c->ctx->status) return c->ctx->status;
    struct loading l = { .c = c, .ctx = c->ctx, .threads = c->ctx->threads, .file.fd = -1 };
    rw_status status = rw_check_runs(c->ctx, "rw_checkpoint_load");
    if (!status) status = rw_checkpoint_check(c, "rw_checkpoint_load");
    if (!status) status = rw_checkpoint_wait(c);
    if (!status) status = check_tapes(c->ctx);
    if (!status) status = rw_runs_wait(c->ctx);
    if (!status) status = rw_start_threads(c->ctx, "rw_checkpoint_load", l.threads);
    if (!status) status = load(&l);
    if (!status && ret_found) *ret_found = l.found;
    forget_file(&l);
    return status;
}
