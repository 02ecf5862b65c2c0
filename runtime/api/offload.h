/* Folders in which values wait, for who has one of its own. */
#ifndef RW_API_OFFLOAD_H
#define RW_API_OFFLOAD_H

#include "record/context.h"

/* The folder by its whole path, as the program may change its own; from rw_malloc(), the caller's. RW_ERR_IO,
   RW_ERR_MEMORY: recorded, as errors of `call`. */
rw_status rw_folder_find(rw_context *ctx, const char *call, const char *path, char **ret);

#endif
