/*
 * A gate: a word that one thread sets and others wait for. A waiter stays awake for a moment, because the word
 * usually changes soon, and then sleeps, so that it takes no core from other programs.
 *
 *     setter: store word (seq_cst); load sleepers (seq_cst), not 0: wake all
 *     waiter: sleepers++ (seq_cst); while (load word (seq_cst) == value) sleep unless the word has changed; sleepers--
 *
 * At least one of the two sees the other's store, on every processor, so no wake-up is lost. (On ARM64 these are STLR
 * and LDAR, which keep their order; with a release and an acquire of C alone, LDAPR could pass the store.) What the
 * setter wrote before is visible to the waiter after. Linux' futex(2) compares the word and sleeps atomically;
 * elsewhere a condition variable does.
 */
#ifndef RW_BASE_THREAD_GATE_H
#define RW_BASE_THREAD_GATE_H

#include <stdbool.h>
#include <stdint.h>

struct rw_gate {
    uint32_t word, sleepers;
};

/* Waits until the word is not `value`, and returns it. Without spins it sleeps at once. Any number of threads. */
uint32_t rw_gate_wait(struct rw_gate *g, uint32_t value, bool spins);

/* Sets the word and wakes the waiters. One thread at a time. */
void rw_gate_set(struct rw_gate *g, uint32_t value);

/* Call in the child of fork(), where the calling thread is the only one. */
void rw_gate_after_fork(void);

#endif
