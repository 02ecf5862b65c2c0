/* Contexts of the library's own. */
#ifndef RW_API_CONTEXT_H
#define RW_API_CONTEXT_H

#include <rewind/context.h>

/* As rw_context_create(), but that the environment says nothing and nobody watches. */
rw_status rw_context_create_bare(rw_context **ret_ctx, const rw_context_params *params);

#endif
