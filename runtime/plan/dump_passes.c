/*
 * One text file per pass. Values are v0, v1, ... and nodes n0, n1, ... by their position on the tape, which is the same
 * in every run of a program; gradients' nodes follow the recorded ones.
 */
#include "plan/dump_passes.h"

#include "base/alloc.h"
#include "base/file_descriptor_io.h"
#include "base/folder.h"
#include "base/atomic_file_replace.h"
#include "plan/explain_rows.h"
#include "plan/print.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *base_name(const char *path)
{
    const char *const slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path ? path : "-";
}

static void print_type(const rw_tape *t, uint32_t v, FILE *out)
{
    const struct rw_tensor *const x = rw_tape_value(t, v);
    const rw_layout *const l = rw_layout_get(&t->ctx->layouts, x->layout);
    fprintf(out, "%s[", rw_dtype_name((rw_dtype)x->dtype));
    for (int i = 0; i < l->rank; i++) fprintf(out, "%s%" PRId64, i ? ", " : "", l->dim[i]);
    fprintf(out, "]");
}

/* ---- pass 1 and 2: the tape, with the nodes that differentiation added ---- */

static void print_tape(const struct rw_planning *g, const rw_plan *plan, FILE *out)
{
    const rw_tape *const t = g->problem.t;
    fprintf(out, "tape: %zu nodes, of which %" PRIu32 " recorded\n", t->n_nodes, plan->mark_nodes);
    for (size_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        const rw_site at = t->ctx->sites[node->site];
        char region[128];
        rw_region_path(t, rw_node_region(t, node), region, sizeof region);
        fprintf(out, "n%-5zu %-22s %-16s", n, t->ctx->ops[node->op]->name, *region ? region : "-");
        for (uint32_t i = 0; i < node->n_inputs; i++) fprintf(out, " v%" PRIu32, t->operands[node->first_input + i]);
        fprintf(out, " ->");
        for (uint32_t i = 0; i < node->n_outputs; i++) {
            fprintf(out, " v%" PRIu32 ":", node->first_output + i);
            print_type(t, node->first_output + i, out);
        }
        if (node->ticket != RW_NONE_ID) fprintf(out, " ticket%" PRIu32, node->ticket);
        if (node->adjoint && node->of != RW_NONE_ID) fprintf(out, " gradient of n%" PRIu32, node->of);
        fprintf(out, "  %s:%d\n", base_name(rw_file_of(at)), (int)at.line);
    }
}

/* ---- the problem ---- */

static void print_problem(const struct rw_planning *g, const rw_plan *plan, FILE *out)
{
    const struct rw_problem *const p = &g->problem;
    fprintf(out, "problem: %zu nodes to execute, in this order\n", p->n_order);
    for (size_t i = 0; i < p->n_order; i++) {
        const uint32_t n = p->order[i];
        const struct rw_node *const node = &p->t->nodes[n];
        fprintf(out, "n%-5" PRIu32 " %-22s %9.4g us, flops %.6g, bytes %.6g, workspace %" PRIu64, n,
                p->t->ctx->ops[node->op]->name, rw_problem_seconds(p, n) * 1e6, p->cost[n].flops, p->cost[n].bytes,
                p->workspace[n]);
        for (uint32_t k = 0; k < node->n_outputs; k++) {
            const uint32_t v = rw_tape_base(p->t, node->first_output + k);
            fprintf(out, "; v%" PRIu32 " %" PRIu64 " bytes%s", v, p->bytes[v], p->wanted[v] ? ", requested" : "");
        }
        fprintf(out, "\n");
    }
}

/* ---- the choice ---- */

static void print_choice(const struct rw_planning *g, const rw_plan *plan, FILE *out)
{
    static const char *const what[] = { [RW_KEEP] = "keep", [RW_REPLAY] = "recompute", [RW_MOVE] = "offload",
                                 [RW_KEEP_FIRST] = "keep for the first visit" };
    const struct rw_problem *const p = &g->problem;
    fprintf(out, "choice: %zu segments\n", g->choice.n_segments);
    for (size_t s = 0; s < g->choice.n_segments; s++)
        fprintf(out, "s%-5zu in s%" PRIu32 ", depth %" PRIu32 "\n", s, g->choice.segment[s].parent,
                g->choice.segment[s].depth);
    for (uint32_t v = 0; v < p->t->n_values; v++) {
        if (!rw_problem_makes(p, v)) continue;
        const uint32_t producer = rw_tape_value(p->t, v)->producer;
        const struct rw_fate fate = g->choice.fate[v];
        if (producer == RW_NONE_ID || !p->needed[producer]) continue;
        fprintf(out, "v%-5" PRIu32 " %12" PRIu64 " bytes  n%-5" PRIu32 " s%-4" PRIu32 " ", v, p->bytes[v], producer,
                g->choice.segment_of[producer]);
        if (!fate.level || fate.what == RW_KEEP_FIRST) fprintf(out, "%s", what[fate.what]);
        if (fate.level) fprintf(out, "%srecompute at level %" PRIu32, fate.what == RW_KEEP_FIRST ? ", " : "",
                                fate.level);
        fprintf(out, " (%s)\n", rw_why_text(fate.why));
    }
}

/* ---- the schedule ---- */

static void print_schedule(const struct rw_planning *g, const rw_plan *plan, FILE *out)
{
    const struct rw_schedule *const s = &g->schedule;
    fprintf(out, "schedule: %zu actions, of which %zu before backward; %zu buffers\n", s->n_actions, s->n_forward,
            s->n_buffers);
    for (size_t i = 0; i < s->n_actions; i++) {
        const struct rw_action *const a = &s->actions[i];
        fprintf(out, "a%-5zu %-9s n%-5" PRIu32, i, rw_action_kind_name(a->kind), a->node);
        for (uint32_t k = 0; k < a->n_words; k++) fprintf(out, " b%" PRIu32, s->refs[a->word + k]);
        fprintf(out, "\n");
    }
    for (size_t b = 0; b < s->n_buffers; b++) {
        const struct rw_buffer *const x = &s->buffers[b];
        fprintf(out, "b%-5zu %12" PRIu64 " bytes  a%" PRIu32 "..a%" PRIu32 "  ", b, x->bytes, x->first, x->last);
        if (x->value == RW_NONE_ID) fprintf(out, "workspace or store");
        else fprintf(out, "v%" PRIu32, x->value);
        fprintf(out, "%s%s", x->replay ? " recomputed" : "", x->source != RW_NONE_ID ? " outside the arena" : "");
        if (x->merged != b) fprintf(out, " in the memory of b%" PRIu32, x->merged);
        fprintf(out, "\n");
    }
}

/* ---- files ---- */

/* Of a context that dumps. */
struct dump {
    char *folder;
};

static void destroy_dump(rw_context *ctx, void *state)
{
    rw_free(((struct dump *)state)->folder);
}

static struct rw_extension dump_extension = { .name = "dump", .size = sizeof(struct dump), .destroy = destroy_dump };

rw_status rw_plan_dump_into(rw_context *ctx, const char *folder)
{
    if (!folder || !*folder) return RW_OK;
    struct dump *const d = rw_extension_make(&ctx->extensions, &dump_extension);
    if (!d) return RW_ERR_MEMORY;
    d->folder = rw_path_whole(folder);
    if (d->folder && rw_folder_make(d->folder)) return RW_OK;
    const int reason = errno;
    const rw_status status = reason == ENOMEM ? RW_ERR_MEMORY : RW_ERR_IO;
    return rw_fail(ctx, status, "REWIND_DUMP=%s: expected a folder that exists or can be created: %s", folder,
                   strerror(reason));
}

typedef void print_pass(const struct rw_planning *g, const rw_plan *plan, FILE *out);

static rw_status print_into(struct rw_replacement *r, const struct rw_planning *g, const rw_plan *plan,
                            print_pass *print)
{
    FILE *const out = rw_replace_stream(r);
    if (!out) return RW_ERR_MEMORY;
    if (print) print(g, plan, out);
    else if (rw_plan_print_to(g, plan, out)) return RW_ERR_MEMORY;
    return ferror(out) ? RW_ERR_IO : RW_OK;
}

static const struct {
    const char *name;
    print_pass *print; /* NULL: the plan */
} passes[] = { { "tape", print_tape },         { "problem", print_problem }, { "choice", print_choice },
               { "schedule", print_schedule }, { "plan", NULL } };

/* A plan's files: those of a number that no other plan in the folder has. */
struct files {
    rw_context *ctx;
    const char *folder;
    unsigned number;
    size_t size;
    char *path; /* of one of them */
};

static const char *path_of(const struct files *f, size_t pass)
{
    snprintf(f->path, f->size, "%s/%04u.%s", f->folder, f->number, passes[pass].name);
    return f->path;
}

static rw_status cannot_write(const struct files *f, rw_status status, const char *why)
{
    return rw_fail(f->ctx, status, "REWIND_DUMP: %s cannot be written: %s", f->path, why);
}

/* Takes the next free number by creating its first file: children of fork(), other processes and earlier runs may have
   files in the folder. */
static rw_status take_number(struct files *f)
{
    static atomic_uint numbers; /* of the process: several contexts may share a folder */
    int fd;
    do {
        f->number = atomic_fetch_add(&numbers, 1) + 1;
        fd = rw_fd_open(path_of(f, 0), O_WRONLY | O_CREAT | O_EXCL, 0666);
    } while (fd < 0 && errno == EEXIST);
    if (fd < 0) return cannot_write(f, RW_ERR_IO, strerror(errno));
    close(fd);
    return RW_OK;
}

static rw_status write_pass(const struct files *f, const struct rw_planning *g, const rw_plan *plan, size_t pass)
{
    struct rw_replacement r;
    const char *why = NULL;
    rw_status status = rw_replace_begin(&r, path_of(f, pass), &why);
    r.transient = true;
    if (!status) status = rw_replace_end(&r, print_into(&r, g, plan, passes[pass].print));
    if (!status) return RW_OK;
    if (status == RW_ERR_IO && !why) why = strerror(errno);
    cannot_write(f, status, why ? why : rw_status_name(status));
    if (!pass) unlink(f->path); /* it is empty */
    return status;
}

rw_status rw_plan_dump(const struct rw_planning *g, const rw_plan *plan)
{
    rw_context *const ctx = g->problem.t->ctx;
    const struct dump *const d = rw_extension_find(&ctx->extensions, &dump_extension);
    if (!d) return RW_OK;
    struct files f = { .ctx = ctx, .folder = d->folder, .size = strlen(d->folder) + 32 };
    f.path = rw_malloc(f.size);
    if (!f.path) return rw_fail(ctx, RW_ERR_MEMORY, "REWIND_DUMP: out of memory");
    rw_status status = take_number(&f);
    for (size_t i = 0; !status && i < sizeof passes / sizeof *passes; i++) status = write_pass(&f, g, plan, i);
    rw_free(f.path);
    return status;
}
