/* Folders of offload stores, for code that has its own. */
#ifndef RW_API_SET_OFFLOAD_STORE_H
#define RW_API_SET_OFFLOAD_STORE_H

#include "record/context.h"

/* Returns the absolute path of the folder, because the program may change its working folder. The caller frees it with
   rw_free(). RW_ERR_IO, RW_ERR_MEMORY: recorded, as errors of `call`. */
rw_status rw_folder_find(rw_context *ctx, const char *call, const char *path, char **ret);

#endif
