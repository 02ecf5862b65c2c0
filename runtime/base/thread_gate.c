/* Waiting awake, and sleeping by futex or by a condition variable. */
#include "base/thread_gate.h"

#include "base/clock.h"

#include <sched.h>
#include <stddef.h>

/*
 * For the first part of a wait only the processor pauses: longer than most gaps between two jobs of a step. For the
 * rest the thread yields its core at each look. To wake a sleeper takes some 20 us, in a virtual machine 100: at most a
 * fiftieth of the gap in which it slept. Steps of 17 ms (ResNet-50, one image, two threads) have some ten gaps of 0.2
 * to 4 ms, and take 15 to 40 % longer if threads sleep in them.
 *
 * A yield takes less than a microsecond on a core that no other program wants. If it takes long, another has run
 * there, and would again at each yield; but a thread that is woken runs at once. So the next waits are shorter.
 */
#define PAUSE_S 200e-6
#define AWAKE_S 5e-3
#define YIELD_S 200e-6 /* longer: another program has had the core for a time slice */
#define CROWDED_WAITS 100
#define LOOKS_MAX (1 << 20) /* if the clock does not advance */
#define LOOKS_PER_CLOCK 32

/* Waits after which the thread sleeps without yielding. */
static _Thread_local int crowded;

static void pause_a_little(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* yield takes one cycle, this some tens */
#endif
}

/* Yields the core. False if the thread should rather sleep. */
static bool yield_core(double now)
{
    if (crowded > 0 && crowded--) return false;
    sched_yield();
    if (rw_now_s() < now + YIELD_S) return true;
    crowded = CROWDED_WAITS;
    return false;
}

/* Returns the word, which is still `value` if the time is over. */
static uint32_t stay_awake(const struct rw_gate *g, uint32_t value)
{
    double begin = 0;
    for (int i = 0; i < LOOKS_MAX; i++) {
        const uint32_t word = __atomic_load_n(&g->word, __ATOMIC_ACQUIRE);
        if (word != value) return word;
        pause_a_little();
        if (i % LOOKS_PER_CLOCK) continue;
        const double now = rw_now_s();
        if (!i) begin = now;
        if (now > begin + AWAKE_S || (now > begin + PAUSE_S && !yield_core(now))) break;
    }
    return value;
}

/* ---- sleeping ---- */

#if defined(__linux__) && !defined(RW_NO_FUTEX)
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static void sleep_while(struct rw_gate *g, uint32_t value)
{
    syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(struct rw_gate *g)
{
    syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void rw_gate_after_fork(void)
{
}
#else
#include <pthread.h>

/* One for all gates: a thread that sleeps at another gate checks its own word and sleeps again. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void sleep_while(struct rw_gate *g, uint32_t value)
{
    pthread_mutex_lock(&mutex);
    if (__atomic_load_n(&g->word, __ATOMIC_SEQ_CST) == value) pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void wake(struct rw_gate *g)
{
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

void rw_gate_after_fork(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}
#endif

uint32_t rw_gate_wait(struct rw_gate *g, uint32_t value, bool spins)
{
    uint32_t word = spins ? stay_awake(g, value) : __atomic_load_n(&g->word, __ATOMIC_ACQUIRE);
    if (word != value) return word;
    __atomic_fetch_add(&g->sleepers, 1, __ATOMIC_SEQ_CST);
    while ((word = __atomic_load_n(&g->word, __ATOMIC_SEQ_CST)) == value) sleep_while(g, value);
    __atomic_fetch_sub(&g->sleepers, 1, __ATOMIC_RELAXED);
    return word;
}

void rw_gate_set(struct rw_gate *g, uint32_t value)
{
    __atomic_store_n(&g->word, value, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&g->sleepers, __ATOMIC_SEQ_CST)) wake(g);
}
