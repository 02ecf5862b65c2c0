/*
 * A convolution for cuDNN's graph API: one operation, or two with a bias. Works with a description of a device instead
 * of a real one.
 */
#ifndef RW_DEVICE_CUDA_CUDNN_CONV_GRAPH_H
#define RW_DEVICE_CUDA_CUDNN_CONV_GRAPH_H

#include "device/cuda/cudnn/conv_signature.h"
#include "device/cuda/cudnn/graph.h"

/* Numbers of the operands in a plan. */
enum { RW_DNN_CONV_X = 1, RW_DNN_CONV_W, RW_DNN_CONV_Y, RW_DNN_CONV_BIAS, RW_DNN_CONV_OPERANDS };

/* Describes the product and makes a plan, like rw_dnn_plan(). */
cudnnStatus_t rw_dnn_conv_build(const struct rw_cudnn *dnn, const struct rw_dnn_conv_signature *s, bool tf32,
                                size_t limit, struct rw_dnn_plan *plan);

#endif
