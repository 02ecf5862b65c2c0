#!/usr/bin/env python3
"""Writes the list of the tables that test sources define, one row each, sorted. The includer sets the macros.

    list_tables.py OUTPUT SOURCE...

    OP_CASES(op_cases_NAME)              void op_cases_NAME(void): adds cases (tests/support/cases/cases.h)
    DEFINITIONS(def_NAME)                const struct definition def_NAME[] (tests/support/definition_runner.h)
    MISTAKES(mistakes_with_NAME)         void mistakes_with_NAME(...): invalid calls (tests/api/mistakes/table.h)
    GOLDEN_ROWS(golden_NAME)             const struct golden_set golden_NAME (tests/golden/op_table.h)
"""
import re
import sys

TABLES = {
    'OP_CASES': re.compile(r'^void (op_cases_\w+)\(void\)$', re.M),
    'DEFINITIONS': re.compile(r'^const struct definition (def_\w+)\[\] = ', re.M),
    'MISTAKES': re.compile(r'^void (mistakes_with_\w+)\(struct trial \*m, struct world \*w\)$', re.M),
    'GOLDEN_ROWS': re.compile(r'^const struct golden_set (golden_\w+) = ', re.M),
}


def main():
    texts = []
    for path in sys.argv[2:]:
        with open(path, encoding='utf-8') as f:
            texts.append(f.read())
    with open(sys.argv[1], 'w', encoding='utf-8') as f:
        print('/* Written by tests/tools/list_tables.py. No include guard: the includer sets a macro. */', file=f)
        for macro, pattern in TABLES.items():
            rows = sorted(name for text in texts for name in pattern.findall(text))
            print(f'#ifdef {macro}', *(f'{macro}({name})' for name in rows), f'#undef {macro}', '#endif', sep='\n',
                  file=f)


if __name__ == '__main__':
    main()
