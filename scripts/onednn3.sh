#!/usr/bin/env bash
# Builds the library with oneDNN 3 and runs the CPU's suites of ops and of limits. Version 3.7 is Debian 13's, with the
# C library and the others that it needs, from packages that are unpacked, not installed: all under build-onednn3/. The
# last line is "N passed, N failed, N skipped". Exits with status 77 if the packages cannot be had.
#
#   scripts/onednn3.sh [SUITE...]     only these
set -u
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

dir=$REWIND_BUILD-onednn3
root=$dir/debian

# fetch: unpacks the packages
fetch() {
    [ -f "$root/complete" ] && return
    echo "Fetching oneDNN 3.7 into $root"
    mkdir -p "$root"
    rewind_fetch_debian main "$root" libdnnl-dev libdnnl3.6 libc6 libgcc-s1 libstdc++6 libgomp1 &&
        touch "$root/complete"
}

# configure: the programs are started by the C library of the packages, and find all of theirs first
configure() {
    local libraries loader link
    libraries=$(dirname "$(find "$root/usr/lib" -name libdnnl.so)") &&
        loader=$(find "$libraries" -name 'ld-linux*' | head -1) && [ -n "$loader" ] || return
    link="-L$libraries -Wl,--dynamic-linker=$loader -Wl,--disable-new-dtags -Wl,-rpath,$libraries"
    link+=" -Wl,--allow-shlib-undefined"
    rewind_configure "$dir/build" "-Dc_args=-I$root/usr/include" "-Dcpp_args=-I$root/usr/include" \
        "-Dc_link_args=$link" "-Dcpp_link_args=$link" "${rewind_own_isa[@]}" -Dcuda=disabled -Dptx=disabled \
        -Dcudasim=disabled -Dbench=disabled -Dexamples=disabled || return
    grep -q '^ *oneDNN *: 3\.' "$dir/build/meson-logs/meson-log.txt"
}

mkdir -p "$dir"
fetch || { echo "the packages of oneDNN 3.7 cannot be had"; exit 77; }
configure || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
if [ $# -eq 0 ]; then
    readarray -t all < <(rewind_cpu_suites "$dir/build" onednn_primitives)
    set -- "${all[@]}"
fi
rewind_ninja "$dir/build" "${@/#/tests/}" || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
rewind_run_suites "$dir/build" "$@"
