#!/usr/bin/env bash
# Installs into a temporary prefix, then builds and runs a program outside the tree: C and C++, shared and static.
set -eu
build=$(cd "$1" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
DESTDIR="$dir/stage" meson install -C "$build" --no-rebuild >/dev/null
installed=$(find "$dir/stage" -name rewind.pc | head -1)
libdir=$(dirname "$(dirname "$installed")")
# As if the stage were the root, for Rewind alone: the libraries that it needs are where they are.
mkdir "$dir/pkgconfig"
sed "s|^prefix=|prefix=$dir/stage|" "$installed" >"$dir/pkgconfig/rewind.pc"
export PKG_CONFIG_PATH=$dir/pkgconfig

cat >"$dir/use.c" <<'C'
#include <rewind/rewind.h>
#include <stdio.h>

int main(void)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    if (rw_context_create(&ctx, NULL) || rw_tape_create(&t, ctx)) return 1;
    const float x[] = { 1, 2, 3 };
    rw_tensor *w = rw_param(ctx, "w", RW_F32, RW_SHAPE(3));
    rw_write(w, x, sizeof x);
    ckpt_begin(t, "square");
    rw_tensor *y = rw_sum(t, rw_mul(t, w, w), RW_ALL_AXES, false);
    ckpt_end(t);
    float g[3] = { 0 };
    if (rw_backward(t, y) || rw_read(t, rw_gradient(w), g, sizeof g)) return 1;
    printf("%g %g\n", rw_item(t, y), (double)g[2]);
    const int ok = rw_item(t, y) == 14 && g[2] == 6;
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return ok ? 0 : 1;
}
C
sed 's/NULL/nullptr/g' "$dir/use.c" >"$dir/use.cpp"
run() { LD_LIBRARY_PATH=$libdir "$1"; }
flags=$(pkg-config --cflags rewind)
cc $flags "$dir/use.c" -o "$dir/c_shared" $(pkg-config --libs rewind)
c++ -std=c++17 $flags "$dir/use.cpp" -o "$dir/cpp_shared" $(pkg-config --libs rewind)
static=$(pkg-config --static --libs rewind | sed 's/-lrewind//')
cc $flags "$dir/use.c" -o "$dir/c_static" "$libdir/librewind.a" $static
run "$dir/c_shared"
run "$dir/cpp_shared"
"$dir/c_static"
