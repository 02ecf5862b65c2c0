/*
 * Signals stay out while code of oneDNN runs: the float32 products that it writes at run time (2.6, on x86-64) use the
 * stack pointer as one more register, and a handler that the kernel calls there, a profiler's timer or a Ctrl-C, would
 * have its frame written into whatever lies below. They arrive when the call is over. Those that a fault raises in the
 * thread itself cannot wait.
 */
#ifndef RW_DEVICE_CPU_SIGNALS_H
#define RW_DEVICE_CPU_SIGNALS_H

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
