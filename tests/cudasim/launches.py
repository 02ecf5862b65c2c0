#!/usr/bin/env python3
"""Converts an external .cu file to C++ for the simulator.

    launches.py SOURCE TARGET EXPORT [OLD=NEW]

Launches become calls, main() gets another name, and example_op() returns the op that the file calls EXPORT. OLD, which
occurs once outside comments, becomes NEW: a planted mistake for a test.
"""
import re
import sys

source, target, export = sys.argv[1:4]
text = open(source).read()
for change in sys.argv[4:]:
    old, new = change.split('=')
    assert text.count(old) == 1, f'{source} has {text.count(old)} times {old}'
    text = text.replace(old, new)
text, launches = re.subn(r'(\w+)<<<(.*?)>>>\(', r'cudasim::configure("\1", \1, \2)(', text, flags=re.S)
text, mains = re.subn(r'\bint main\(', 'int main_of_the_example(', text)
assert launches and mains == 1, f'{source}: {launches} launches, {mains} main()'
with open(target, 'w') as f:
    f.write(f'#include "static_cudart.h"\n#line 1 "{source}"\n{text}\n')
    f.write('extern "C" const rw_op_def *example_op(void);\n')
    f.write(f'const rw_op_def *example_op(void) {{ return &{export}; }}\n')
