/**
 * rewind/rewind.h - everything.
 *
 *   context.h     a device with its memory, parameters and random generator
 *   tensor.h      parameters, buffers, gradients
 *   tape.h        inputs, reading, backward
 *   ops.h         the ops of a transformer
 *   pointwise.h   more element-wise ops
 *   compare.h     truth values: comparisons, and choices by them
 *   create.h      zeros, ones, sequences, rows with a 1
 *   select.h      parts of a tensor, pads, windows
 *   gather.h      by index: the largest, gather, sums
 *   conv.h        convolutions and pooling
 *   norm.h        normalisation of images
 *   attention.h   more of attention
 *   reductions.h  more reductions, and running sums
 *   einsum.h      sums of products by notation
 *   losses.h      more losses, and losses with options
 *   custom_grad.h gradients of the caller's own
 *   checkpoint.h  regions and policies
 *   verify.h      proof that recompute changes no bit
 *   nonfinite.h   where a NaN came from
 *   memory.h      bytes and costs
 *   plan.h        what a step will take, before it runs
 *   moe.h         mixture of experts
 *   recurrent.h   ops that go along a sequence
 *   optim.h       AdamW
 *   optimizers.h  SGD, Adam, Lion; settings of single parameters
 *   schedule.h    learning rates as a function of the step
 *   average.h     a moving average of the weights
 *   precision.h   loss scaling
 *   graph.h       a recorded step, launched many times
 *   io.h          weights to and from files
 *   resume.h      a run that ended goes on, to the last bit
 *   monitor.h     what is written down of each step, and warnings
 *   op.h          the caller's own ops (the built-in ones are written against the same header)
 *   status.h      errors
 *   types.h       element types, shapes, call sites
 */
#ifndef REWIND_REWIND_H
#define REWIND_REWIND_H

#include <rewind/attention.h>
#include <rewind/average.h>
#include <rewind/checkpoint.h>
#include <rewind/compare.h>
#include <rewind/context.h>
#include <rewind/conv.h>
#include <rewind/create.h>
#include <rewind/custom_grad.h>
#include <rewind/einsum.h>
#include <rewind/float8.h>
#include <rewind/gather.h>
#include <rewind/graph.h>
#include <rewind/io.h>
#include <rewind/losses.h>
#include <rewind/memory.h>
#include <rewind/moe.h>
#include <rewind/monitor.h>
#include <rewind/nonfinite.h>
#include <rewind/norm.h>
#include <rewind/op.h>
#include <rewind/ops.h>
#include <rewind/optim.h>
#include <rewind/optimizers.h>
#include <rewind/plan.h>
#include <rewind/pointwise.h>
#include <rewind/precision.h>
#include <rewind/quantized.h>
#include <rewind/recurrent.h>
#include <rewind/reductions.h>
#include <rewind/resume.h>
#include <rewind/schedule.h>
#include <rewind/select.h>
#include <rewind/status.h>
#include <rewind/tape.h>
#include <rewind/tensor.h>
#include <rewind/types.h>
#include <rewind/verify.h>

#endif
