/**
 * rewind/rewind.h - includes every public header.
 *
 *   context.h         a device with its memory, parameters and random generator
 *   tensor.h          parameters, buffers, gradients
 *   tape.h            inputs, reading values, backward
 *   ops.h             the ops of a transformer
 *   pointwise.h       more element-wise ops
 *   compare.h         comparisons, boolean ops, select by condition
 *   create.h          zeros, ones, sequences, one-hot rows
 *   select.h          slicing, padding, windows
 *   gather.h          argmax, top-k, gather, scatter, embedding bags
 *   conv.h            convolutions and pooling
 *   norm.h            batch, group and instance normalization
 *   attention.h       attention with windows, masks, biases and variable lengths
 *   reductions.h      more reductions, cumulative sums
 *   einsum.h          Einstein summation
 *   losses.h          more losses, losses with options
 *   composite.h       functions that record several ops
 *   custom_grad.h     user-defined gradients
 *   kernel_pair.h     a hand-written forward and backward kernel
 *   fusion.h          ops that take over work of their neighbours
 *   recompute.h       regions and recompute policies
 *   verify.h          checks that recompute is bit-identical
 *   nonfinite.h       finds the op that produced a NaN
 *   memory.h          memory statistics, costs, timers
 *   plan.h            predicts memory and time of a step before it runs
 *   moe.h             mixture of experts
 *   recurrent.h       recurrent ops and scans
 *   quantized.h       INT8 and NF4 weights
 *   float8.h          FP8 data and products
 *   optimizers.h      SGD, Adam, AdamW, Lion; settings per parameter
 *   lr_schedule.h     learning rate schedules
 *   weight_average.h  moving average of the weights
 *   precision.h       mixed precision, loss scaling, delayed FP8 scaling
 *   recorders.h       what a step does after backward, as a list
 *   graph.h           a recorded step, launched many times
 *   io.h              saving and loading weights
 *   checkpoint.h      training checkpoints, resumed bit for bit
 *   monitor.h         a log of each step, with alerts
 *   op.h              user-defined ops; built-in ops use the same interface
 *   status.h          error codes and messages
 *   types.h           element types, shapes, call sites
 *   version.h         version of the headers and of the library
 */
#ifndef REWIND_REWIND_H
#define REWIND_REWIND_H

#include <rewind/attention.h>
#include <rewind/checkpoint.h>
#include <rewind/compare.h>
#include <rewind/composite.h>
#include <rewind/context.h>
#include <rewind/conv.h>
#include <rewind/create.h>
#include <rewind/custom_grad.h>
#include <rewind/einsum.h>
#include <rewind/float8.h>
#include <rewind/fusion.h>
#include <rewind/gather.h>
#include <rewind/graph.h>
#include <rewind/io.h>
#include <rewind/kernel_pair.h>
#include <rewind/losses.h>
#include <rewind/lr_schedule.h>
#include <rewind/memory.h>
#include <rewind/moe.h>
#include <rewind/monitor.h>
#include <rewind/nonfinite.h>
#include <rewind/norm.h>
#include <rewind/op.h>
#include <rewind/ops.h>
#include <rewind/optimizers.h>
#include <rewind/plan.h>
#include <rewind/pointwise.h>
#include <rewind/precision.h>
#include <rewind/quantized.h>
#include <rewind/recompute.h>
#include <rewind/recorders.h>
#include <rewind/recurrent.h>
#include <rewind/reductions.h>
#include <rewind/select.h>
#include <rewind/status.h>
#include <rewind/tape.h>
#include <rewind/tensor.h>
#include <rewind/types.h>
#include <rewind/verify.h>
#include <rewind/version.h>
#include <rewind/weight_average.h>

#endif
