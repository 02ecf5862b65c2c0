# Sourced by the other scripts. Installs missing packages (Debian, apt), configures build/ and builds the programs that
# a script runs. Prints what it does, and does nothing twice.

rewind_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
REWIND_BUILD=${REWIND_BUILD:-$rewind_root/build}

rewind_packages=(build-essential meson ninja-build pkg-config libdnnl-dev libsleef-dev libxxhash-dev libcjson-dev
                 libcriterion-dev librandom123-dev procps)

# rewind_has PACKAGE: without dpkg, whether what a package has is there: a command, a module of pkg-config, or a header
rewind_has() {
    case $1 in
    build-essential) command -v cc >/dev/null ;;
    meson) command -v meson >/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    pkg-config) command -v pkg-config >/dev/null ;;
    procps) command -v pgrep >/dev/null ;;
    doxygen | valgrind) command -v "$1" >/dev/null ;;
    libdnnl-dev) rewind_compiles '#include <oneapi/dnnl/dnnl.h>' ;;
    libsleef-dev) rewind_compiles '#include <sleef.h>' ;;
    librandom123-dev) rewind_compiles '#include <Random123/philox.h>' ;;
    libxxhash-dev | libcjson-dev | libcriterion-dev) pkg-config --exists "$(rewind_module "$1")" 2>/dev/null ;;
    *) false ;;
    esac
}

# rewind_module PACKAGE: its module of pkg-config; nothing if it has none
rewind_module() {
    case $1 in
    libxxhash-dev) echo libxxhash ;;
    libcjson-dev) echo libcjson ;;
    libcriterion-dev) echo criterion ;;
    esac
}

rewind_compiles() {
    echo "$1" | cc -fsyntax-only -x c - 2>/dev/null
}

# rewind_names_missing PACKAGE...: where there is no dpkg, prints what is missing; fails if more is than the tests need
rewind_names_missing() {
    local p module missing=() status=0
    for p; do
        rewind_has "$p" && continue
        module=$(rewind_module "$p")
        missing+=("$p${module:+ (pkg-config: $module)}")
        case $p in libcriterion-dev | librandom123-dev | procps) ;; *) status=1 ;; esac
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    echo "Not a Debian system: nothing is installed. Missing, by Debian's names:" >&2
    printf '    %s\n' "${missing[@]}" >&2
    return $status
}

# rewind_install [PACKAGES]: these, and those that every script needs. Without dpkg only looks for them.
rewind_install() {
    local missing=() sudo= p
    if ! command -v dpkg-query >/dev/null; then
        rewind_names_missing "${rewind_packages[@]}" "$@"
        return
    fi
    for p in "${rewind_packages[@]}" "$@"; do
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

# rewind_gpu_arch: the compute capabilities for which the kernels are compiled. The library's default has one for each
# kind of device; here only the oldest, whose PTX serves the others and the simulator, and this machine's.
rewind_gpu_arch() {
    local own
    own=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | head -1 | tr -cd 0-9)
    case $own in
    '' | 80) echo 80 ;;
    *) echo "80,$own" ;;
    esac
}

# rewind_configure DIR [MESON OPTIONS]
rewind_configure() {
    local dir=$1
    shift
    [ -f "$dir/build.ninja" ] && return 0
    case " $* " in
    *" -Dgpu_arch="* | *" -Dcuda=disabled "*) ;;
    *) set -- "$@" "-Dgpu_arch=$(rewind_gpu_arch)" ;;
    esac
    echo "Configuring $dir"
    meson setup "$dir" "$rewind_root" "$@" >"$dir.log" 2>&1 || { cat "$dir.log"; return 1; }
}

# rewind_ninja DIR [TARGETS]: one at a time in a folder. On a terminal a line shows how far it is.
rewind_ninja() {
    local dir=$1 began=$SECONDS
    shift
    echo "Building $dir"
    NINJA_STATUS='[%f/%t, %es] ' flock "$dir" ninja -C "$dir" "$@" 2>&1 | tee "$dir.log" | rewind_progress
    [ "${PIPESTATUS[0]}" -eq 0 ] || { tail -40 "$dir.log"; return 1; }
    [ $((SECONDS - began)) -lt 20 ] || echo "Built $dir in $((SECONDS - began)) s"
}

# The last line of its input, each over the one before; nothing if the output is not a terminal
rewind_progress() {
    local line
    while read -r line; do
        [ ! -t 1 ] || printf '\r%.*s\033[K' $((${COLUMNS:-80} - 1)) "$line"
    done
    [ ! -t 1 ] || printf '\r\033[K'
}

# rewind_build DIR [MESON OPTIONS]: everything
rewind_build() {
    rewind_configure "$@" && rewind_ninja "$1"
}

# Option for builds with sanitizers, whose CPU kernels take long to compile: only the set of kernels that this processor
# selects.
if grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo && grep -qw bmi2 /proc/cpuinfo; then
    rewind_own_isa=(-Dcpu_isa=v3 -Dcpu_base=false)
else
    rewind_own_isa=('-Dcpu_isa=[]')
fi 2>/dev/null

# rewind_own_build: options for a build of which only programs are run, on this machine
rewind_own_build() {
    printf '%s\n' -Dtests=disabled -Dfaults=disabled -Dexamples=disabled
    if grep -qw avx512vl /proc/cpuinfo 2>/dev/null; then printf '%s\n' -Dcpu_isa=v3,v4 -Dcpu_base=false
    else printf '%s\n' "${rewind_own_isa[@]}"; fi
}

# rewind_cpu_suites DIR [SUITE...]: those of ops and of limits, which depend on the CPU's kernels, and these
rewind_cpu_suites() {
    local dir=$1 file more='alloc_failure|contracts|float_modes|models_bit_identity|plan_only|resource_limits|workers'
    shift
    for file in "$rewind_root"/tests/ops/*.c; do basename "$file" .c; done | grep -Fxf "$dir/tests/suites.txt"
    grep -Ex "$more$(printf '|%s' "$@")" "$dir/tests/suites.txt"
}

# rewind_run_suites DIR SUITE...: prints what fails, and the counts
rewind_run_suites() {
    local dir=$1 name passed=0 failed=0 skipped=0 ok bad left_out log=$1/suites.log
    shift
    for name; do
        "$dir/tests/$name" --tap >"$log" 2>"$log.err" </dev/null
        ok=$(grep -c '^ok ' "$log") bad=$(grep -c '^not ok ' "$log") left_out=$(grep -c '^ok .*# SKIP' "$log")
        [ $((ok + bad)) -gt 0 ] || bad=1
        [ "$bad" -eq 0 ] || { echo "FAILED  $name"; grep -v '^ok ' "$log"; cat "$log.err"; }
        passed=$((passed + ok - left_out)) failed=$((failed + bad)) skipped=$((skipped + left_out))
    done
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}

# rewind_setup [TARGETS]: installs what is missing, and builds these targets in build/
rewind_setup() {
    rewind_install && rewind_configure "$REWIND_BUILD" && rewind_ninja "$REWIND_BUILD" "$@"
}

# rewind_trixie KIND COMPONENT FUNCTION ARGUMENT...: calls it in an empty folder, with `options` for apt-get. These name
# the packages (deb) or sources (deb-src) of trixie, whatever Debian this is.
rewind_trixie() {
    local kind=$1 component=$2 apt options status
    shift 2
    apt=$(mktemp -d) || return
    options=(-o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
             -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root
             -o Dir::State::status=/dev/null)
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/files"
    printf '%s [signed-by=%s] http://deb.debian.org/debian trixie %s\n' "$kind" \
        /usr/share/keyrings/debian-archive-keyring.gpg "$component" >"$apt/sources.list"
    apt-get "${options[@]}" -qq update && (cd "$apt/files" && "$@")
    status=$?
    rm -rf "$apt"
    return $status
}

# rewind_fetch_debian COMPONENT FOLDER PACKAGE...: unpacks packages into the folder
rewind_fetch_debian() {
    local component=$1
    shift
    rewind_trixie deb "$component" rewind_unpack_packages "$@"
}

rewind_unpack_packages() {
    local to=$1 package
    shift
    apt-get "${options[@]}" -qq download "$@" || return
    for package in *.deb; do dpkg -x "$package" "$to" || return; done
}

# rewind_fetch_sources FOLDER PACKAGE...: unpacks their original sources, each into FOLDER/PACKAGE
rewind_fetch_sources() {
    rewind_trixie deb-src main rewind_unpack_sources "$@"
}

rewind_unpack_sources() {
    local to=$1 package
    shift
    apt-get "${options[@]}" -qq --download-only source "$@" || return
    for package; do
        mkdir -p "$to/$package" && tar xf "$package"_*.orig.tar.* -C "$to/$package" --strip-components=1 || return
    done
}

# rewind_static_libraries FOLDER: libsleef.a and libcjson.a in FOLDER/lib, with their headers, from Debian's sources:
# its packages have shared libraries alone. FOLDER/include is absent if the system has both. Needs CMake.
rewind_static_libraries() {
    local to=$1 sources=$1/sources
    [ ! -f "$to/complete" ] || return 0
    mkdir -p "$to/lib"
    if ! echo 'int main(void) { return 0; }' | cc -static -x c - -o "$to/probe" -lsleef -lcjson 2>/dev/null; then
        command -v cmake >/dev/null || { echo "no static SLEEF and cJSON, and no CMake to build them"; return 1; }
        echo "Building static SLEEF and cJSON in $to"
        rewind_fetch_sources "$sources" sleef cjson ||
            { echo "no static SLEEF and cJSON, and Debian's sources cannot be had"; return 1; }
        cmake -S "$sources/sleef" -B "$sources/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$to" \
            -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF -DSLEEF_BUILD_SHARED_LIBS=OFF -DBUILD_TESTS=OFF \
            -DSLEEF_BUILD_TESTS=OFF -DBUILD_DFT=OFF -DBUILD_QUAD=OFF -DBUILD_GNUABI_LIBS=OFF \
            -DSLEEF_BUILD_GNUABI_LIBS=OFF >"$to/log" 2>&1 &&
            cmake --build "$sources/build" --parallel "$(nproc)" >>"$to/log" 2>&1 &&
            cmake --install "$sources/build" >>"$to/log" 2>&1 &&
            cc -O2 -c "$sources/cjson/cJSON.c" -o "$sources/cJSON.o" &&
            ar rcs "$to/lib/libcjson.a" "$sources/cJSON.o" &&
            mkdir -p "$to/include/cjson" && cp "$sources/cjson/cJSON.h" "$to/include/cjson" ||
            { tail -20 "$to/log"; return 1; }
    fi
    touch "$to/complete"
}

# rewind_wheels install|download OPTION FOLDER NAME...: wheels of scripts/wheels.txt, which has their hashes
rewind_wheels() {
    local command=$1 option=$2 folder=$3 list
    shift 3
    list=$(mktemp) || return
    local name
    for name; do grep "^nvidia-\(cuda-\)\?$name" "$rewind_root/scripts/wheels.txt"; done >"$list"
    python3 -m pip "$command" -q --no-deps --require-hashes --timeout 20 --retries 1 "$option" "$folder" -r "$list"
    local status=$?
    rm "$list"
    return $status
}

# The disassembler of CUDA, which toolkits may lack, from PyPI into the build folder; CUOBJDUMP is its path. Only needed
# if there are kernels to read; callers work without it if there is no Python or no network.
rewind_disassembler() {
    local tools=$REWIND_BUILD/disassembler
    [ -n "$(find "$REWIND_BUILD" -name '*.cu.o' -print -quit)" ] || return 0
    [ -n "${CUOBJDUMP:-}" ] || { command -v cuobjdump && command -v nvdisasm; } >/dev/null && return 0
    if ! [ -d "$tools" ]; then
        echo "Fetching cuobjdump and nvdisasm into $tools"
        rewind_wheels install --target "$tools.part" cuobjdump nvdisasm >"$tools.log" 2>&1 &&
            mv "$tools.part" "$tools" || { tail -2 "$tools.log"; return 0; }
    fi
    CUOBJDUMP=$(find "$tools" -type f -name cuobjdump)
    export CUOBJDUMP
}
