/*
 * System calls on files, one of which fails: the n-th call that a thread of this process makes while the fault is
 * planted. A suite that uses it is linked so that the library calls these functions (system_calls in meson.build).
 */
#ifndef RW_TESTS_FAULTY_CALLS_H
#define RW_TESTS_FAULTY_CALLS_H

#include <stdbool.h>

#define SHORTENS (-1) /* instead of an error: half of the bytes are read or written */

/* A call only returns errors that are possible for it: EINTR calls that wait, ENOSPC calls that write, EINVAL the
   fsync() of a folder, which some file systems do not have. */
void fault_plant(int n, int error);

/* While it is set: files without a name (O_TMPFILE) are refused, as by some file systems. */
extern bool fault_no_nameless;

/* NULL, or called with each path that is about to be opened: what another process does at that moment. */
extern void (*fault_before_open)(const char *path);

/* Removes the fault. True if it has occurred; *ret_name receives the call's name. */
bool fault_take(const char **ret_name);

#endif
