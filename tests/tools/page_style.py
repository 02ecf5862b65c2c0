"""What a page needs to be readable on a phone and in the dark, from its HTML and CSS alone. A module: see check()."""
import re

WIDTH = 360 # of a narrow phone, in pixels
CONTRAST = 4.5 # of text, WCAG 2.2, 1.4.3
BACKGROUNDS = 'back', 'bg'
DECORATION = 'grid', 'line' # lines of the grid and of tables: no information


def luminance(colour):
    digits = colour[1:] if len(colour) == 7 else ''.join(2 * c for c in colour[1:])
    channels = [int(digits[i:i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055)**2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def palettes(page):
    """The colours for light and for dark, by name."""
    blocks = re.findall(r':root{([^}]*)}', page)
    found = [dict(re.findall(r'--([a-z]+):(#[0-9a-fA-F]{3,6})\b', block)) for block in blocks]
    assert len(found) == 2 and found[0].keys() == found[1].keys(), found
    return found


def check_colours(page, what):
    for colours in palettes(page):
        back, = (colours[name] for name in BACKGROUNDS if name in colours)
        for name, colour in colours.items():
            if name not in BACKGROUNDS and name not in DECORATION:
                assert contrast(colour, back) >= CONTRAST, (what, name, colour, back, contrast(colour, back))
    rest = re.sub(r':root{[^}]*}', '', page)
    colour = r"""(?:fill|stroke|color|background)\s*[:=]\s*["']?((?!none|var\(|light dark)[#a-z][^;"'}]*)"""
    other = re.findall(colour, rest)
    assert not other, (what, 'a colour that the dark page does not replace', other)


def check_widths(page, what):
    assert re.search(r"""<meta name=["']viewport["'] content=["']width=device-width""", page), what
    for size, unit in re.findall(r'(?<![-a-z])(?:min-)?width:\s*([0-9.]+)(px|rem|em)', page):
        assert float(size) * (1 if unit == 'px' else 16) <= WIDTH, (what, size + unit)
    columns = re.findall(r'minmax\(([0-9.]+)px', page)
    assert not columns, (what, 'columns that do not shrink', columns)
    for table in re.finditer(r'<table[^>]*>', page):
        if page[table.end():].split('</tr>')[0].count('<th') > 3: # a wide one scrolls alone
            assert re.search(r"""class=["']wide["']>$""", page[:table.start()]), (what, table[0])


def check(page, what):
    """Raises AssertionError if a colour has too little contrast in the light or in the dark, or if a part of the page
    is wider than a phone."""
    check_colours(page, what)
    check_widths(page, what)
