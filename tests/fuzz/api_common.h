/* The state of a series of fuzzed calls, their operands, and the checks of each. See api.c. */
#ifndef FUZZ_API_COMMON_H
#define FUZZ_API_COMMON_H

#include "fuzz/fuzz.h"

#define VALUES 16
#define LARGEST 1024 /* elements of an input */
#define NODES 300    /* of a tape: then it is reset */
#define BYTES 400    /* of an input */

struct side {
    rw_context *ctx;
    rw_tape *tape[2];
    int now; /* the tape that is recorded on */
    rw_optimizer *optimizer;
    rw_graph *graph;
    rw_scaler *scaler;
    rw_delayed_scaling *delayed;
    rw_tensor *value[VALUES]; /* on either tape, of this step or an earlier one */
    unsigned n_values;
};

struct state {
    const uint8_t *at, *end;
    struct side side[2];
    int n_sides, now;
    bool sticks; /* errors are not cleared */
    bool nobody; /* the following call has no context that could have a message */
};

/* State that a failed call must not change. */
struct before {
    size_t nodes;
    rw_generator_state generator;
};

/* The next byte of the input; 0 after its end. */
uint8_t fz_byte(struct state *s);
bool fz_ask(struct state *s, int one_in);

/* Operands: most of them valid and some not. */
int64_t fz_extent(struct state *s);
rw_shape fz_shape(struct state *s); /* never one that could be allocated and is large */
rw_dtype fz_dtype(struct state *s);
rw_tensor *fz_operand(struct state *s);
int fz_axis(struct state *s);
uint32_t fz_axes(struct state *s);
double fz_number(struct state *s);

struct before fz_note(const struct side *x);
/* After every call. An error is read and cleared, or it sticks until the next one is requested. */
void fz_look(struct state *s, const char *call);
void fz_returned(struct state *s, rw_status status, const struct before *b, const char *call);
/* The result of an op becomes a value, unless it is so large that executing it would take long. */
void fz_recorded(struct state *s, rw_tensor *y, const struct before *b, const char *call);

/* The families with their own headers: families.c. */
void fz_families(struct state *s);

#define X (&s->side[s->now])
#define T (X->tape[X->now])
#define RECORDED(name, ...)                            \
    do {                                               \
        const struct before b_ = fz_note(X);           \
        fz_recorded(s, name(__VA_ARGS__), &b_, #name); \
    } while (0)
#define RETURNED(name, ...)                            \
    do {                                               \
        const struct before b_ = fz_note(X);           \
        fz_returned(s, name(__VA_ARGS__), &b_, #name); \
    } while (0)

#endif
