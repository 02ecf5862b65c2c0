/* Spinning, and sleeping by futex or by a condition variable. */
#include "base/gate.h"

#include "base/clock.h"

#include <stddef.h>

/* Ten times the time to wake a sleeper, so waking costs at most a tenth of a gap between two jobs. Longer than most
   gaps within a step, and a small part of a time slice if other programs want the core. */
#define SPIN_S 200e-6
#define SPINS_MAX 16384 /* if the clock does not advance */
#define SPINS_PER_LOOK 32

static void pause_a_little(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* yield takes one cycle, this some tens */
#endif
}

/* Spins and returns the word, which is still `value` if the time is over. */
static uint32_t spin(const struct rw_gate *g, uint32_t value)
{
    double end = 0;
    for (int i = 0; i < SPINS_MAX; i++) {
        const uint32_t word = __atomic_load_n(&g->word, __ATOMIC_ACQUIRE);
        if (word != value) return word;
        pause_a_little();
        if (i % SPINS_PER_LOOK) continue;
        const double now = rw_now_s();
        if (!i) end = now + SPIN_S;
        else if (now > end) break;
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
    uint32_t word = spins ? spin(g, value) : __atomic_load_n(&g->word, __ATOMIC_ACQUIRE);
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
