/*
 * The host's threads, OpenMP's, made sure of before anything runs on them.
 *
 * Where a thread cannot be started, OpenMP's library ends the process. And in a child of fork() its threads are gone
 * without its knowing: it would wait for them for ever. So who is about to run a parallel region with n threads calls
 * rw_threads_ready() first, and takes as many as that says.
 */
#ifndef RW_DEVICE_CPU_THREADS_H
#define RW_DEVICE_CPU_THREADS_H

#include <rewind/status.h>

/* The calling thread may use so many: n, but 1 in a child of fork(). RW_ERR_MEMORY when they cannot be started. */
rw_status rw_threads_ready(int n, int *ret_n);

/* The same without starting any, for the caller's threads that have been made ready before. */
int rw_threads_usable(int n);

/* Calls of fork() between this process and the one that made the first context: 0 there, more in each child. */
unsigned rw_threads_forks(void);

/* Once, before the first region: has a fork() noticed. */
void rw_threads_init(void);

#endif
