/* Small models whose steps are recorded anew each time, or launched as a graph, and the results of either. */
#ifndef RUN_STEP_GRAPH_FIXTURE_H
#define RUN_STEP_GRAPH_FIXTURE_H

#include "support/support.h"

#include "models/model.h"

#ifdef __SANITIZE_ADDRESS__
enum { GRAPH_STEPS = 3 }; /* the first launch, the second, and one after an ordinary launch of a captured graph */
#else
enum { GRAPH_STEPS = 6 };
#endif
enum { GRAPH_BATCH = 2, GRAPH_SEQ = 13 };

struct graph_outcome {
    double loss[GRAPH_STEPS];
    unsigned char *gradients, *parameters;
    size_t bytes, parameter_bytes; /* bytes: of the gradients; a buffer has none */
    rw_memory memory; /* after the last launch */
    rw_generator_state generator;
};

void graph_release(struct graph_outcome *o);

/* Compares losses, gradients, parameters and the generator, byte for byte. */
void graph_same(const struct graph_outcome *a, const struct graph_outcome *b, const char *what);

struct model_config graph_config(enum model_kind kind, rw_dtype dtype);

/* Runs all steps. max_norm: 0 does not clip. how: what precedes the update, which is inside backward or after it. */
struct graph_outcome graph_record(const struct model_config *c, const char *policy, double max_norm);
struct graph_outcome graph_launch(const struct model_config *c, const char *policy, const rw_graph_params *how,
                                  bool inside, bool read_losses);

#endif
