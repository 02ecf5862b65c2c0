/*
 * Blocks signals while oneDNN code runs. Its generated float32 products (2.6, on x86-64) use the stack pointer as a
 * general register, so a signal handler (a profiler's timer, Ctrl-C) would write its frame to arbitrary memory. Signals
 * arrive after the call. Signals that a fault raises in the thread itself cannot be blocked, nor can the C library's
 * own two, for setuid() and pthread_cancel(): context.h says what a program must not do.
 */
#ifndef RW_BASE_BLOCK_SIGNALS_H
#define RW_BASE_BLOCK_SIGNALS_H

#include <pthread.h>
#include <signal.h>

static inline void rw_signals_hold(sigset_t *ret_before)
{
    static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS };
    sigset_t all;
    sigfillset(&all);
    for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_BLOCK, &all, ret_before);
}

static inline void rw_signals_let(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

#endif
