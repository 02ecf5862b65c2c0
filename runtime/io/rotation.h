/* The folder of a run's checkpoint files: their names, which is newest, which go. */
#ifndef RW_IO_ROTATION_H
#define RW_IO_ROTATION_H

#include <rewind/status.h>

#include <stddef.h>
#include <sys/types.h>

/* NUMBER-stepSTEP.safetensors */
struct rw_rotated {
    uint64_t number, step;
};

struct rw_rotation {
    char *folder;
    int fd;           /* of the folder, which it locks; -1: not yet */
    pid_t process;    /* which has locked it: a child of fork() has not */
    uint64_t number;  /* of the newest file, as of the last rw_rotation_lock() and what was saved since */
    uint64_t *bad;    /* numbers of files that turned out not to be whole */
    size_t n_bad, cap_bad;
};

/* RW_ERR_MEMORY. Nothing is looked at yet. */
rw_status rw_rotation_init(struct rw_rotation *r, const char *folder);
void rw_rotation_finish(struct rw_rotation *r);

/* Makes the folder, locks it, removes what was left half-written, unless that was done; then looks which number is the
   newest. RW_ERR_IO and RW_ERR_MEMORY with the reason in why. */
rw_status rw_rotation_lock(struct rw_rotation *r, char *why, size_t size);

/* The files, newest first, for rw_free(); none of a folder that is not there. */
rw_status rw_rotation_list(const struct rw_rotation *r, struct rw_rotated **ret, size_t *ret_n, char *why, size_t size);

/* For rw_free(); NULL without memory. */
char *rw_rotation_path(const struct rw_rotation *r, const struct rw_rotated *file);

/* Notes that a file is not whole. False without memory. */
bool rw_rotation_note_bad(struct rw_rotation *r, uint64_t number);

/* A file has got its name: brings that to the disk, and removes all but the newest `keep` that are not known as bad. */
rw_status rw_rotation_settle(struct rw_rotation *r, int keep, char *why, size_t size);

#endif
