# Sourced by the other scripts. rewind_setup installs what is missing (Debian, apt), configures build/ and builds.
# It says what it does, and does nothing twice.

rewind_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
REWIND_BUILD=${REWIND_BUILD:-$rewind_root/build}

rewind_packages=(build-essential meson ninja-build pkg-config libdnnl-dev libsleef-dev libxxhash-dev libcjson-dev
                 libcriterion-dev librandom123-dev)

rewind_install() {
    local missing=()
    local p
    for p in "${rewind_packages[@]}"; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    local sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    echo "Installing with apt: ${missing[*]}"
    $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
}

# rewind_build DIR [MESON OPTIONS]
rewind_build() {
    local dir=$1
    shift
    if [ ! -f "$dir/build.ninja" ]; then
        echo "Configuring $dir"
        meson setup "$dir" "$rewind_root" "$@" >"$dir.log" 2>&1 || { cat "$dir.log"; return 1; }
    fi
    echo "Building $dir"
    ninja -C "$dir" >"$dir.log" 2>&1 || { tail -40 "$dir.log"; return 1; }
}

rewind_setup() {
    rewind_install && rewind_build "$REWIND_BUILD"
}
