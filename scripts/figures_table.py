#!/usr/bin/env python3
"""Writes the lines of scripts/figures.sh that have a bound, and the rates of products, to the table of docs/figures.md.

    figures_table.py bench/results/MACHINE/figures.txt
"""
import pathlib
import re
import sys

HEAD = "| what | measured | bound | |\n|---|---|---|---|\n"
page = pathlib.Path(__file__).parents[1] / "docs/figures.md"
lines = pathlib.Path(sys.argv[1]).read_text().splitlines()
rows = [line.rsplit(", ", 3) for line in lines if line.endswith((", met", ", missed"))]


def number(text):
    return float(re.search(r"[-+.\de]*\d", text)[0])


# Signal-to-noise ratios of many layers: the row that is nearest to its bound, one for outputs and one for gradients.
decibels = [row for row in rows if row[1].endswith(" dB")]
nearest = [min((row for row in decibels if row[0].startswith(what)), key=lambda row: number(row[1]) - number(row[2]))
           for what in ("output", "gradients") if decibels]
rows = [row for row in rows if row not in decibels or row in nearest]
rows += [line.rsplit(", ", 2) + [""] for line in lines if line.startswith("rate of products")]
text = page.read_text()
if not rows or HEAD not in text:
    sys.exit("no figures, or docs/figures.md has no table for them")
table = "".join("| " + " | ".join(row) + (" |\n" if row[-1] else "|\n") for row in rows)
page.write_text(re.sub(re.escape(HEAD) + r"(\|.*\n)+", lambda _: HEAD + table, text))
