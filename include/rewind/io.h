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
 * Writes all parameters and buffers of the context. The file appears whole or not at all: it is written beside under a
 * name that no other call uses (PATH.PID.NUMBER.part), then renamed; on failure, a full disk too, the old file stays.
 * Of two contexts that save to one path the last one to end wins. Where the path is a symbolic link, the link stays and
 * the file that it names is replaced, with the old one's permissions; a link that leads nowhere, a directory, a device,
 * a FIFO and a socket are refused. A limit on the size of files (RLIMIT_FSIZE) is RW_ERR_IO; SIGXFSZ, which would end
 * the process, does not come.
 * @return RW_OK, RW_ERR_IO, RW_ERR_MEMORY; RW_ERR_ARGUMENT for a parameter named "__metadata__", which the format
 *         reserves, or with a name that is not UTF-8, which it cannot hold.
 */
RW_API rw_status rw_save(const rw_context *ctx, const char *path);

/**
 * Reads parameters and buffers by name. Every one of the context must be in the file with its type and shape; others in
 * the file are ignored, but must be sound: a key that stands twice, entries that overlap, offsets that are no whole
 * numbers or lie outside, and anything behind the JSON header are refused with their place. Nothing changes unless all
 * fit. A directory, a device or a FIFO is refused, without waiting.
 * @return RW_OK, RW_ERR_IO (unreadable, not safetensors, a name missing), RW_ERR_SHAPE, RW_ERR_DTYPE, RW_ERR_MEMORY.
 */
RW_API rw_status rw_load(rw_context *ctx, const char *path);

/** What a tensor of a file is here. */
typedef struct rw_load_part {
    const char *param; ///< a parameter or buffer of the context
    const char *name;  ///< what the file calls it
    bool transposed;   ///< of a matrix: the file has [in, out] where the parameter has [out, in]
    bool part;         ///< it is so many of the parameter's first extent as it has, from `row` on; false: all of it
    int64_t row;
} rw_load_part;

/**
 * Reads what is listed out of a file with other names: of Hugging Face's GPT-2, whose products are transposed, or of a
 * Llama, whose q, k and v are three parts of one product here (examples/train_gpt/hugging_face.c lists both). What is
 * not listed stays as it is, here and there. Types are those of the parameters. Nothing changes unless all fit.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL, or a parameter that there is not; RW_ERR_IO (unreadable, not safetensors, a
 *         name missing), RW_ERR_SHAPE, RW_ERR_DTYPE, RW_ERR_MEMORY; an error that is stuck in the context.
 */
RW_API rw_status rw_load_parts(rw_context *ctx, const char *path, const rw_load_part *parts, size_t n);

#ifdef __cplusplus
}
#endif

#endif
