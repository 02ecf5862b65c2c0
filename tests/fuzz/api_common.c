/* Operands and checks that all fuzzed calls share. */
#include "fuzz/api_common.h"

#include <math.h>

uint8_t fz_byte(struct state *s)
{
    return s->at < s->end ? *s->at++ : 0;
}

bool fz_ask(struct state *s, int one_in)
{
    return fz_byte(s) % one_in == one_in - 1;
}

/* ---- operands ---- */

int64_t fz_extent(struct state *s)
{
    static const int64_t extents[] = { 2, 3, 4, 1, 8, 5, 2, 16, 3, 0, 17, 2, 4, -1, INT64_MAX, (int64_t)1 << 61 };
    const uint8_t b = fz_byte(s);
    return extents[b < 240 ? b % 13 : b % 16];
}

rw_shape fz_shape(struct state *s)
{
    const uint8_t b = fz_byte(s);
    rw_shape shape = { .rank = b < 250 ? b % 5 : b % 2 ? -1 : RW_MAX_RANK + 1 };
    for (int i = 0; i < shape.rank && i < RW_MAX_RANK; i++) shape.dim[i] = fz_extent(s);
    const int64_t n = rw_shape_numel(shape);
    if (n > LARGEST && n < INT64_MAX / 64) shape.dim[0] = 1;
    return rw_shape_numel(shape) > LARGEST && rw_shape_numel(shape) < INT64_MAX / 64 ? RW_SCALAR : shape;
}

rw_dtype fz_dtype(struct state *s)
{
    const uint8_t b = fz_byte(s);
    return b < 250 ? (rw_dtype)(b % 3 ? RW_F32 : b % RW_DTYPE_COUNT) : (rw_dtype)b;
}

/* A value, parameter or gradient; now and then NULL, none, or a value of the other context. */
rw_tensor *fz_operand(struct state *s)
{
    const uint8_t b = fz_byte(s);
    struct side *const side = &s->side[b >= 248 && s->n_sides > 1 ? 1 - s->now : s->now];
    switch (b % 32) {
    case 0: return b < 128 ? side->value[0] : NULL;
    case 1: return b < 128 ? side->value[1] : rw_none();
    case 2: return rw_gradient(side->value[fz_byte(s) % VALUES]);
    case 3: return rw_gradient(rw_param_get(side->ctx, fz_byte(s) % 8));
    case 4:
    case 5:
    case 6:
    case 7: return rw_param_get(side->ctx, fz_byte(s) % 8);
    default: return side->value[b % VALUES];
    }
}

int fz_axis(struct state *s)
{
    const uint8_t b = fz_byte(s);
    return b < 200 ? b % 4 : (int8_t)b;
}

uint32_t fz_axes(struct state *s)
{
    return fz_ask(s, 3) ? RW_ALL_AXES : fz_ask(s, 2) ? RW_AXES(fz_axis(s)) : RW_AXES(fz_axis(s), fz_axis(s));
}

double fz_number(struct state *s)
{
    static const double numbers[] = { 0.5, 1, 0, -1, 2, 0.1, 1e-3, 0.9, INFINITY, NAN, 1e300, -0.25 };
    return numbers[fz_byte(s) % (sizeof numbers / sizeof *numbers)];
}

/* ---- properties of every call ---- */

struct before fz_note(const struct side *x)
{
    return (struct before){ rw_tape_nodes(x->tape[x->now]), rw_generator_get(x->ctx) };
}

static void nothing_has_changed(const struct side *x, const struct before *b, const char *call)
{
    const rw_generator_state g = rw_generator_get(x->ctx);
    HOLDS(rw_tape_nodes(x->tape[x->now]) == b->nodes, "%s failed and left %zu nodes: %s", call,
          rw_tape_nodes(x->tape[x->now]) - b->nodes, rw_error_message(x->ctx));
    HOLDS(g.seed == b->generator.seed && g.offset == b->generator.offset, "%s failed and drew numbers: %s", call,
          rw_error_message(x->ctx));
}

void fz_look(struct state *s, const char *call)
{
    for (int i = 0; i < s->n_sides; i++) {
        status_and_message_agree(s->side[i].ctx, call);
        if (!s->sticks) rw_error_clear(s->side[i].ctx);
    }
}

void fz_returned(struct state *s, rw_status status, const struct before *b, const char *call)
{
    struct side *const x = &s->side[s->now];
    if (status && !s->sticks && !s->nobody)
        HOLDS(rw_error_status(x->ctx) || (s->n_sides > 1 && rw_error_status(s->side[1 - s->now].ctx)),
              "%s: status %d, and no message", call, (int)status);
    if (status && b) nothing_has_changed(x, b, call);
    s->nobody = false;
    fz_look(s, call);
}

void fz_recorded(struct state *s, rw_tensor *y, const struct before *b, const char *call)
{
    struct side *const x = &s->side[s->now];
    if (!y) {
        nothing_has_changed(x, b, call);
        fz_returned(s, RW_ERR_ARGUMENT, b, call);
        return;
    }
    fz_look(s, call);
    x->value[x->n_values++ % VALUES] = y;
    const size_t most = LARGEST * 16 * sizeof(double);
    if (rw_tensor_bytes(y) > most || rw_tape_nodes(x->tape[x->now]) > NODES) rw_tape_reset(x->tape[x->now]);
}
