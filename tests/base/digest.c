/* Digests: the same for every number of threads, another for every other byte. */
#include "base/digest.h"

#include <criterion/criterion.h>
#include <stdlib.h>

Test(digest, does_not_depend_on_threads_and_sees_every_bit)
{
    const size_t n = ((size_t)3 << 20) + 17;
    unsigned char *const data = malloc(n);
    for (size_t i = 0; i < n; i++) data[i] = (unsigned char)(i * 131 >> 3);
    const struct rw_digest d = rw_digest_bytes(data, n, 1);
    for (int threads = 2; threads < 6; threads++) cr_assert(rw_digest_equal(d, rw_digest_bytes(data, n, threads)));
    for (size_t at = 0; at < n; at += n / 37) {
        data[at] ^= 4;
        cr_assert_not(rw_digest_equal(d, rw_digest_bytes(data, n, 2)), "byte %zu", at);
        data[at] ^= 4;
    }
    free(data);
}
