/*
 * A metamorphic session as data: the statements of one to three tapes of a context (struct fz_program, each), and a
 * script of events that records them, executes them and steps an optimizer, once per step.
 *
 * Events are plain or extra. Extra ones must not change a byte: a run of the script with them, in another mode, is
 * compared with a run of the plain ones only. Each event can be dropped by itself: one whose operands do not exist is
 * skipped, so the shrinker needs no knowledge of events.
 */
#ifndef METAMORPHIC_RANDOM_SESSION_H
#define METAMORPHIC_RANDOM_SESSION_H

#include "whole/fuzz/program.h"

#define MM_TAPES 3
#define MM_STEPS 3
#define MM_EVENTS 400

enum mm_kind {
    /* plain */
    MM_STATEMENT,  /* a: index in the tape's program */
    MM_ZERO,       /* rw_zero_grad() */
    MM_BACKWARD,   /* a: loss; with a scaler rw_scaler_backward() */
    MM_FORWARD,    /* a: loss */
    MM_EVAL,       /* a: value */
    MM_ITEM,       /* a: loss; its bytes are compared */
    MM_READ,       /* a: value; its bytes are compared */
    MM_WRITE,      /* a: parameter number; word: of its gradient, or of itself */
    MM_GRADIENTS,  /* all gradients of parameters, and of the tape's marked values, are compared */
    MM_DRAW,       /* rw_rand() recorded and read */
    MM_UNSCALE,    /* rw_scaler_unscale() */
    MM_CLIP,       /* rw_clip_grad_norm() */
    MM_OPTIMIZE,   /* rw_optimizer_step() or rw_scaler_step() */
    MM_UPDATE,     /* rw_scaler_update() */
    MM_AVERAGE,    /* rw_weight_average_step() */
    MM_STATE,      /* parameters, buffers, averages, generator and counts of effects are compared */
    MM_RESET,      /* rw_tape_reset() */
    /* extra */
    MM_X_READ,     /* a: value */
    MM_X_ITEM,     /* a: loss */
    MM_X_EVAL,     /* a: value */
    MM_X_EVAL_NOTHING, /* rw_eval() of no tensors */
    MM_X_FORWARD,  /* a: loss */
    MM_X_VERIFY,   /* ckpt_verify() */
    MM_X_PLAN,     /* rw_tape_plan() */
    MM_X_COST,     /* rw_tape_cost() */
    MM_X_EXPLAIN,  /* ckpt_explain() */
    MM_X_STATS,    /* rw_memory_stats() */
    MM_X_NONFINITE, /* rw_find_nonfinite() */
    MM_X_THREADS,  /* rw_context_set_threads() */
    MM_X_ZERO,     /* rw_zero_grad() of clear gradients */
    MM_X_SAVE,     /* rw_checkpoint_save() */
    MM_X_LOAD,     /* rw_checkpoint_load() of what was just saved */
    MM_X_FAIL,     /* the tape's next execution fails once and is repeated; word: where */
    MM_X_GRAPH,    /* a graph created and destroyed */
    MM_X_POLICY,   /* ckpt_set_policy() */
    MM_X_OTHER,    /* another tape of the context draws, is read and destroyed; the generator is restored */
    MM_X_COPY,     /* rw_assign() of the next assigned value times one */
    MM_X_VIEW,     /* the next compared gradients are read through views */
    MM_X_ROLLBACK, /* a whole step, then rw_checkpoint_load() of the state before it */
    MM_X_LEFT_OUT, /* a backward whose gradients are unscaled, checked, and cleared */
    MM_X_SKIPPED,  /* a step with an infinite loss, which the scaler skips */
    MM_X_AVERAGE,  /* averages created and destroyed */
    MM_KINDS
};

extern const char *const mm_names[MM_KINDS];

static inline bool mm_is_extra(int kind)
{
    return kind >= MM_X_READ;
}

struct mm_event {
    uint8_t kind, tape, steps; /* bit i of steps: in step i */
    bool dropped;
    int16_t id; /* of a plain event: its index in the plain script */
    int16_t a;
    uint32_t word;
};

enum mm_mode { MM_PLAIN, MM_EAGER, MM_VERIFY, MM_DIGEST, MM_FULL, MM_MODES };
extern const char *const mm_modes[MM_MODES];

/* How a graph replaces recorded steps. */
enum mm_graph {
    MM_NO_GRAPH,
    MM_BARE,   /* forward and backward */
    MM_UPDATES, /* also unscaling, clipping and update */
    MM_INSIDE   /* fused updates */
};

struct mm_session {
    uint64_t seed, variant;
    int tapes, steps, shared; /* shared: number of leading statements of all tapes that equal those of tape 0 */
    struct fz_program *body[MM_TAPES];
    bool trains[MM_TAPES];
    int optimizer; /* 0: none, SGD, SGD with momentum, AdamW, Adam, Lion */
    bool scales, averages;
    enum mm_graph graph; /* kind of graph whose launches may replace steps */
    int threads;
    bool launches; /* and are */
    enum mm_mode mode;
    char policy[FZ_POLICY];
    int n;
    struct mm_event event[MM_EVENTS];
};

/* The plain session of a seed. */
void mm_generate(struct mm_session *s, uint64_t seed);
/* The session with extra events and a mode; variant 0 is the plain one. */
void mm_vary(struct mm_session *to, const struct mm_session *plain, uint64_t variant);

/* Whether REWIND_METAMORPHIC_WITHOUT names an event, an op or a kind of effect, in a comma-separated list. */
bool mm_without(const char *name);

struct mm_session *mm_new(void);
void mm_copy(struct mm_session *to, const struct mm_session *from);
void mm_free(struct mm_session *s);

/* The program of one tape: see generate_tape.c. */
struct mm_body {
    uint64_t seed, shapes; /* seed of everything; seed of the shapes, which tapes share */
    int part, length;
    const struct fz_program *first; /* shares its leading statements; NULL: none */
    bool trains, effects, reads_gradients;
};
void mm_make_body(struct fz_program *p, const struct mm_body *how);

/* Whether a program contains an op. */
bool mm_has(const struct fz_program *p, const char *op);
bool mm_has_effects(const struct fz_program *p);

#endif
