#!/usr/bin/env bash
# A source tarball (meson dist) has the files that Git has. Every file that the build reads must be one of them, and no
# command of the build may call Git. With `full` makes a tarball of the last commit; builds it, runs the suites that
# read files of the sources, and checks the pages: where `git` fails, and nothing of this checkout is in reach.
#
#   tests/tools/dist.sh BUILD [full]
#
# Exits with status 77, and says why, where the sources are not a Git checkout.
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/setup.sh"
build=$(cd "$1" && pwd)
suites=(cache_key_fields docs_ops_table every_public_function golden print)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

git -C "$rewind_root" ls-files --error-unmatch meson.build >/dev/null 2>&1 || { echo "not a Git checkout"; exit 77; }

# read_by_the_build: sources, headers and descriptions, relative to the checkout
read_by_the_build() {
    {
        ninja -C "$build" -t inputs all
        ninja -C "$build" -t deps | sed -n 's/^    //p'
        meson introspect --buildsystem-files "$build" | grep -o '"[^"]*"' | tr -d '"'
    } | (cd "$build" && xargs realpath -qs --relative-base="$rewind_root") | grep -v '^/' |
        grep -v "^$(realpath --relative-to="$rewind_root" "$build")/" | sort -u
}

read_by_the_build >"$dir/read"
echo "the build reads $(wc -l <"$dir/read") files"
[ "$(wc -l <"$dir/read")" -gt 500 ]
git -C "$rewind_root" ls-files | sort >"$dir/known"
LC_ALL=C comm -23 <(LC_ALL=C sort "$dir/read") <(LC_ALL=C sort "$dir/known") >"$dir/missing"
if [ -s "$dir/missing" ]; then
    echo "not in Git, and so not in a tarball:"
    cat "$dir/missing"
    exit 1
fi
if ninja -C "$build" -t commands all | grep -E '(^|[ ;&|(/])git '; then exit 1; fi
[ "${2:-}" = full ] || exit 0

meson dist -C "$build" --no-tests --allow-dirty --formats gztar >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
tarball=$(ls "$build"/meson-dist/*.tar.gz)
tar xf "$tarball" -C "$dir"
rm "$tarball" "$tarball.sha256sum"
source=$(echo "$dir"/rewind-*)
mkdir "$dir/bin"
printf '#!/bin/sh\necho "git $*" >>"%s"\nexit 1\n' "$dir/git" >"$dir/bin/git"
chmod +x "$dir/bin/git"
export PATH=$dir/bin:$PATH
meson setup "$dir/build" "$source" "${rewind_own_isa[@]}" -Dcuda=disabled -Dptx=disabled -Dcudasim=disabled \
    -Dbench=disabled -Dexamples=enabled >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
ninja -C "$dir/build" "${suites[@]/#/tests/}" examples/wrap_region examples/train_text >"$dir/log" 2>&1 ||
    { tail -40 "$dir/log"; exit 1; }
meson test -C "$dir/build" --no-rebuild "${suites[@]}" || exit 1
"$dir/build/examples/train_text" --quick >"$dir/log" || { cat "$dir/log"; exit 1; }
for tool in words.py doc_names.py readme_and_glossary.py public_entry_macros.py headers.sh; do
    "$source/tests/tools/$tool" >"$dir/log" 2>&1 || { echo "$tool:"; cat "$dir/log"; exit 1; }
done
if [ -s "$dir/git" ]; then
    echo "Git was called:"
    cat "$dir/git"
    exit 1
fi
