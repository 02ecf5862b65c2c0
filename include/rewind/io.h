/**
 * rewind/io.h - saving and loading weights.
 *
 * The file format is safetensors (https://github.com/huggingface/safetensors): an 8-byte little-endian length, a JSON
 * header, then dense little-endian elements. To save the whole state of a training run, see rewind/checkpoint.h.
 * @param path the file's path
 * Thread-safety: as for the context.
 */
#ifndef REWIND_IO_H
#define REWIND_IO_H

#include <rewind/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Writes all parameters and buffers of the context to a file.
 *
 * The write is atomic. Data goes to a temporary file in the same folder, with a name that no other call uses
 * (PATH.PID.NUMBER.part, with the first 96 bytes of a long name), which is then renamed. On failure, including a full
 * disk, the old file is unchanged. If two contexts save to one path, the last one to finish wins. On RW_OK the file and
 * its directory entry are durable.
 *
 * If the path is a symbolic link, the link stays: the file that it names is replaced and keeps its permissions. A
 * dangling link, a directory, a device, a FIFO and a socket are refused. Exceeding the file size limit (RLIMIT_FSIZE)
 * is RW_ERR_IO; the process does not receive SIGXFSZ.
 * @return RW_OK; RW_ERR_IO; RW_ERR_MEMORY; RW_ERR_ARGUMENT for NULL, for a parameter named "__metadata__", which the
 *         format reserves, or for a name that is not UTF-8.
 */
RW_API rw_status rw_save(const rw_context *ctx, const char *path);

/**
 * Loads parameters and buffers by name. The file must have every parameter and buffer of the context, with its type and
 * shape. Other entries are ignored but must be valid: duplicate keys, overlapping entries, offsets that are not whole
 * numbers or outside of the data, and text after the JSON header are refused with their position. A directory, device
 * or FIFO is refused without blocking.
 *
 * The call needs host memory for the parameters and at most eight times the header. A header has at most 100 MiB and 16
 * levels of nesting.
 * @return RW_OK; RW_ERR_IO (unreadable, not safetensors, a name missing); RW_ERR_SHAPE; RW_ERR_DTYPE; RW_ERR_MEMORY.
 *         On failure nothing has changed.
 */
RW_API rw_status rw_load(rw_context *ctx, const char *path);

/** Maps one tensor of a file to a parameter, or to a part of one. */
typedef struct rw_load_part {
    const char *param; ///< a parameter or buffer of the context
    const char *name;  ///< its name in the file
    bool transposed;   ///< matrices: the file stores [in, out], the parameter is [out, in]
    bool part;         ///< it fills only its own rows of the parameter's first axis, from `row` on; false: all rows
    int64_t row;       ///< first row; without `part` anything but 0 is RW_ERR_SHAPE
} rw_load_part;

/**
 * Loads the listed tensors from a file with other names or layouts, such as Hugging Face's GPT-2, whose weights are
 * transposed, or Llama, whose q, k and v are three parts of one weight here. examples/train_gpt/hugging_face.c has both
 * lists. Parameters and file entries that are not listed are ignored. Types must be equal.
 * @param parts n tensors
 * @return RW_OK; RW_ERR_ARGUMENT for NULL or an unknown parameter; RW_ERR_IO (unreadable, not safetensors, a name
 *         missing); RW_ERR_SHAPE; RW_ERR_DTYPE; RW_ERR_MEMORY; or the context's sticky error. On failure nothing has
 *         changed.
 */
RW_API rw_status rw_load_parts(rw_context *ctx, const char *path, const rw_load_part *parts, size_t n);

#ifdef __cplusplus
}
#endif

#endif
