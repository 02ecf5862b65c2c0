/*
 * Convolutional networks, written with the public API only:
 *
 *   resnet50     He et al., arXiv 1512.03385, with the stride in the 3x3 convolution
 *   vgg16        Simonyan and Zisserman, arXiv 1409.1556, without batch norm
 *   mobilenet    Howard et al., arXiv 1704.04861
 *   densenet121  Huang et al., arXiv 1608.06993
 *   unet         Ronneberger et al., arXiv 1505.04597, with padding, for images of three channels; config->valid:
 *                without it, as published; sides of 188 plus multiples of 16 become 4 plus the same
 *
 * Each stage's part is a region "block"; inside it every convolution is a region "conv", every batch norm "bn", every
 * relu "relu", together with the sum before it, if there is one, so that a policy can name them.
 */
#ifndef REWIND_BENCH_CONVNETS_H
#define REWIND_BENCH_CONVNETS_H

#include "models/model.h"

/* The last result of a network of config->kind: [n, classes], of unet [n, classes, h, w]. Creates the parameters and
   buffers that ctx does not have yet; they are not initialized. x [n, channels, h, w]. */
rw_tensor *images_forward(const struct model_config *config, rw_context *ctx, rw_tape *t, rw_tensor *x);

/* Mean cross-entropy of labels [n]; for unet the mean square difference between the sigmoid of its result and that of
   x's first channel at the same places. */
rw_tensor *images_loss(const struct model_config *config, rw_context *ctx, rw_tape *t, rw_tensor *x, rw_tensor *labels);

/* Images [n, 3, seq, seq] made from text [n, seq]: its rows, its columns and their product. */
rw_tensor *images_of_text(rw_tape *t, rw_tensor *tokens, rw_dtype dtype);

/* Creates all parameters and buffers; the second initializes them: normal, sqrt(2 / inputs) for a weight. */
rw_status images_create(const struct model_config *config, rw_context *ctx);
rw_status images_init(rw_context *ctx);

#endif
