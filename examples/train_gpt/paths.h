/* Paths of outputs and inputs, checked before hours of training and not after. */
#ifndef REWIND_EXAMPLES_PATHS_H
#define REWIND_EXAMPLES_PATHS_H

#include <stdbool.h>
#include <stddef.h>

enum { PATH_SIZE = 4096 };

/* Follows symbolic links, also one whose target does not exist yet. False with errno. */
bool path_resolve(const char *path, char ret[PATH_SIZE]);

/* The reason that a program could not replace or create the file at `path`; NULL: it can. The path must be a regular
   file or not exist, links are followed, and the folder must be writable, because files are written to temporary names
   and renamed. */
const char *path_output_fault(const char *path);

/* The reason that `path` cannot be read as a file; NULL: it can. A FIFO is refused, because opening it would wait for a
   writer. */
const char *path_input_fault(const char *path);

/* Number of checkpoint files (NUMBER-stepSTEP.safetensors) in the folder; 0 if there is no folder. */
size_t path_count_checkpoints(const char *folder);

/* Opens a folder and locks it as rw_checkpoint_save() does; *ret_taken: another process has that lock. The lock ends
   with close(). Without locks on that file system, or for -1, there is none. */
int path_lock_folder(const char *folder, bool *ret_taken);

/* Likewise for a file that exists; a device is not locked. */
int path_lock_file(const char *path, bool *ret_taken);

/* Whether both are the same file or folder, which need not exist yet: "a" and "./a" are the same. */
bool path_is_same(const char *a, const char *b);

enum path_use { PATH_INPUT, PATH_OUTPUT, PATH_LOG /* lines are added to it: it may be a device */, PATH_FOLDER };

/* An option that names a file or a folder. */
struct path_option {
    const char *option, *path; /* path NULL: not given */
    enum path_use use;
};

/* The reason that the option's file cannot be used as it says; NULL: it can, or it is a folder. */
const char *path_option_fault(const struct path_option *option);

/* An output file that is also another option's file or folder would destroy it, or be destroyed: returns the reason,
   as "--save x: the same file as --data", in `text`. NULL: there is none. Weights may be saved to the --load file,
   which has the same names, but not to that of --load-hf; folders may be shared. */
const char *path_shared_fault(const struct path_option *options, size_t n, char *text, size_t size);

#endif
