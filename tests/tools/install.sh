#!/usr/bin/env bash
# Installs into a temporary prefix, then builds and runs programs outside the tree: one in C and C++, shared and static,
# and README's example as both.
set -eu
build=$(cd "$1" && pwd)
readme=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/README.md
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
DESTDIR="$dir/stage" meson install -C "$build" --no-rebuild >/dev/null
installed=$(find "$dir/stage" -name rewind.pc | head -1)
libdir=$(dirname "$(dirname "$installed")")
# Use the staging folder as the root for Rewind only: the libraries that it needs are at their usual places.
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
# A process on the CPU device loads none of CUDA's libraries.
sed 's/rw_context_create(&ctx, NULL)/rw_context_create(\&ctx, \&(rw_context_params){ .device = RW_DEVICE_CPU })/' \
    "$dir/use.c" >"$dir/on_cpu.c"
grep -q RW_DEVICE_CPU "$dir/on_cpu.c"
cc $flags "$dir/on_cpu.c" -o "$dir/on_cpu" $(pkg-config --libs rewind)
LD_DEBUG=files LD_DEBUG_OUTPUT=$dir/loaded run "$dir/on_cpu"
grep -q 'librewind[.]so' "$dir"/loaded.*
if grep -E 'file=[^ ]*lib(cuda|cudart|cublas|cudnn|nvrtc|nvidia)' "$dir"/loaded.*; then exit 1; fi
"$dir/c_static"

# As a package of CMake, of a version that suits and of one that does not
if command -v cmake >/dev/null; then
    for version in 0.1 0.1.0 ""; do
        mkdir -p "$dir/cmake"
        printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' 'project(use C)' "find_package(rewind $version REQUIRED)" \
            "add_executable(use $dir/use.c)" 'target_link_libraries(use rewind::rewind)' >"$dir/cmake/CMakeLists.txt"
        cmake -S "$dir/cmake" -B "$dir/cmake/build$version" -Drewind_DIR="$libdir/cmake/rewind" >"$dir/log" &&
            cmake --build "$dir/cmake/build$version" >>"$dir/log" || { cat "$dir/log"; exit 1; }
        "$dir/cmake/build$version/use"
    done
    for version in 0.2 1 0.0.9; do
        printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' 'project(use C)' "find_package(rewind $version REQUIRED)" \
            >"$dir/cmake/CMakeLists.txt"
        if cmake -S "$dir/cmake" -B "$dir/cmake/build-$version" -Drewind_DIR="$libdir/cmake/rewind" >"$dir/log" 2>&1
        then
            echo "find_package(rewind $version): expected a refusal, got the library"
            exit 1
        fi
        grep -q 'considered but not accepted' "$dir/log"
    done
    echo "find_package(rewind)"
else
    echo "no CMake: find_package(rewind) was not tested"
fi

# As a subproject: its programs are not built.
mkdir -p "$dir/whole/subprojects"
ln -s "$(dirname "$readme")" "$dir/whole/subprojects/rewind"
cp "$dir/use.c" "$dir/whole"
cat >"$dir/whole/meson.build" <<'MESON'
project('whole', 'c')
executable('use', 'use.c', dependencies: dependency('rewind', fallback: 'rewind'))
MESON
PKG_CONFIG_PATH= meson setup "$dir/whole/build" "$dir/whole" -Drewind:cuda=disabled >"$dir/log" ||
    { cat "$dir/log"; exit 1; }
steps=$(ninja -C "$dir/whole/build" -t commands use | grep -c .)
all=$(ninja -C "$dir/whole/build" -t commands | grep -c .)
echo "a subproject has $all steps without CUDA, $steps of them for a program that uses it"
[ "$all" -le 460 ]

# The example is the body of main(): its includes are moved to the front.
awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$readme" >"$dir/example"
grep -q rw_backward "$dir/example"
{
    grep '^#include' "$dir/example"
    echo '#include <stdio.h>'
    echo 'int main(void) { static float data[64 * 256];'
    grep -v '^#include' "$dir/example"
    echo 'rw_tape_destroy(&t); rw_context_destroy(&ctx); return 0; }'
} >"$dir/readme.c"
cp "$dir/readme.c" "$dir/readme.cpp"
strict="-Wall -Wextra -Wpedantic -Werror"
cc -std=c11 $strict $flags "$dir/readme.c" -o "$dir/readme_c" $(pkg-config --libs rewind)
c++ -std=c++17 $strict $flags "$dir/readme.cpp" -o "$dir/readme_cpp" $(pkg-config --libs rewind)
! command -v clang++ >/dev/null || clang++ -std=c++17 $strict $flags -fsyntax-only "$dir/readme.cpp"
for program in readme_c readme_cpp; do
    run "$dir/$program"
    run "$dir/$program" | grep -qx 'bit-identical with recompute and without'
done
