/* Replacements of file-system calls that delay and fail as a test requires, and a net with offloaded values. */
#include "run/offload_folder_fixture.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

struct plant plant;

ssize_t __real_pwrite64(int fd, const void *from, size_t n, off_t at);
ssize_t __real_pread64(int fd, void *to, size_t n, off_t at);
int __real_fallocate64(int fd, int mode, off_t at, off_t n);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument);

static void wait_a_while(void)
{
    static uint32_t state = 1;
    if (!plant.delay) return;
    state = state * 1664525u + 1013904223u;
    usleep((state >> 8) % plant.delay);
}

/* Only one thread copies. */
static void note_memory(const char *memory, ssize_t n)
{
    if (n <= 0) return;
    if (!plant.lowest || memory < plant.lowest) plant.lowest = memory;
    if (memory + n > plant.highest) plant.highest = memory + n;
}

static bool refuses(int fd)
{
    const bool direct = fcntl(fd, F_GETFL) & O_DIRECT;
    if (direct) __atomic_add_fetch(&plant.direct, 1, __ATOMIC_RELAXED);
    return plant.refuses_direct && direct;
}

ssize_t __wrap_pwrite64(int fd, const void *from, size_t n, off_t at)
{
    wait_a_while();
    if (plant.stall_write && !--plant.stall_write) usleep(STALL_US);
    __atomic_add_fetch(&plant.writes, 1, __ATOMIC_RELAXED);
    errno = EINVAL;
    if (refuses(fd)) return -1;
    errno = plant.error;
    if (plant.fail_write && !--plant.fail_write) return plant.error ? -1 : 0;
    if (n > 8192) n = n / 2 / 4096 * 4096; /* a call may transfer less than requested */
    const ssize_t done = __real_pwrite64(fd, from, n, at);
    note_memory(from, done);
    return done;
}

ssize_t __wrap_pread64(int fd, void *to, size_t n, off_t at)
{
    wait_a_while();
    __atomic_add_fetch(&plant.reads, 1, __ATOMIC_RELAXED);
    errno = EINVAL;
    if (refuses(fd)) return -1;
    errno = plant.error;
    if (plant.fail_read && !--plant.fail_read) return plant.error ? -1 : 0;
    const ssize_t done = __real_pread64(fd, to, n, at);
    note_memory(to, done);
    return done;
}

int __wrap_fallocate64(int fd, int mode, off_t at, off_t n)
{
    if (plant.interrupted_fallocates) {
        plant.interrupted_fallocates--;
        errno = EINTR;
        return -1;
    }
    plant.files++;
    errno = plant.fallocate_error;
    return plant.fallocate_error ? -1 : __real_fallocate64(fd, mode, at, n);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument)
{
    if (plant.refuses_threads) return EAGAIN;
    return __real_pthread_create(thread, attr, start, argument);
}

/* ---- a net with values offloaded to a folder ---- */

char folder[64];

void make_folder(void)
{
    plant = (struct plant){ 0 };
    strcpy(folder, "/tmp/rewind-files-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

void remove_folder(void)
{
    cr_assert_eq(rmdir(folder), 0, "%s: %s", folder, strerror(errno));
}

struct world open_world(const char *policy, const char *path, int threads)
{
    struct world w = { .b = fixture_open(3, threads) };
    net_init(&w.n, w.b.ctx, LAYERS, WIDTH, RW_F32, 1);
    const rw_offload o = { .path = path, .out_bytes_per_s = 1e9, .in_bytes_per_s = 1e9 };
    if (path) cr_assert_eq(rw_context_set_offload(w.b.ctx, &o), RW_OK, "%s", rw_error_message(w.b.ctx));
    cr_assert_eq(ckpt_set_policy(w.b.t, policy), RW_OK, "%s", rw_error_message(w.b.ctx));
    return w;
}

struct outcome outcome_in(struct world *w, int micro, bool reads)
{
    struct outcome o = { 0 };
    for (int i = 0; i < micro; i++) {
        rw_tensor *const loss = net_loss(&w->n, w->b.t, TOKENS, i);
        if (reads) rw_item(w->b.t, loss);
        cr_assert_eq(rw_backward(w->b.t, loss), RW_OK, "%s", rw_error_message(w->b.ctx));
        o.loss += rw_item(w->b.t, loss);
        rw_tape_reset(w->b.t);
    }
    o.gradients = all_gradients(w->b.ctx, &o.bytes);
    rw_memory_stats(w->b.ctx, &o.memory);
    return o;
}

struct outcome outcome_of(const char *policy, const char *path, int threads, int micro, bool reads)
{
    struct world w = open_world(policy, path, threads);
    const struct outcome o = outcome_in(&w, micro, reads);
    fixture_close(&w.b);
    return o;
}

bool is_same(const struct outcome *a, const struct outcome *b)
{
    cr_assert_eq(a->bytes, b->bytes);
    return !memcmp(&a->loss, &b->loss, sizeof a->loss) && first_difference(a->gradients, b->gradients, a->bytes) == -1;
}

void expect_message(const struct world *w, const char *a, const char *b)
{
    const char *const m = rw_error_message(w->b.ctx);
    cr_assert(strstr(m, a) && strstr(m, b), "\"%s\" lacks \"%s\" or \"%s\"", m, a, b);
}

void expect_recovery(struct world *w, rw_tensor *loss, const struct outcome *none)
{
    struct outcome o;
    rw_error_clear(w->b.ctx);
    rw_zero_grad(w->b.ctx);
    cr_assert_eq(rw_backward(w->b.t, loss), RW_OK, "%s", rw_error_message(w->b.ctx));
    o.loss = rw_item(w->b.t, loss);
    o.gradients = all_gradients(w->b.ctx, &o.bytes);
    cr_assert(is_same(none, &o), "after a failure");
    free(o.gradients);
}
