"""Writes the linker's version script of the library: the functions that headers declare, and nothing else.

    exports.py VERSION HEADER...
"""
import re
import sys

version, headers = sys.argv[1], sys.argv[2:]
declared = set()
for header in headers:
    with open(header, encoding='utf-8') as f:
        declared |= set(re.findall(r'^RW_API\b[^;(]*?\b(\w+)\(', f.read(), re.M))
print(version, '{', 'global:', *(f'  {name};' for name in sorted(declared)), 'local: *;', '};', sep='\n')
