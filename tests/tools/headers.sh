#!/usr/bin/env bash
# Compiles each public header alone, as C11 and as C++17, with warnings as errors.
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
for h in "$root"/include/rewind/*.h; do
    name=rewind/$(basename "$h")
    echo "#include <$name>" | cc -std=c11 -Wall -Wextra -Wpedantic -Werror -I "$root/include" -fsyntax-only -x c -
    echo "#include <$name>" | c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -I "$root/include" -fsyntax-only -x c++ -
    echo "$name"
done
