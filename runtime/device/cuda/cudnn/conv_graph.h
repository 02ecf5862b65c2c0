/*
 * A convolution as cuDNN's graph API takes it: one operation, or two with a bias. Needs no device but a described one.
 * See conv.h.
 */
#ifndef RW_DEVICE_CUDA_CUDNN_CONV_GRAPH_H
#define RW_DEVICE_CUDA_CUDNN_CONV_GRAPH_H

#include "device/cuda/cudnn/conv_signature.h"
#include "device/cuda/cudnn/graph.h"

/* Operands by their numbers in a plan. */
enum { RW_DNN_CONV_X = 1, RW_DNN_CONV_W, RW_DNN_CONV_Y, RW_DNN_CONV_BIAS, RW_DNN_CONV_OPERANDS };

/* Describes the product and makes a plan, as rw_dnn_plan() does. */
cudnnStatus_t rw_dnn_conv_build(const struct rw_cudnn *dnn, const struct rw_dnn_conv_signature *s, bool tf32,
                                size_t limit, struct rw_dnn_plan *plan);

#endif
