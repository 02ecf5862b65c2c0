/**
 * rewind/io.h - parameters to and from files.
 *
 * The format is safetensors (https://github.com/huggingface/safetensors): an 8-byte little-endian length, a JSON
 * header, the dense little-endian elements.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_IO_H
#define REWIND_IO_H

#include <rewind/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Writes all parameters and buffers of the context. The file appears whole or not at all (written beside, then
 * renamed).
 * @return RW_OK, RW_ERR_IO, RW_ERR_MEMORY; RW_ERR_ARGUMENT for a parameter named "__metadata__", which the format
 *         reserves.
 */
RW_API rw_status rw_save(const rw_context *ctx, const char *path);

/**
 * Reads parameters and buffers by name. Every one of the context must be in the file with its type and shape; others in
 * the file are ignored. Nothing changes unless all fit.
 * @return RW_OK, RW_ERR_IO (unreadable, not safetensors, a name missing), RW_ERR_SHAPE, RW_ERR_DTYPE, RW_ERR_MEMORY.
 */
RW_API rw_status rw_load(rw_context *ctx, const char *path);

#ifdef __cplusplus
}
#endif

#endif
