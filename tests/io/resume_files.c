/*
 * Files on the disk: complete files, in a rotation. Files that are truncated, damaged or half-written are skipped and
 * reported.
 */
#include "io/saved_run.h"

#include "io/checkpoint_retention.h"

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

Test(resume_files, a_file_with_one_bit_flipped_is_skipped)
{
    struct world w = small_open();
    size_t bytes;
    put_two(&w);
    unsigned char *const file = file_get(file_of(2, 2), &bytes);
    const int fd = open(file_of(2, 2), O_WRONLY);
    const size_t stride = test_device() == RW_DEVICE_CPU ? 1 : 97;
    for (size_t bit = 0; bit < 8 * bytes; bit += stride) {
        const unsigned char flipped = (unsigned char)(file[bit / 8] ^ 1u << bit % 8);
        cr_assert_eq(pwrite(fd, &flipped, 1, (off_t)(bit / 8)), 1);
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
    cr_assert(strstr(m, "no undamaged file: 000002-step2") && strstr(m, folder), "%s", m);
    rw_error_clear(w.b.ctx);
    expect_x(&w, 3);
    world_close(&w);
}

/* ---- the rotation ---- */

/* Direct writes from the copy's own memory begin while the copy is still being made. */
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
    snprintf(path, sizeof path, "%s/020000-step5.safetensorz", folder); /* another program's */
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

/* Another program copies a file to the folder during the run: later saves are newer all the same, and stay. */
Test(resume_files, numbering_continues_after_a_foreign_file)
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

/* A file that appeared while one was being written is newer: the one just written is kept in addition. */
Test(resume_files, the_file_just_written_is_never_removed)
{
    struct rw_retention r;
    char why[200];
    cr_assert_eq(rw_retention_init(&r, folder), RW_OK);
    cr_assert_eq(rw_retention_lock(&r, why, sizeof why), RW_OK, "%s", why);
    r.number = 3;
    for (int i = 2; i < 7; i++) file_put(file_of(i, 0), "", 0);
    cr_assert(rw_retention_settle(&r, 1, why, sizeof why), "%s", why);
    cr_assert_str_eq(names_in(folder), SAVED("000003", "0") " " SAVED("000006", "0"));
    cr_assert_eq(rw_retention_lock(&r, why, sizeof why), RW_OK, "%s", why);
    cr_assert_eq(r.number, 6);
    rw_retention_finish(&r);
}

/* After 2^63 - 1 a file's name could not be read again. */
Test(resume_files, exhausted_numbers_are_reported)
{
    struct world w = small_open();
    put_two(&w);
    char path[160];
    snprintf(path, sizeof path, "%s/9223372036854775807-step1.safetensors", folder);
    file_put(path, "", 0);
    cr_assert_eq(rw_checkpoint_save(w.ck, 3, NULL, 0), RW_ERR_IO);
    const char *const m = rw_error_message(w.b.ctx);
    cr_assert(strstr(m, "9223372036854775807-step1") && strstr(m, "remove or rename"), "%s", m);
    rw_error_clear(w.b.ctx);
    cr_assert_eq(world_load(&w).step, 2);
    remove(path);
    world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    world_close(&w);
}

/* It affects neither the file that was being saved nor later ones. */
Test(resume_files, an_old_file_that_cannot_be_removed_is_said_once_and_costs_nothing)
{
    struct world w = world_open(RW_F32, &alone);
    cr_assert_eq(mkdir(folder, 0777), 0);
    cr_assert_eq(mkdir(file_of(1, 1), 0777), 0);
    cr_assert_null(rw_checkpoint_warning(w.ck));
    for (w.step = 2; w.step < 6; w.step++) world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    const char *const m = rw_checkpoint_warning(w.ck);
    cr_assert(m && strstr(m, "000001-step1.safetensors cannot be removed: "), "%s", m);
    world_save(&w);
    cr_assert_null(rw_checkpoint_warning(w.ck), "told once");
    cr_assert_null(rw_checkpoint_warning(NULL));
    cr_assert_str_eq(names_in(folder), SAVED("000001", "1") " " SAVED("000005", "5") " " SAVED("000006", "6"));
    cr_assert_eq(world_load(&w).step, 6);
    world_close(&w);
}

/* ---- a folder that is replaced ---- */

static void move_away(const char *to)
{
    cr_assert_eq(rename(folder, to), 0);
}

static void remove_moved(const char *where)
{
    empty_folder(where);
    cr_assert_neq(access(where, F_OK), 0);
}

/* A run saves to its path, even if the folder was moved and a new one created: the new one is locked, numbering
   continues and old files are removed there; the moved one is left alone. */
Test(resume_files, a_folder_that_is_recreated_is_used)
{
    char away[160], names[400];
    for (int made = 0; made < 2; made++) {
        struct world w = world_open(RW_F32, &alone), z;
        snprintf(away, sizeof away, "%s.away", folder);
        for (w.step = 1; w.step < 4; w.step++) world_save(&w);
        cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
        move_away(away);
        snprintf(names, sizeof names, "%s", names_in(away));
        if (made) cr_assert_eq(mkdir(folder, 0777), 0);
        for (; w.step < 8; w.step++) world_save(&w);
        cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK, "%s", rw_error_message(w.b.ctx));
        cr_assert_null(rw_checkpoint_warning(w.ck));
        cr_assert_str_eq(names_in(folder), SAVED("000006", "6") " " SAVED("000007", "7"));
        cr_assert_str_eq(names_in(away), names);
        z = small_open();
        cr_assert_eq(rw_checkpoint_save(z.ck, 9, NULL, 0), RW_ERR_IO, "the new one is locked");
        rw_error_clear(z.b.ctx);
        world_close(&z);
        cr_assert_eq(world_load(&w).step, 7);
        world_close(&w);
        remove_moved(away);
        empty_folder(folder);
    }
}

/* Created by another run, which saves there. */
Test(resume_files, a_folder_that_is_recreated_by_another_run_is_refused)
{
    char away[160];
    struct world w = small_open(), z = small_open();
    put_two(&w);
    snprintf(away, sizeof away, "%s.away", folder);
    move_away(away);
    put_two(&z);
    cr_assert_eq(rw_checkpoint_save(w.ck, 3, NULL, 0), RW_ERR_IO);
    cr_assert(strstr(rw_error_message(w.b.ctx), "another process saves to this folder"), "%s",
              rw_error_message(w.b.ctx));
    rw_error_clear(w.b.ctx);
    world_close(&z);
    world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK, "%s", rw_error_message(w.b.ctx));
    world_close(&w);
    remove_moved(away);
}

/* A file known to be damaged does not replace a complete one in the rotation. */
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
    cr_assert(strstr(rw_error_message(z.b.ctx), "another process saves to this folder"), "%s",
              rw_error_message(z.b.ctx));
    rw_error_clear(z.b.ctx);
    cr_assert_eq(world_load(&z).step, 2, "but it may be read");
    world_close(&a);
    world_save(&z);
    cr_assert_eq(rw_checkpoint_wait(z.ck), RW_OK, "the first run has ended");
    world_close(&z);
}
