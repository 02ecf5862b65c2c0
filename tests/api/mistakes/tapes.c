/* Invalid calls of rewind/tape.h: tapes, inputs, requested values. */
#include "api/mistakes/table.h"

#include <rewind/ops.h>

#include <math.h>

/* Invalid creation, reset and inputs of tapes. */
static void tapes(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t, **const out = (rw_tape **)(void *)w->out;
    rw_tape *none = NULL;
    STATUS("rw_tape_create", RW_ERR_ARGUMENT, rw_tape_create(NULL, w->ctx));
    SILENT("rw_tape_create", RW_ERR_ARGUMENT, rw_tape_create(out, NULL));
    ALLOWED("rw_tape_destroy", (rw_tape_destroy(NULL), rw_tape_destroy(&none), none == NULL));
    ALLOWED("rw_tape_reset", (rw_tape_reset(NULL), true));
    ALLOWED("rw_tape_context", rw_tape_context(NULL) == NULL);
    ALLOWED("rw_tape_nodes", rw_tape_nodes(NULL) == 0);
    SILENT("rw_input", RW_ERR_ARGUMENT, rw_input(NULL, RW_F32, RW_SHAPE(2), NULL, 0) ? RW_OK : RW_ERR_ARGUMENT);
    TENSOR("rw_input", RW_ERR_DTYPE, rw_input(t, (rw_dtype)9, RW_SHAPE(2), NULL, 0));
    TENSOR("rw_input", RW_ERR_DTYPE, rw_input(t, (rw_dtype)-1, RW_SHAPE(2), NULL, 0));
    TENSOR("rw_input", RW_ERR_SHAPE, rw_input(t, RW_F32, RW_SHAPE(-2), NULL, 0));
    TENSOR("rw_input", RW_ERR_SHAPE, rw_input(t, RW_F32, RW_SHAPE(HUGE_EXTENT, HUGE_EXTENT), NULL, 0));
    TENSOR("rw_input", RW_ERR_SHAPE, rw_input(t, RW_F32, RW_SHAPE(0, INT64_MAX, INT64_MAX), NULL, 0));
    TENSOR("rw_input", RW_ERR_SHAPE, rw_input(t, RW_F32, ((rw_shape){ .rank = 9 }), NULL, 0));
    TENSOR("rw_input", RW_ERR_ARGUMENT, rw_input(t, RW_F32, RW_SHAPE(2, 3), w->out, 0));
    TENSOR("rw_input", RW_ERR_ARGUMENT, rw_input(t, RW_F32, RW_SHAPE(2, 3), w->out, 23));
    TENSOR("rw_input", RW_ERR_ARGUMENT, rw_input(t, RW_F32, RW_SHAPE(2, 3), w->out, 25));
    TENSOR("rw_input", RW_ERR_ARGUMENT, rw_input(t, RW_F32, RW_SHAPE(2, 3), w->out, SIZE_MAX));
    TENSOR("rw_input", RW_ERR_ARGUMENT, rw_input(t, RW_F32, RW_SHAPE(0, 3), w->out, 24));
    TENSOR("rw_input", RW_ERR_ARGUMENT, rw_input(t, RW_F32, RW_SHAPE(2, 3), NULL, 24));
    ALLOWED("rw_input", rw_input(t, RW_F32, RW_SHAPE(2, 3), w->out, 24) != NULL);
#ifndef __SANITIZE_ADDRESS__ /* which ends the process at an allocation of this size */
    TENSOR("rw_input", RW_ERR_MEMORY, rw_input(t, RW_F32, RW_SHAPE((int64_t)1 << 50), NULL, 0));
#endif
    SILENT("rw_input_write", RW_ERR_ARGUMENT, rw_input_write(NULL, w->out, 24));
    SILENT("rw_input_write", RW_ERR_ARGUMENT, rw_input_write(RW_NONE, w->out, 24));
    STATUS("rw_input_write", RW_ERR_ARGUMENT, rw_input_write(w->x, NULL, 24));
    STATUS("rw_input_write", RW_ERR_ARGUMENT, rw_input_write(w->x, w->out, 0));
    STATUS("rw_input_write", RW_ERR_ARGUMENT, rw_input_write(w->x, w->out, 23));
    STATUS("rw_input_write", RW_ERR_ARGUMENT, rw_input_write(w->x, w->out, 25));
    STATUS("rw_input_write", RW_ERR_ARGUMENT, rw_input_write(w->x, w->out, SIZE_MAX));
    STATUS("rw_input_write", RW_ERR_ARGUMENT, rw_input_write(w->v, w->out, 24));
    STATUS("rw_input_write", RW_ERR_ARGUMENT, rw_input_write(w->p, w->out, 24));
    STATUS("rw_input_write", RW_ERR_ARGUMENT, rw_input_write(w->v_grad, w->out, 24));
    STATUS("rw_input_write", RW_ERR_ARGUMENT, rw_input_write(w->dead_grad, w->out, 24));
    STATUS("rw_input_write", RW_ERR_ARGUMENT, rw_input_write(w->dead_input, w->out, 24));
    STATUS("rw_input_write", RW_ERR_ARGUMENT, rw_input_write(w->gone, w->out, 24));
    TENSOR("rw_require_grad", RW_ERR_ARGUMENT, rw_require_grad(t, NULL));
    TENSOR("rw_require_grad", RW_ERR_ARGUMENT, rw_require_grad(NULL, w->x));
    TENSOR("rw_require_grad", RW_ERR_ARGUMENT, rw_require_grad(t, RW_NONE));
    TENSOR("rw_require_grad", RW_ERR_ARGUMENT, rw_require_grad(t, w->p));
    TENSOR("rw_require_grad", RW_ERR_DTYPE, rw_require_grad(t, w->index));
    TENSOR("rw_require_grad", RW_ERR_ARGUMENT, rw_require_grad(t, w->dead));
    TENSOR("rw_require_grad", RW_ERR_ARGUMENT, rw_require_grad(t, w->foreign));
    TENSOR("rw_require_grad", RW_ERR_ARGUMENT, rw_require_grad(w->other, w->v_grad));
    TENSOR("rw_require_grad", RW_ERR_ARGUMENT, rw_require_grad(t, w->alien));
}

#define READ(expected, t, x, bytes) STATUS("rw_read", expected, rw_read(t, x, w->out, bytes))

/* Reads of tensors that cannot be read. */
static void reading(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *const torn[] = { w->v, NULL }, *const dead[] = { w->dead }, *const none[] = { RW_NONE },
                     *const foreign[] = { w->foreign }, *const alien[] = { w->alien_p },
                     *const late[] = { w->dead_grad };
    READ(RW_ERR_ARGUMENT, t, NULL, 24);
    SILENT("rw_read", RW_ERR_ARGUMENT, rw_read(NULL, NULL, w->out, 24));
    READ(RW_ERR_ARGUMENT, t, RW_NONE, 0);
    READ(RW_ERR_ARGUMENT, t, w->v, 23);
    READ(RW_ERR_ARGUMENT, t, w->v, SIZE_MAX);
    READ(RW_ERR_ARGUMENT, t, w->dead, 24);
    READ(RW_ERR_ARGUMENT, NULL, w->dead, 24);
    READ(RW_ERR_ARGUMENT, t, w->gone, 24);
    READ(RW_ERR_ARGUMENT, NULL, w->gone, 24);
    READ(RW_ERR_ARGUMENT, t, w->foreign, 24);
    READ(RW_ERR_ARGUMENT, t, w->alien, 24);
    READ(RW_ERR_ARGUMENT, t, w->alien_p, 24);
    READ(RW_ERR_ARGUMENT, w->alien_t, w->v_grad, 24);
    READ(RW_ERR_ARGUMENT, t, w->v_grad, 24);
    READ(RW_ERR_ARGUMENT, w->other, w->dead_grad, 24);
    READ(RW_ERR_ARGUMENT, NULL, w->dead_grad, 24);
    STATUS("rw_read", RW_ERR_ARGUMENT, rw_read(t, w->v, NULL, 24));
    STATUS("rw_item", RW_ERR_SHAPE, isnan(rw_item(t, w->v)) ? rw_error_status(w->ctx) : RW_OK);
    STATUS("rw_item", RW_ERR_ARGUMENT, isnan(rw_item(t, NULL)) ? rw_error_status(w->ctx) : RW_OK);
    STATUS("rw_item", RW_ERR_ARGUMENT, isnan(rw_item(t, RW_NONE)) ? rw_error_status(w->ctx) : RW_OK);
    STATUS("rw_item", RW_ERR_ARGUMENT, isnan(rw_item(t, w->dead)) ? rw_error_status(w->ctx) : RW_OK);
    STATUS("rw_item", RW_ERR_ARGUMENT, isnan(rw_item(NULL, w->gone)) ? rw_error_status(w->ctx) : RW_OK);
    STATUS("rw_item", RW_ERR_ARGUMENT, isnan(rw_item(t, w->v_grad)) ? rw_error_status(w->ctx) : RW_OK);
    SILENT("rw_item", RW_ERR_ARGUMENT, isnan(rw_item(NULL, NULL)) ? RW_ERR_ARGUMENT : RW_OK);
    SILENT("rw_eval", RW_ERR_ARGUMENT, rw_eval(NULL, NULL, 0));
    STATUS("rw_eval", RW_ERR_ARGUMENT, rw_eval(t, NULL, 1));
    STATUS("rw_eval", RW_ERR_ARGUMENT, rw_eval(t, torn, 2));
    STATUS("rw_eval", RW_ERR_ARGUMENT, rw_eval(t, dead, 1));
    STATUS("rw_eval", RW_ERR_ARGUMENT, rw_eval(t, none, 1));
    STATUS("rw_eval", RW_ERR_ARGUMENT, rw_eval(t, foreign, 1));
    STATUS("rw_eval", RW_ERR_ARGUMENT, rw_eval(t, alien, 1));
    STATUS("rw_eval", RW_ERR_ARGUMENT, rw_eval(w->other, late, 1));
}

/* Destruction in an order other than the headers': everything is freed, and nothing freed is read. */
static void order(struct trial *m, struct world *w)
{
    ALLOWED_OF("rw_context_destroy", rw_context_destroy(&w->alien_ctx),
               !w->alien_ctx && rw_tape_nodes(w->alien_t) == 1 && rw_neg(w->alien_t, w->alien));
    ALLOWED_OF("rw_context_destroy", rw_context_destroy(&w->ctx),
               (rw_optimizer_destroy(&w->opt), rw_tape_destroy(&w->t), rw_tape_destroy(&w->other), !w->opt && !w->t));
    ALLOWED_OF("rw_tape_destroy", (rw_tape_destroy(&w->t), rw_optimizer_destroy(&w->opt)), !w->t && !w->opt);
    ALLOWED_OF("rw_context_destroy", (rw_tape_destroy(&w->t), rw_context_destroy(&w->ctx)),
               rw_optimizer_step(w->opt) == RW_OK);
}

void mistakes_with_tapes(struct trial *m, struct world *w)
{
    tapes(m, w);
    reading(m, w);
    order(m, w);
}
