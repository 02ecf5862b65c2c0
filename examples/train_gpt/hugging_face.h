/* Weights as Hugging Face names them. */
#ifndef REWIND_EXAMPLES_HUGGING_FACE_H
#define REWIND_EXAMPLES_HUGGING_FACE_H

#include "options.h"

/* Of a GPT-2 or a Llama, in one file. */
rw_status load_hf(rw_context *ctx, const char *path);

#endif
