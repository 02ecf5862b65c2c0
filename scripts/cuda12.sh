#!/usr/bin/env bash
# Compiles the CUDA kernels with CUDA 12, the oldest supported toolkit: version 12.4, Debian's nvcc (from packages of
# trixie, unpacked, not installed) with the headers of the wheels, all under build-cuda12/. With --host also the code
# that calls cuBLASLt and cuDNN, with their headers of that time: wheels of 1 GB. Exits with status 77 if these cannot
# be downloaded.
#
#   scripts/cuda12.sh [--host]
set -u
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

cuda12=$REWIND_BUILD-cuda12
wheels=(runtime-cu12 nvcc-cu12)
host_wheels=(cublas-cu12 cudnn-cu12)
host=
case ${1:-} in
--host) host=1 ;;
'') ;;
*) echo "usage: scripts/cuda12.sh [--host]" >&2; exit 2 ;;
esac

# fetch_headers WHEEL...: into the toolkit
fetch_headers() {
    rewind_wheels download --dest "$cuda12/wheels" "$@" || return
    python3 - "$cuda12" <<'EOF'
import pathlib, sys, zipfile
to = pathlib.Path(sys.argv[1])
for wheel in (to / 'wheels').glob('*.whl'):
    for name in zipfile.ZipFile(wheel).namelist():
        parts = pathlib.PurePath(name).parts
        for kind in ('include', 'libdevice'):
            if kind in parts[:-1] and not name.endswith('/'):
                file = to / 'toolkit' / pathlib.Path(*parts[parts.index(kind):])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(zipfile.ZipFile(wheel).read(name))
    wheel.unlink()
EOF
}

# Debian spreads the toolkit over /usr: here its parts are put in one folder, and nvcc is told where they are.
make_toolkit() {
    local bin=$cuda12/toolkit/bin
    mkdir -p "$bin"
    rewind_fetch_debian non-free "$cuda12/debian" nvidia-cuda-toolkit && fetch_headers "${wheels[@]}" || return
    mv "$cuda12"/debian/usr/lib/nvidia-cuda-toolkit/bin/{nvcc,cicc,crt} \
        "$cuda12"/debian/usr/bin/{ptxas,fatbinary,cudafe++,nvlink} "$bin" || return
    printf '%s\n' 'TOP = $(_HERE_)/..' 'NVVMIR_LIBRARY_DIR = $(TOP)/libdevice' 'PATH += $(_HERE_):' \
        'INCLUDES += "-I$(TOP)/include" $(_SPACE_)' >"$bin/nvcc.profile"
    rm -rf "$cuda12/debian"
    touch "$cuda12/made"
}

# compile_kernels: compiles each for the oldest device, without optimization, and without the host's compiler, because
# nvcc has checked the host's functions by then. Files for tensor cores have handwritten instructions: those are
# assembled, too. Prints a line for each file that does not compile.
compile_kernels() {
    local at
    at=$(mktemp -d)
    (cd "$rewind_root" && find ops runtime -name '*.cu' | xargs -P "$(nproc)" -I{} sh -c '
        ptx=$1/$(basename "{}").ptx
        out=$("$0/nvcc" -ptx "{}" -o "$ptx" -std=c++17 --fmad=false --expt-relaxed-constexpr -DNDEBUG -Iinclude \
            -Iruntime -I. -Xcicc -O0 -Wno-deprecated-gpu-targets -arch=sm_80 2>&1) &&
            { ! grep -q "mma.sync" "$ptx" || out=$("$0/ptxas" -O0 -arch=sm_80 "$ptx" -o /dev/null 2>&1); } ||
            { echo "FAILED  {}"; echo "$out" | head -20; }' "$cuda12/toolkit/bin" "$at")
    rm -r "$at"
}

compile_host() {
    local file
    [ -f "$cuda12/toolkit/include/cublasLt.h" ] || fetch_headers "${host_wheels[@]}" || exit 77
    (cd "$rewind_root" && for file in runtime/device/cuda/*.c runtime/device/cuda/cudnn/*.c; do
        cc -std=gnu11 -fsyntax-only -Wall -Werror -DRW_HAVE_CUDA -DRW_CUBLASLT_MAJOR=12 -DRW_CUDNN_MAJOR=9 \
            '-DRW_CUDA_LIBRARY_DIRS=":"' -Iinclude -Iruntime -I. -isystem "$cuda12/toolkit/include" "$file" ||
            echo "FAILED  $file"
    done)
}

if ! [ -f "$cuda12/made" ]; then
    echo "Fetching nvcc 12.4 into $cuda12"
    make_toolkit || { echo "nvcc 12.4 and its headers cannot be had"; exit 77; }
fi
failed=$(compile_kernels; [ -z "$host" ] || compile_host)
echo "${failed:-every kernel${host:+, and what calls the libraries,} compiles with CUDA 12.4}"
[ -z "$failed" ]
