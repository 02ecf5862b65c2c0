/* Weights with the names of Hugging Face. */
#ifndef REWIND_EXAMPLES_HUGGING_FACE_H
#define REWIND_EXAMPLES_HUGGING_FACE_H

#include "options.h"

/* Reads the config.json next to a file of weights, and whether the head is tied to the embedding table. Ends the
   program with status 2 at the first field that is not supported, or that contradicts the options. */
void read_hf_config(const char *file);

/* Loads a GPT-2 or a Llama from one file. */
rw_status load_hf(rw_context *ctx, const char *path);

#endif
