#!/usr/bin/env python3
"""Puts the lines of scripts/figures.sh that have a bound, and the rates of products, into the table of README.md.

    figures_table.py bench/results/MACHINE/figures.txt
"""
import pathlib
import re
import sys

HEAD = "| what | measured | bound | |\n|---|---|---|---|\n"
readme = pathlib.Path(__file__).parents[1] / "README.md"
lines = pathlib.Path(sys.argv[1]).read_text().splitlines()
rows = [line.rsplit(", ", 3) for line in lines if line.endswith((", met", ", missed"))]
rows += [line.rsplit(", ", 2) + [""] for line in lines if line.startswith("rate of products")]
text = readme.read_text()
if not rows or HEAD not in text:
    sys.exit("no figures, or README.md has no table for them")
table = "".join("| " + " | ".join(row) + (" |\n" if row[-1] else "|\n") for row in rows)
readme.write_text(re.sub(re.escape(HEAD) + r"(\|.*\n)+", lambda _: HEAD + table, text))
