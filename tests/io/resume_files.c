/*
 * What is on the disk: whole files, in a rotation. What is cut off, damaged or half-written is passed over and said.
 */
#include "io/saved_run.h"

#include "io/rotation.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(resume_files, .init = folder_open, .fini = folder_close, .timeout = 400);

/* ---- files that are not whole ---- */

static void expect_older(struct world *w, const char *what, size_t where)
{
    cr_assert_eq(rw_init_constant(x_of(w), 3), RW_OK);
    const rw_checkpoint_found found = world_load(w);
    cr_assert(found.found && found.step == 1 && found.skipped == 1, "%s %zu: step %d", what, where, (int)found.step);
    cr_assert(strstr(found.path, "000001-step1") && strstr(found.why, "000002-step2.safetensors: "), "%s", found.why);
    expect_x(w, 1);
}

Test(resume_files, a_file_cut_off_anywhere_is_passed_over)
{
    struct world w = small_open();
    size_t bytes;
    put_two(&w);
    unsigned char *const file = file_get(file_of(2, 2), &bytes);
    for (size_t n = 0; n < bytes; n++) {
        file_put(file_of(2, 2), file, n);
        expect_older(&w, "cut off at", n);
    }
    file[bytes] = 0;
    file_put(file_of(2, 2), file, bytes + 1);
    expect_older(&w, "longer by one:", bytes + 1);
    file_put(file_of(2, 2), file, bytes);
    cr_assert_eq(world_load(&w).step, 2);
    expect_x(&w, 2);
    free(file);
    world_close(&w);
}

Test(resume_files, a_file_with_one_bit_turned_is_passed_over)
{
    struct world w = small_open();
    size_t bytes;
    put_two(&w);
    unsigned char *const file = file_get(file_of(2, 2), &bytes);
    const int fd = open(file_of(2, 2), O_WRONLY);
    const size_t stride = test_device() == RW_DEVICE_CPU ? 1 : 97;
    for (size_t bit = 0; bit < 8 * bytes; bit += stride) {
        const unsigned char turned = (unsigned char)(file[bit / 8] ^ 1u << bit % 8);
        cr_assert_eq(pwrite(fd, &turned, 1, (off_t)(bit / 8)), 1);
        expect_older(&w, "bit", bit);
        cr_assert_eq(pwrite(fd, &file[bit / 8], 1, (off_t)(bit / 8)), 1);
    }
    close(fd);
    cr_assert_eq(world_load(&w).step, 2);
    free(file);
    world_close(&w);
}

Test(resume_files, none_of_the_files_is_whole)
{
    struct world w = small_open();
    put_two(&w);
    file_put(file_of(1, 1), "x", 1);
    file_put(file_of(2, 2), "", 0);
    cr_assert_eq(rw_init_constant(x_of(&w), 3), RW_OK);
    rw_checkpoint_found found = { .step = 77 };
    cr_assert_eq(rw_checkpoint_load(w.ck, &found), RW_ERR_IO);
    cr_assert_eq(found.step, 77);
    const char *const m = rw_error_message(w.b.ctx);
    cr_assert(strstr(m, "none of the files is whole: 000002-step2") && strstr(m, folder), "%s", m);
    rw_error_clear(w.b.ctx);
    expect_x(&w, 3);
    world_close(&w);
}

/* ---- the rotation ---- */

/* A disk takes them from the copy's own memory, and begins while the copy is still being taken. */
Test(resume_files, elements_of_a_large_file_begin_at_a_block_and_are_whole)
{
    struct world w = large_open();
    rw_tensor *const ballast = rw_param_find(w.b.ctx, "ballast");
    for (int step = 1; step <= 3; step++) {
        size_t bytes, want, got;
        cr_assert_eq(rw_init_constant(ballast, step), RW_OK);
        w.step = (uint64_t)step;
        world_save(&w);
        cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
        unsigned char *const file = file_get(file_of(step, step), &bytes);
        unsigned char *const before = all_parameters(w.b.ctx, &want);
        cr_assert_eq((8 + file[0] + 256 * file[1] + 65536 * file[2]) % 4096, 0);
        cr_assert_eq(rw_init_constant(ballast, -1), RW_OK);
        const rw_checkpoint_found found = world_load(&w);
        cr_assert(found.step == (uint64_t)step && !found.skipped, "%s", found.why);
        unsigned char *const after = all_parameters(w.b.ctx, &got);
        cr_assert(want == got && first_difference(after, before, want) == -1);
        free(file), free(before), free(after);
    }
    world_close(&w);
}

Test(resume_files, the_newest_files_stay)
{
    struct world w = world_open(RW_F32, &alone); /* keeps two */
    cr_assert_eq(world_load(&w).found, false, "a folder that is not there is a run that begins");
    cr_assert_eq(mkdir(folder, 0777), 0);
    file_put(file_of(9999, 0), "", 0);
    char path[160];
    snprintf(path, sizeof path, "%s/020000-step5.safetensorz", folder); /* somebody else's */
    file_put(path, "", 0);
    snprintf(path, sizeof path, "%s/notes.txt", folder);
    file_put(path, "", 0);
    snprintf(path, sizeof path, "%s/%s.123.4.part", folder, SAVED("000008", "7"));
    file_put(path, "", 0);
    for (w.step = 10; w.step < 14; w.step++) world_save(&w);
    w.step = 2; /* set back: newer all the same */
    world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    cr_assert_str_eq(names_in(folder), SAVED("010003", "13") " " SAVED("010004", "2")
                                          " 020000-step5.safetensorz notes.txt");
    cr_assert_eq(world_load(&w).step, 2);
    world_close(&w);
}

/* Somebody copies a file there while the run goes on: what is saved is newer all the same, and stays. */
Test(resume_files, a_file_that_comes_from_elsewhere_is_counted_on_from)
{
    struct world w = world_open(RW_F32, &alone); /* keeps two */
    w.step = 1;
    world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    file_put(file_of(500, 9), "", 0);
    file_put(file_of(501, 9), "", 0);
    for (w.step = 2; w.step < 4; w.step++) {
        world_save(&w);
        cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
        cr_assert_eq(world_load(&w).step, w.step);
    }
    cr_assert_str_eq(names_in(folder), SAVED("000502", "2") " " SAVED("000503", "3"));
    world_close(&w);
}

/* What came while a file was written is newer: the file just written stays beside what is to be kept. */
Test(resume_files, the_file_just_written_is_never_removed)
{
    struct rw_rotation r;
    char why[200];
    cr_assert_eq(rw_rotation_init(&r, folder), RW_OK);
    cr_assert_eq(rw_rotation_lock(&r, why, sizeof why), RW_OK, "%s", why);
    r.number = 3;
    for (int i = 2; i < 7; i++) file_put(file_of(i, 0), "", 0);
    cr_assert_eq(rw_rotation_settle(&r, 1, why, sizeof why), RW_OK, "%s", why);
    cr_assert_str_eq(names_in(folder), SAVED("000003", "0") " " SAVED("000006", "0"));
    cr_assert_eq(rw_rotation_lock(&r, why, sizeof why), RW_OK, "%s", why);
    cr_assert_eq(r.number, 6);
    rw_rotation_finish(&r);
}

/* Behind 2^63 - 1 a file's name would not be read again. */
Test(resume_files, numbers_that_are_used_up_are_said)
{
    struct world w = small_open();
    put_two(&w);
    char path[160];
    snprintf(path, sizeof path, "%s/9223372036854775807-step1.safetensors", folder);
    file_put(path, "", 0);
    cr_assert_eq(rw_checkpoint_save(w.ck, 3, NULL, 0), RW_ERR_IO);
    cr_assert(strstr(rw_error_message(w.b.ctx), "no number is above"), "%s", rw_error_message(w.b.ctx));
    rw_error_clear(w.b.ctx);
    cr_assert_eq(world_load(&w).step, 2);
    remove(path);
    world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    world_close(&w);
}

Test(resume_files, an_old_file_that_cannot_be_removed_is_said)
{
    struct world w = world_open(RW_F32, &alone);
    cr_assert_eq(mkdir(folder, 0777), 0);
    cr_assert_eq(mkdir(file_of(1, 1), 0777), 0);
    for (w.step = 2; w.step < 4; w.step++) world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_ERR_IO);
    const char *const m = rw_error_message(w.b.ctx);
    cr_assert(strstr(m, "the new file is there") && strstr(m, "000001-step1.safetensors cannot be removed"), "%s", m);
    rw_error_clear(w.b.ctx);
    cr_assert_eq(world_load(&w).step, 3);
    world_close(&w);
}

/* A file that was found to be damaged doesn't take the place of a whole one. */
Test(resume_files, damaged_files_do_not_count_as_kept)
{
    struct world w = world_open(RW_F32, &alone);
    for (w.step = 1; w.step < 4; w.step++) world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    file_put(file_of(3, 3), "?", 1);
    cr_assert_eq(world_load(&w).step, 2);
    w.step = 3;
    world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    cr_assert_str_eq(names_in(folder), SAVED("000002", "2") " " SAVED("000003", "3") " " SAVED("000004", "3"));
    world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    cr_assert_str_eq(names_in(folder), SAVED("000004", "3") " " SAVED("000005", "3"));
    world_close(&w);
}

Test(resume_files, one_folder_for_two_runs_is_refused)
{
    struct world a = small_open(), z = small_open();
    put_two(&a);
    cr_assert_eq(rw_checkpoint_save(z.ck, 5, NULL, 0), RW_ERR_IO);
    cr_assert(strstr(rw_error_message(z.b.ctx), "somebody else saves there"), "%s", rw_error_message(z.b.ctx));
    rw_error_clear(z.b.ctx);
    cr_assert_eq(world_load(&z).step, 2, "but it may be read");
    world_close(&a);
    world_save(&z);
    cr_assert_eq(rw_checkpoint_wait(z.ck), RW_OK, "the first run has ended");
    world_close(&z);
}
