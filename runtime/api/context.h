/* Contexts that the library creates for itself. */
#ifndef RW_API_CONTEXT_H
#define RW_API_CONTEXT_H

#include <rewind/context.h>

/* Like rw_context_create(), but ignores environment variables except REWIND_THREADS, and attaches no observers. */
rw_status rw_context_create_bare(rw_context **ret_ctx, const rw_context_params *params);

#endif
