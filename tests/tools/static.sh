#!/usr/bin/env bash
# Links an example with -static, from the archive of a build and without oneDNN, and runs it: the file is complete, and
# recompute changes none of its numbers. The archive may be that of a build with oneDNN. All its other objects are the
# same without, so onednn_absent.c takes the place of those that call it. With `full` the library is configured and
# built as a user does it: -Ddefault_library=static -Donednn=disabled.
#
#   tests/tools/static.sh BUILD [full]
#
# Exits with status 77, and says why, where a static library that it needs cannot be had. They are in
# REWIND_STATIC_LIBRARIES (lib/, include/), or built in BUILD-static/libraries.
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/setup.sh"
build=$(cd "$1" && pwd)
libraries=${REWIND_STATIC_LIBRARIES:-$build-static/libraries}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

[ -n "${REWIND_STATIC_LIBRARIES:-}" ] || rewind_static_libraries "$libraries" || exit 77
export LIBRARY_PATH=$libraries/lib C_INCLUDE_PATH=$libraries/include

# quick: from the objects of the build
quick() {
    cc -std=gnu11 -O1 -static -I"$rewind_root/include" -I"$rewind_root/runtime" "$rewind_root/examples/wrap_region.c" \
        "$rewind_root/runtime/device/cpu/onednn_absent.c" "$build/librewind.a" -lsleef -lxxhash -lcjson -lm -lpthread \
        -o "$dir/program" 2>"$dir/log" || { cat "$dir/log"; exit 1; }
}

# full: as a user does it
full() {
    mkdir "$dir/pkgconfig"
    rm -rf "$build-static/build"
    printf '%s\n' 'Name: libcjson' 'Description: cJSON' 'Version: 1' 'Libs: -lcjson' >"$dir/pkgconfig/libcjson.pc"
    PKG_CONFIG_PATH=$dir/pkgconfig:${PKG_CONFIG_PATH:-} meson setup "$build-static/build" "$rewind_root" \
        -Ddefault_library=static -Dprefer_static=true -Dc_link_args=-static -Donednn=disabled -Dcuda=disabled \
        "${rewind_own_isa[@]}" -Dtests=disabled -Dbench=disabled -Dfaults=disabled >"$dir/log" ||
        { cat "$dir/log"; exit 1; }
    ninja -C "$build-static/build" examples/wrap_region >"$dir/log" 2>&1 || { tail -40 "$dir/log"; exit 1; }
    cp "$build-static/build/examples/wrap_region" "$dir/program"
}

if [ "${2:-}" = full ]; then full
elif nm "$build/librewind.a" 2>/dev/null | grep -q rw_device_cuda; then
    echo "the build has CUDA: its archive needs CUDA's libraries"
    exit 77
else quick; fi

# A function of glibc that loads shared objects at run time is no function of a static program.
if grep 'statically linked applications' "$dir/log"; then exit 1; fi
if readelf -l "$dir/program" | grep -E 'INTERP|DYNAMIC'; then exit 1; fi
"$dir/program" none --quick | grep -v '^policy' >"$dir/none"
"$dir/program" full --quick | grep -v '^policy' >"$dir/full"
cat "$dir/full"
[ "$(wc -l <"$dir/full")" -ge 3 ]
cmp "$dir/none" "$dir/full"
