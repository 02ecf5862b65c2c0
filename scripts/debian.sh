#!/usr/bin/env bash
# Builds the Debian packages in a copy of the tracked files, and compiles and runs a program with what they contain.
#
#   scripts/debian.sh [FOLDER]     the packages are stored there, else discarded
#
# Exits with status 77, and says why, where the tools are missing and cannot be installed.
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

rewind_install dpkg-dev debhelper >/dev/null 2>&1 || true
command -v dpkg-buildpackage >/dev/null && command -v dh >/dev/null ||
    { echo "no dpkg-buildpackage or debhelper"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
version=$(sed -n "s/^  version: '\(.*\)',/\1/p" "$rewind_root/meson.build")
[ "$(dpkg-parsechangelog -l "$rewind_root/debian/changelog" -S Version)" = "$version-1" ] ||
    { echo "debian/changelog is not of version $version"; exit 1; }
mkdir "$dir/rewind-$version"
(cd "$rewind_root" && git ls-files -z | xargs -0 cp --parents -t "$dir/rewind-$version")
(cd "$dir/rewind-$version" && dpkg-buildpackage -b -us -uc) >"$dir/log" 2>&1 || { tail -40 "$dir/log"; exit 1; }
if [ $# -gt 0 ]; then cp "$dir"/*.deb "$1"; fi

for package in "$dir"/librewind*.deb; do dpkg-deb -x "$package" "$dir/root"; done
libdir=$(dirname "$(find "$dir/root" -name librewind.so)")
cat >"$dir/use.c" <<'C'
#include <rewind/rewind.h>
#include <stdio.h>

int main(void)
{
    printf("%s\n", rw_version());
    return 0;
}
C
cc "$dir/use.c" -I"$dir/root/usr/include" -L"$libdir" -lrewind -o "$dir/use"
[ "$(LD_LIBRARY_PATH=$libdir "$dir/use")" = "$version" ]
for package in "$dir"/librewind*.deb; do
    dpkg-deb -f "$package" Package Depends
done
