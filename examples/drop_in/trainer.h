/* A small GPT that is trained with the kernels of kernels.h alone: the program before Rewind. */
#ifndef DROP_IN_TRAINER_H
#define DROP_IN_TRAINER_H

#include <stddef.h>
#include <stdint.h>

enum { B = 2, T = 24, C = 48, NH = 4, V = 96, LAYERS = 3 };

/* Parameters of a layer, then of the model. */
enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B, PER_LAYER };
enum { WTE = LAYERS * PER_LAYER, WPE, LNF_W, LNF_B, PARAMS };

/* Number of elements of a parameter. */
size_t param_size(int p);

/* One step: the loss, and gradients, which are added to. */
float trainer_step(float *const *params, float *const *gradients, const int32_t *tokens, const int32_t *targets);

#endif
