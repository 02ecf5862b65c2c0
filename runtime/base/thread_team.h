/*
 * A team of threads that compute together.
 *
 * Each thread that calls the library has a team of its own: itself, thread 0, and workers that the library starts for
 * it. So contexts in different threads never wait for each other, contexts of one thread share the workers, and no
 * locks are needed. (A team per context would start as many threads again for every context of a program.)
 *
 *     parked --- a job for more threads than the worker's number ---> runs its share ---> parked
 *
 * rw_team_ready() starts workers, or fails; rw_team_run() never fails. Workers end with the thread that they belong to,
 * and not before: a job for fewer threads leaves the others parked. Each starts a job in the default floating-point
 * mode (float_mode.h), whatever mode it or its caller was left in. All signals but those of faults are blocked in them.
 * Waiting threads stay awake for 5 ms, yielding their core after 0.2 ms, and then sleep; earlier if another program
 * wants the core, and at once if a team has more threads than the process has cores (thread_gate.c).
 *
 * In the child of fork() the team is empty (fork_handlers.h); rw_team_ready() starts its workers again.
 *
 * A job must give the same bytes for every number of threads, whichever thread does which part.
 */
#ifndef RW_BASE_THREAD_TEAM_H
#define RW_BASE_THREAD_TEAM_H

#include <rewind/status.h>

#include <stdint.h>

/* The share of thread `thread` of `threads`; `of` is the argument of rw_team_run(), which is const there. */
typedef void rw_team_job(void *of, int thread, int threads);

/* The same with items first to end - 1 of rw_team_for()'s. */
typedef void rw_team_range(void *of, int64_t first, int64_t end);

/* Ensures that the calling thread's team has at least so many threads, itself included, at most RW_MAX_THREADS.
   RW_ERR_MEMORY if one cannot be started; then those that this call started have ended again. */
rw_status rw_team_ready(int threads);

/* Number of threads in the calling thread's team: 1 before rw_team_ready(). */
int rw_team_size(void);

/*
 * Runs the job in so many threads, the calling one included, and returns when all have finished. In fewer threads if
 * the team has fewer, and in the calling thread only inside of another job: the job must use the number that it is
 * given. The job sees what the caller wrote before, and the caller sees what the job wrote.
 */
void rw_team_run(int threads, rw_team_job *job, const void *of);

/* Call it inside of a job, in each of its threads: returns when all have called it; each then sees what the others
   wrote before. */
void rw_team_barrier(void);

/* Divides items 0 to n - 1 into one range per thread, in order, as equal as possible. */
void rw_team_for(int threads, int64_t n, rw_team_range *range, const void *of);

/* The first item of a thread's range; that of thread `threads` is n. */
static inline int64_t rw_team_first(int64_t n, int thread, int threads)
{
    return n / threads * thread + n % threads * thread / threads;
}

#endif
