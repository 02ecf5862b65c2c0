/* Error messages of einsum for invalid equations: the column of the mistake. Values: accuracy.c and golden.c. */
#include "support/support.h"

#include <criterion/criterion.h>
#include <string.h>

Test(einsum_errors, a_message_points_at_the_place)
{
    static const struct {
        const char *equation;
        int column;
        const char *text;
    } wrong[] = {
        { "ij,jk->il", 9, "got 'l'" },
        { "ij,jj->i", 5, "expected extent 3 for 'j', as before, got 4" },
        { "ij, j?->i", 6, "expected a letter, got '?'" },
        { "ij,jk,k->i", 7, "got more" },
        { "ij->i", 3, "got 1" },
        { "ij,jk-i", 6, "got '-' alone" },
        { "ij,jk->i,k", 9, "got more" },
        { "i..,jk->i", 2, "another number of dots" },
        { "ij,ik->jk", 4, "extent 2 for 'i', as before, got 3" },
        { "ij,ijk->k", 4, "expected 2 letters, the rank of x[1], got 3" },
        { "ij,jk->kk", 9, "got 'k' twice" },
        { "ab,cdefghijk->a", 12, "at most 8 axes" },
        { "...i...,jk->i", 5, "got a second" },
        { "i...jk,jk->i", 1, "expected 2 letters, the rank of x[0], got 3" },
        { "ij,jk->...i...", 12, "got a second" },
        { "...a,...b->ab", 6, "2 for axis -1 of an ellipsis, as before, got 3" },
        { "ij,jk->i..", 9, "another number of dots" },
        { "ij , j k - > i", 10, "got '-' alone" },
    };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x[] = { rw_input(b.t, RW_F32, RW_SHAPE(2, 3), NULL, 0),
                             rw_input(b.t, RW_F32, RW_SHAPE(3, 4), NULL, 0) };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char column[32];
        cr_assert_null(rw_einsum(b.t, wrong[i].equation, x, 2), "%s", wrong[i].equation);
        const char *const message = rw_error_message(b.ctx);
        snprintf(column, sizeof column, "column %d: ", wrong[i].column);
        cr_expect(strstr(message, column) && strstr(message, wrong[i].text) && strstr(message, wrong[i].equation),
                  "%s", message);
        rw_error_clear(b.ctx);
    }
    fixture_close(&b);
}

/* For an operand with a diagonal, and one without. */
Test(einsum_errors, a_product_of_too_many_axes_is_of_the_operand_that_makes_it)
{
    static const char *const equations[] = { "abcdefgh,iij,hi->abcdefgj", "abcdefgh,ij,hi->abcdefgj" };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x[] = { rw_ones(b.t, RW_F32, RW_SHAPE(2, 2, 2, 2, 2, 2, 2, 2)), rw_ones(b.t, RW_F32, RW_SHAPE(2, 2, 2)),
                       rw_ones(b.t, RW_F32, RW_SHAPE(2, 2)) };
    for (int i = 0; i < 2; i++) {
        cr_expect_null(rw_einsum(b.t, equations[i], x, 3), "%s", equations[i]);
        cr_expect(strstr(rw_error_message(b.ctx), "column 10: expected a product of at most 8 axes, got 10"),
                  "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        x[1] = x[2];
    }
    fixture_close(&b);
}

/* An extent of 1 broadcasts between operands, not within one. */
Test(einsum_errors, a_diagonal_is_of_a_square)
{
    struct fixture b = fixture_open(1, 1);
    for (int transposed = 0; transposed < 2; transposed++) {
        rw_tensor *const x = rw_input(b.t, RW_F32, transposed ? RW_SHAPE(1, 3) : RW_SHAPE(3, 1), NULL, 0);
        cr_expect_null(rw_einsum(b.t, "ii->i", &x, 1));
        cr_expect_eq(rw_error_status(b.ctx), RW_ERR_SHAPE, "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
    }
    fixture_close(&b);
}

/* The result of an equation that changes nothing is a value of the tape: x may be a parameter. */
Test(einsum_errors, a_result_is_not_the_operand)
{
    static const char *const equations[] = { "ij->ij", "ij", "...", "i...->i..." };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const s = rw_param(b.ctx, "s", RW_F32, RW_SCALAR);
    rw_tensor *const m = rw_param(b.ctx, "m", RW_F32, RW_SHAPE(1, 2));
    float g = 0, v[2];
    cr_assert_eq(rw_init_constant(s, 3), RW_OK);
    cr_assert_eq(rw_backward(b.t, rw_einsum(b.t, "->", &s, 1)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_gradient(s), &g, sizeof g), RW_OK);
    cr_expect_eq(g, 1);
    cr_assert_eq(rw_init_constant(m, 3), RW_OK);
    for (size_t i = 0; i < sizeof equations / sizeof *equations; i++) {
        rw_tensor *const y = rw_einsum(b.t, equations[i], &m, 1);
        cr_expect_eq(rw_tensor_kind_of(y), RW_TENSOR_VALUE, "%s", equations[i]);
        cr_assert_eq(rw_read(b.t, y, v, sizeof v), RW_OK);
        cr_expect(v[0] == 3 && v[1] == 3, "%s", equations[i]);
        cr_expect_eq(ckpt_name(b.t, y, "y"), y, "%s: %s", equations[i], rw_error_message(b.ctx));
    }
    fixture_close(&b);
}

/* Views take any type; a sum or a product would not. */
Test(einsum_errors, operands_are_floating_point)
{
    static const rw_dtype types[] = { RW_I32, RW_BOOL, RW_F8_E4M3 };
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) {
            rw_tensor *const good = rw_input(b.t, RW_F32, RW_SHAPE(2, 2), NULL, 0);
            rw_tensor *const bad = rw_input(b.t, types[i], RW_SHAPE(2, 2), NULL, 0), *const x[] = { good, bad };
            cr_expect_null(k ? rw_einsum(b.t, "ij,ij->ij", x, 2) : rw_einsum(b.t, "ij->ji", &bad, 1));
            cr_expect(rw_error_status(b.ctx) == RW_ERR_DTYPE &&
                      strstr(rw_error_message(b.ctx), k ? "x[1]" : "x[0]"), "%s", rw_error_message(b.ctx));
            rw_error_clear(b.ctx);
        }
    fixture_close(&b);
}

/* Products if there is a sum, one multiplication if there is none, and views without a kernel. */
Test(einsum_errors, records_no_more_than_it_needs)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(2, 3, 4), NULL, 0), *const y = rw_input(b.t, RW_F32,
                                                                                            RW_SHAPE(2, 4, 5), NULL, 0);
    rw_tensor *const pair[] = { x, y }, *const same[] = { x, x };
    cr_expect(rw_tensor_base(rw_einsum(b.t, "bij->jbi", &x, 1)) == x);
    rw_tensor *const product = rw_einsum(b.t, "bij,bjk->bik", pair, 2);
    cr_expect(product && rw_tensor_base(product) == product, "a product that needs no reshape is the result");
    rw_tensor *const each = rw_einsum(b.t, "bij,bij->bij", same, 2);
    cr_expect(each && rw_tensor_base(each) == each);
    rw_tensor *const square = rw_input(b.t, RW_F32, RW_SHAPE(3, 3), NULL, 0);
    rw_tensor *const across = rw_einsum(b.t, "ii->i", &square, 1);
    cr_expect(across && rw_tensor_base(across) == square, "a diagonal of a dense matrix is a view");
    fixture_close(&b);
}
