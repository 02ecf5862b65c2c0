/* Invalid calls of backward and its halves and of graphs; calls in a wrong order, and after an error. */
#include "api/mistakes/table.h"

#include <rewind/rewind.h>

#include <math.h>
#include <string.h>

/* Backward from invalid roots, and gradients that cannot be requested. */
static void backward(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor **const grads = (rw_tensor **)(void *)w->out;
    rw_tensor *x[] = { w->p }, *dead[] = { w->dead }, *none[] = { NULL }, *left_out[] = { RW_NONE },
              *plain[] = { w->x }, *y[] = { w->loss }, *lost[] = { w->dead }, *strange[] = { w->four },
              *handle[] = { w->dead_grad }, *theirs[] = { w->alien }, *far[] = { w->alien_p };
    SILENT("rw_backward", RW_ERR_ARGUMENT, rw_backward(NULL, w->loss));
    STATUS("rw_backward", RW_ERR_ARGUMENT, rw_backward(t, NULL));
    STATUS("rw_backward", RW_ERR_ARGUMENT, rw_backward(t, RW_NONE));
    STATUS("rw_backward", RW_ERR_SHAPE, rw_backward(t, w->v));
    STATUS("rw_backward", RW_ERR_ARGUMENT, rw_backward(t, w->scalar));
    STATUS("rw_backward", RW_ERR_ARGUMENT, rw_backward(t, w->p));
    STATUS("rw_backward", RW_ERR_ARGUMENT, rw_backward(t, w->dead));
    STATUS("rw_backward", RW_ERR_ARGUMENT, rw_backward(t, w->gone));
    STATUS("rw_backward", RW_ERR_ARGUMENT, rw_backward(w->other, w->loss));
    STATUS("rw_backward", RW_ERR_ARGUMENT, rw_backward(t, w->v_grad));
    STATUS_OF("rw_backward", RW_ERR_REGION, ckpt_begin(t, "r"), rw_backward(t, w->loss));
    SILENT("rw_backward_with", RW_ERR_ARGUMENT, rw_backward_with(NULL, w->loss, NULL));
    STATUS("rw_backward_with", RW_ERR_ARGUMENT, rw_backward_with(t, NULL, NULL));
    STATUS("rw_backward_with", RW_ERR_SHAPE, rw_backward_with(t, w->v, NULL));
    STATUS("rw_backward_with", RW_ERR_ARGUMENT, rw_backward_with(t, w->dead, NULL));
    STATUS("rw_backward_with", RW_ERR_ARGUMENT,
           rw_backward_with(t, w->loss, &(rw_backward_params){ { rw_record_update(NULL) } }));
    STATUS("rw_backward_with", RW_ERR_UNSUPPORTED,
           rw_backward_with(t, w->loss, &(rw_backward_params){ { rw_record_update_inside(w->opt) } }));
    STATUS_OF("rw_backward_with", RW_ERR_REGION, ckpt_begin(t, "r"), rw_backward_with(t, w->loss, NULL));
    SILENT("rw_forward", RW_ERR_ARGUMENT, rw_forward(NULL, y, 1));
    STATUS("rw_forward", RW_ERR_ARGUMENT, rw_forward(t, y, 0));
    STATUS("rw_forward", RW_ERR_ARGUMENT, rw_forward(t, NULL, 1));
    STATUS("rw_forward", RW_ERR_ARGUMENT, rw_forward(t, none, 1));
    STATUS("rw_forward", RW_ERR_ARGUMENT, rw_forward(t, dead, 1));
    STATUS("rw_forward", RW_ERR_ARGUMENT, rw_forward(t, plain, 1));
    STATUS("rw_forward", RW_ERR_ARGUMENT, rw_forward(t, NULL, SIZE_MAX / 4));
    SILENT("rw_backward_from", RW_ERR_ARGUMENT, rw_backward_from(NULL, y, NULL, 1));
    STATUS("rw_backward_from", RW_ERR_ARGUMENT, rw_backward_from(t, y, NULL, 0));
    STATUS("rw_backward_from", RW_ERR_ARGUMENT, rw_backward_from(t, NULL, NULL, 1));
    STATUS("rw_backward_from", RW_ERR_ARGUMENT, rw_backward_from(t, lost, NULL, 1));
    STATUS("rw_backward_from", RW_ERR_SHAPE, rw_backward_from(t, y, strange, 1));
    STATUS("rw_backward_from", RW_ERR_ARGUMENT, rw_backward_from(t, y, left_out, 1));
    STATUS("rw_backward_from", RW_ERR_ARGUMENT, rw_backward_from(t, y, handle, 1));
    STATUS("rw_backward_from", RW_ERR_ARGUMENT, rw_backward_from(t, y, dead, 1));
    STATUS("rw_backward_from", RW_ERR_ARGUMENT, rw_backward_from(t, y, theirs, 1));
    SILENT("rw_grad", RW_ERR_ARGUMENT, rw_grad(NULL, w->loss, x, 1, grads));
    STATUS("rw_grad", RW_ERR_ARGUMENT, rw_grad(t, NULL, x, 1, grads));
    STATUS("rw_grad", RW_ERR_ARGUMENT, rw_grad(t, w->loss, NULL, 1, grads));
    STATUS("rw_grad", RW_ERR_ARGUMENT, rw_grad(t, w->loss, x, 1, NULL));
    STATUS("rw_grad", RW_ERR_ARGUMENT, rw_grad(t, w->dead, x, 1, grads));
    STATUS("rw_grad", RW_ERR_ARGUMENT, rw_grad(t, w->loss, dead, 1, grads));
    STATUS("rw_grad", RW_ERR_ARGUMENT, rw_grad(t, w->loss, none, 1, grads));
    STATUS("rw_grad", RW_ERR_ARGUMENT, rw_grad(t, w->loss, plain, 1, grads));
    STATUS("rw_grad", RW_ERR_ARGUMENT, rw_grad(t, w->loss, handle, 1, grads));
    STATUS("rw_grad", RW_ERR_ARGUMENT, rw_grad(t, w->loss, far, 1, grads));
    STATUS("rw_grad", RW_ERR_ARGUMENT,
           rw_grad(t, w->loss, ((rw_tensor *[]){ w->table, w->x }), 2, grads)); /* records a leaf before the mistake */
}

/* Predictions of invalid losses or policies. */
static void predictions(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    static rw_prediction room;
    rw_prediction *const p = &room;
    SILENT("rw_tape_plan", RW_ERR_ARGUMENT, rw_tape_plan(NULL, w->loss, NULL, p));
    STATUS("rw_tape_plan", RW_ERR_ARGUMENT, rw_tape_plan(t, w->loss, NULL, NULL));
    STATUS("rw_tape_plan", RW_ERR_ARGUMENT, rw_tape_plan(t, NULL, NULL, p));
    STATUS("rw_tape_plan", RW_ERR_ARGUMENT, rw_tape_plan(t, RW_NONE, NULL, p));
    STATUS("rw_tape_plan", RW_ERR_SHAPE, rw_tape_plan(t, w->v, NULL, p));
    STATUS("rw_tape_plan", RW_ERR_ARGUMENT, rw_tape_plan(t, w->scalar, NULL, p));
    STATUS("rw_tape_plan", RW_ERR_ARGUMENT, rw_tape_plan(t, w->p, NULL, p));
    STATUS("rw_tape_plan", RW_ERR_ARGUMENT, rw_tape_plan(t, w->dead, NULL, p));
    STATUS("rw_tape_plan", RW_ERR_ARGUMENT, rw_tape_plan(w->other, w->loss, NULL, p));
    STATUS("rw_tape_plan", RW_ERR_POLICY, rw_tape_plan(t, w->loss, "", p));
    STATUS("rw_tape_plan", RW_ERR_POLICY, rw_tape_plan(t, w->loss, "fully", p));
    STATUS("rw_tape_plan", RW_ERR_POLICY, rw_tape_plan(t, w->loss, "budget:0MiB", p));
    STATUS_OF("rw_tape_plan", RW_ERR_REGION, ckpt_begin(t, "r"), rw_tape_plan(t, w->loss, NULL, p));
    static rw_frontier_point points[4];
    size_t n = 4;
    SILENT("rw_tape_frontier", RW_ERR_ARGUMENT, rw_tape_frontier(NULL, w->loss, points, &n));
    STATUS("rw_tape_frontier", RW_ERR_ARGUMENT, rw_tape_frontier(t, w->loss, points, NULL));
    STATUS("rw_tape_frontier", RW_ERR_ARGUMENT, rw_tape_frontier(t, w->loss, NULL, &n));
    STATUS("rw_tape_frontier", RW_ERR_ARGUMENT, rw_tape_frontier(t, NULL, points, &n));
    STATUS("rw_tape_frontier", RW_ERR_SHAPE, rw_tape_frontier(t, w->v, points, &n));
    STATUS_OF("rw_tape_frontier", RW_ERR_REGION, ckpt_begin(t, "r"), rw_tape_frontier(t, w->loss, points, &n));
    STATUS("rw_tape_plan", RW_ERR_POLICY, rw_tape_plan(t, w->loss, "total:50%", p));
    SILENT("rw_profile_begin", RW_ERR_ARGUMENT, rw_profile_begin(NULL));
    SILENT("rw_profile_end", RW_ERR_ARGUMENT, rw_profile_end(NULL));
    SILENT("rw_costs_calibrate", RW_ERR_ARGUMENT, rw_costs_calibrate(NULL));
    STATUS("rw_profile_end", RW_ERR_ARGUMENT, rw_profile_end(w->ctx));
    STATUS_OF("rw_profile_begin", RW_ERR_ARGUMENT, rw_profile_begin(w->ctx), rw_profile_begin(w->ctx));
    SILENT("rw_costs_save", RW_ERR_ARGUMENT, rw_costs_save(NULL, w->path));
    STATUS("rw_costs_save", RW_ERR_ARGUMENT, rw_costs_save(w->ctx, NULL));
    STATUS("rw_costs_save", RW_ERR_ARGUMENT, rw_costs_save(w->ctx, w->path));
    SILENT("rw_costs_load", RW_ERR_ARGUMENT, rw_costs_load(NULL, w->path));
    STATUS("rw_costs_load", RW_ERR_ARGUMENT, rw_costs_load(w->ctx, NULL));
    STATUS("rw_costs_load", RW_ERR_IO, rw_costs_load(w->ctx, w->path));
    ALLOWED("rw_costs_clear", (rw_costs_clear(NULL), rw_costs_clear(w->ctx), rw_costs_count(w->ctx) == 0));
    ALLOWED("rw_tape_plan", rw_tape_plan(t, w->loss, "full", p) == RW_OK && !strcmp(ckpt_policy(t), "none"));
}

static rw_graph *graph_of(struct world *w)
{
    rw_graph *g = NULL;
    rw_graph_create(&g, w->t, w->loss, NULL);
    return g;
}

/* A launch with an optimizer that is destroyed at once. */
static rw_status launch_with(rw_tape *t, rw_tensor *loss, rw_optimizer **opt)
{
    rw_graph *g = NULL;
    const rw_status status = rw_graph_create(&g, t, loss, &(rw_graph_params){ { rw_record_update(*opt) } });
    rw_optimizer_destroy(opt);
    return g ? RW_OK : status;
}

static rw_status launch(rw_graph **g)
{
    const rw_status status = rw_graph_launch(*g);
    rw_graph_destroy(g);
    return status;
}

/* Graphs of invalid losses or optimizers. */
static void graphs(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_graph **const out = (rw_graph **)(void *)w->out, *g = NULL;
    rw_optimizer *alien = NULL;
    SILENT("rw_graph_create", RW_ERR_ARGUMENT, rw_graph_create(out, NULL, w->loss, NULL));
    STATUS("rw_graph_create", RW_ERR_ARGUMENT, rw_graph_create(NULL, t, w->loss, NULL));
    STATUS("rw_graph_create", RW_ERR_ARGUMENT, rw_graph_create(out, t, NULL, NULL));
    STATUS("rw_graph_create", RW_ERR_ARGUMENT, rw_graph_create(out, t, w->dead, NULL));
    STATUS("rw_graph_create", RW_ERR_SHAPE, rw_graph_create(out, t, w->v, NULL));
    STATUS("rw_graph_create", RW_ERR_ARGUMENT, rw_graph_create(out, t, w->loss,
                                                               &(rw_graph_params){ { rw_record_clip(-1) } }));
    STATUS("rw_graph_create", RW_ERR_ARGUMENT, rw_graph_create(out, t, w->loss,
                                                               &(rw_graph_params){ { rw_record_clip(NAN) } }));
    STATUS_OF("rw_graph_create", RW_ERR_ARGUMENT, rw_backward(t, w->loss), rw_graph_create(out, t, w->loss, NULL));
    STATUS_OF("rw_graph_create", RW_ERR_REGION, ckpt_begin(t, "r"), rw_graph_create(out, t, w->loss, NULL));
    STATUS_OF("rw_graph_create", RW_ERR_ARGUMENT, rw_adamw_create(&alien, w->alien_ctx, NULL),
              launch_with(t, w->loss, &alien));
    SILENT("rw_graph_launch", RW_ERR_ARGUMENT, rw_graph_launch(NULL));
    STATUS_OF("rw_graph_launch", RW_ERR_MODIFIED, (g = graph_of(w), rw_tape_reset(t)),
              launch(&g));
    ALLOWED("rw_graph_destroy", (rw_graph_destroy(NULL), rw_graph_destroy(&g), true));
    ALLOWED_OF("rw_graph_destroy", (g = graph_of(w), rw_tape_destroy(&w->t)), (rw_graph_destroy(&g), g == NULL));
    ALLOWED_OF("rw_graph_launch", (g = graph_of(w), rw_tape_destroy(&w->t)),
               rw_graph_launch(g) == RW_ERR_MODIFIED && (rw_graph_destroy(&g), true));
    ALLOWED_OF("rw_graph_destroy",
               (g = graph_of(w), rw_optimizer_destroy(&w->opt), rw_context_destroy(&w->ctx), rw_tape_destroy(&w->t)),
               (rw_graph_destroy(&g), g == NULL));
    ALLOWED_OF("rw_optimizer_destroy",
               (rw_graph_create(&g, t, w->loss, &(rw_graph_params){ { rw_record_update(w->opt) } }),
                rw_optimizer_destroy(&w->opt)),
               rw_graph_launch(g) == RW_OK && (rw_graph_destroy(&g), true));
}

/* The first error stays, whatever is called after it. */
static rw_status after(struct world *w, rw_status status)
{
    return status && strstr(rw_error_message(w->ctx), "matmul(") ? rw_error_status(w->ctx) : RW_OK;
}

#define AFTER(call) STATUS_OF("rw_matmul", RW_ERR_SHAPE, rw_matmul(t, w->x, w->y), after(w, call))

/* Every call after an error keeps the first one. */
static void after_an_error(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *x[] = { w->p }, *y[] = { w->loss };
    rw_graph **const graph = (rw_graph **)(void *)w->out;
    AFTER(rw_backward(t, w->loss));
    AFTER(rw_backward(t, NULL));
    AFTER(rw_backward_from(t, y, NULL, 1));
    AFTER(rw_forward(t, y, 1));
    AFTER(rw_eval(t, y, 1));
    AFTER(rw_read(t, w->v, w->out, 24));
    AFTER(isnan(rw_item(t, w->loss)) ? RW_ERR_SHAPE : RW_OK);
    AFTER(rw_grad(t, w->loss, x, 1, (rw_tensor **)(void *)w->out));
    AFTER(rw_graph_create(graph, t, w->loss, NULL));
    AFTER(rw_tape_cost(t, w->loss, (rw_cost *)(void *)w->out));
    static rw_prediction prediction;
    AFTER(rw_tape_plan(t, w->loss, NULL, &prediction));
    AFTER(ckpt_verify(t, w->loss, (ckpt_report *)(void *)w->out));
    AFTER(ckpt_explain(t, stderr));
    AFTER(rw_add(t, NULL, w->x) ? RW_OK : RW_ERR_SHAPE);
    AFTER(rw_reshape(t, w->transposed, RW_SHAPE(7)) ? RW_OK : RW_ERR_SHAPE);
}

void mistakes_with_steps(struct trial *m, struct world *w)
{
    backward(m, w);
    predictions(m, w);
    graphs(m, w);
    after_an_error(m, w);
}
