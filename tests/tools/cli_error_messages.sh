#!/usr/bin/env bash
# Checks the programs' messages for invalid options: one line, on the right stream, with the right status; and that
# --help lists all options. Also checks that a program outside the tree builds with the uninstalled library
# (rewind-uninstalled.pc).
set -u
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

# says STATUS WORDS COMMAND...: checks that the program ends with that status and prints one line, to stderr, that
# contains the words
says() {
    local status=$1 words=$2 got
    shift 2
    "$@" >"$dir/out" 2>"$dir/err" </dev/null
    got=$?
    if [ "$got" -ne "$status" ] || [ -s "$dir/out" ] || [ "$(wc -l <"$dir/err")" -ne 1 ] ||
        ! grep -qF -- "$words" "$dir/err"; then
        echo "$*: status $got; $status and one line with \"$words\" are expected:"
        cat "$dir/out" "$dir/err"
        failed=1
    fi
}

# helps WORDS COMMAND...: checks that it prints its options to stdout, and does nothing else
helps() {
    local words=$1
    shift
    if ! "$@" >"$dir/out" 2>"$dir/err" </dev/null || [ -s "$dir/err" ] || ! grep -qF -- "$words" "$dir/out"; then
        echo "$*: no help with \"$words\""
        cat "$dir/err"
        failed=1
    fi
}

sweep=$build/bench/recompute_sweep
says 2 'separated by blanks, in quotes' "$sweep" --policy none,full
says 2 '--polcy' "$sweep" --polcy none
says 2 '--batch takes' "$sweep" --batch -3
says 2 '--seq takes' "$sweep" --seq 16,,32
says 2 'the sides that unet takes are multiples of 16' "$sweep" --model unet --seq 32,24
says 2 '--layers takes' "$sweep" --model resnet50 --layers 5
says 2 '--preset takes tiny or small' "$sweep" --model gpt --preset v3
says 1 'column 1: unknown policy "rubbish"' env REWIND_POLICY=rubbish "$build/examples/verify"
says 2 '--nonsense' "$build/examples/train_text" --nonsense

# tells VARIABLE=VALUE PROGRAM...: checks that the program fails and that its error names the value
tells() {
    local got
    timeout 120 env "$@" >"$dir/out" 2>"$dir/err" </dev/null
    got=$?
    if [ "$got" -eq 0 ] || [ "$got" -ge 124 ] || ! grep -qF rubbish "$dir/err"; then
        echo "$*: status $got; a failure whose message has \"rubbish\" is expected:"
        cat "$dir/err"
        failed=1
    fi
}
# Neither a context nor a tape is created.
while read -r example; do
    tells REWIND_POLICY=rubbish "$build/examples/$example" --quick
    tells REWIND_DUMP=/dev/null/rubbish "$build/examples/$example" --quick
done <"$build/examples/examples.txt"
helps '--policy' "$sweep" --help
helps '--temperature' "$build/examples/train_text" --help
helps '--policy' env PATH=/usr/bin:/bin REWIND_BUILD=/nowhere "$root/scripts/sweep.sh" --help # does not need a build

# One parameter more than can be clipped: in the suites' private build so many allocations are too many mappings.
cat >"$dir/use.c" <<'C'
#include <rewind/rewind.h>
#include <stdio.h>
#include <string.h>
int main(void)
{
    enum { MOST = 32764 };
    rw_context *ctx = NULL;
    double norm = -7;
    int good = !rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .threads = 1 });
    for (int k = 0; good && k <= MOST; k++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", k);
        good = rw_param(ctx, name, RW_F32, RW_SHAPE(1)) && (k != MOST - 1 || !rw_clip_grad_norm(ctx, 1, &norm));
    }
    good = good && norm == 0 && rw_clip_grad_norm(ctx, 1, &norm) == RW_ERR_ARGUMENT &&
           strstr(rw_error_message(ctx), "expected at most 32764 parameters, got 32765");
    if (!good) puts(rw_error_message(ctx));
    rw_context_destroy(&ctx);
    return !good;
}
C
export PKG_CONFIG_PATH=$build/meson-uninstalled
if ! cc $(pkg-config --cflags rewind) "$dir/use.c" -o "$dir/use" $(pkg-config --libs rewind) ||
    ! LD_LIBRARY_PATH=$build "$dir/use"; then
    echo "a program does not build with rewind-uninstalled.pc, or clips what it cannot"
    failed=1
fi

# An invalid policy in the environment is reported by every example, not only by its status.
while read -r example; do
    REWIND_POLICY=typo "$build/examples/$example" --quick >"$dir/out" 2>"$dir/err" </dev/null
    if [ $? -eq 0 ] || ! grep -q 'REWIND_POLICY' "$dir/err"; then
        echo "REWIND_POLICY=typo $example: no message names it:"
        cat "$dir/err"
        failed=1
    fi
done < <(grep -v cuda "$build/examples/examples.txt")
exit $failed
