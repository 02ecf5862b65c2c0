# Sourced by the other scripts. They install what is missing (Debian, apt), configure build/ and build what they run.
# They say what they do, and do nothing twice.

rewind_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
REWIND_BUILD=${REWIND_BUILD:-$rewind_root/build}

rewind_packages=(build-essential meson ninja-build pkg-config libdnnl-dev libsleef-dev libxxhash-dev libcjson-dev
                 libcriterion-dev librandom123-dev procps)

rewind_install() {
    local missing=() sudo= p
    if ! command -v dpkg-query >/dev/null; then
        echo "Not a Debian system: nothing is installed. Needed are what Debian calls ${rewind_packages[*]}"
        return 0
    fi
    for p in "${rewind_packages[@]}"; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    if [ "$(id -u)" -ne 0 ]; then
        sudo=sudo
        command -v sudo >/dev/null ||
            { echo "Missing, and no sudo here: apt-get install ${missing[*]}" >&2; return 1; }
    fi
    echo "Installing with apt: ${missing[*]}"
    $sudo apt-get update -qq &&
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
}

# rewind_configure DIR [MESON OPTIONS]
rewind_configure() {
    local dir=$1
    shift
    [ -f "$dir/build.ninja" ] && return 0
    echo "Configuring $dir"
    meson setup "$dir" "$rewind_root" "$@" >"$dir.log" 2>&1 || { cat "$dir.log"; return 1; }
}

# rewind_ninja DIR [TARGETS]
rewind_ninja() {
    local dir=$1 began=$SECONDS
    shift
    echo "Building $dir"
    ninja -C "$dir" "$@" >"$dir.log" 2>&1 || { tail -40 "$dir.log"; return 1; }
    [ $((SECONDS - began)) -lt 20 ] || echo "Built $dir in $((SECONDS - began)) s"
}

# rewind_build DIR [MESON OPTIONS]: everything
rewind_build() {
    rewind_configure "$@" && rewind_ninja "$1"
}

# What a build with sanitizers, whose CPU kernels take long to compile, is told: to have those that this processor
# chooses, and no others.
if grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo && grep -qw bmi2 /proc/cpuinfo; then
    rewind_own_isa=(-Dcpu_isa=v3 -Dcpu_base=false)
else
    rewind_own_isa=('-Dcpu_isa=[]')
fi 2>/dev/null

# rewind_setup [TARGETS]: what is missing, and these targets in build/
rewind_setup() {
    rewind_install && rewind_configure "$REWIND_BUILD" && rewind_ninja "$REWIND_BUILD" "$@"
}

# The disassembler of CUDA, which toolkits may come without, from PyPI into the build folder: CUOBJDUMP names it. Where
# there are kernels to read; who needs it does without where there is no Python or no network.
rewind_disassembler() {
    local tools=$REWIND_BUILD/disassembler version=13.2.78
    [ -n "$(find "$REWIND_BUILD" -name '*.cu.o' -print -quit)" ] || return 0
    [ -n "${CUOBJDUMP:-}" ] || { command -v cuobjdump && command -v nvdisasm; } >/dev/null && return 0
    if ! [ -d "$tools" ]; then
        echo "Fetching cuobjdump and nvdisasm into $tools"
        python3 -m pip install -q --no-deps --timeout 20 --retries 1 --target "$tools.part" \
            "nvidia-cuda-cuobjdump==$version" "nvidia-cuda-nvdisasm==$version" >"$tools.log" 2>&1 &&
            mv "$tools.part" "$tools" || { tail -2 "$tools.log"; return 0; }
    fi
    CUOBJDUMP=$(find "$tools" -type f -name cuobjdump)
    export CUOBJDUMP
}
