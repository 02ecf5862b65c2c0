/*
 * The file of a trace. A file belongs to one process:
 *
 *     NAME          the first context of the first process that opens it
 *     NAME.2        its second context, and so on
 *     NAME.PID      another process while the first one exists, and a child of fork() of a process that has traced
 *     NAME.PID.2    its second context
 *
 * "%p" in the name is the process ID; "%%" is a percent sign. A file of an earlier run is overwritten.
 */
#ifndef RW_RUN_TRACE_FILE_H
#define RW_RUN_TRACE_FILE_H

/* Opens it empty, for appending. -1 with the reason. */
int rw_trace_file_open(const char *name, const char **ret_why);

#endif
