/* Placement of tapes whose values live as no decoder's do: the arena comes within 2 % of what lives. */
#include "support/support.h"
#include "zoo.h"

#include <criterion/criterion.h>

Test(zoo, arenas_are_close_to_what_lives)
{
    for (int i = 0; i < zoo_entries; i++)
        for (int p = 0; p < zoo_n_policies; p++) {
            struct fixture b = fixture_open(1, 2);
            rw_prediction x;
            rw_tensor *const loss = zoo[i].loss(&zoo[i], b.ctx, b.t);
            cr_assert_eq(rw_tape_plan(b.t, loss, zoo_policies[p], &x), RW_OK, "%s: %s", zoo[i].name,
                         rw_error_message(b.ctx));
            cr_expect(x.peak_bytes >= x.largest_live && (double)x.peak_bytes <= 1.02 * (double)x.largest_live,
                      "%s, %s: %zu bytes, %zu live", zoo[i].name, zoo_policies[p], x.peak_bytes, x.largest_live);
            fixture_close(&b);
        }
}
