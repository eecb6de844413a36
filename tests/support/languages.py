"""Some 200 lines of many scripts, and of what tokenizers stumble over."""

import unicodedata
from pathlib import Path

_LINES = (
    Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    + """\
C:\\Users\\x\\file.txt ~/.bashrc
a\u00adb soft\u00ad hyphen
zero\u200bwidth\u200djoin \ufeffmark
a\u00a0b no\u202fbreak \u3000wide
\ufffd replaced \ufffd\ufffd
x\u0300\u0301\u0302 stacked
i\u0307 İ ı I
\u1e9b\u0323 long s
\U0001d54f \U0001d4d0 math
\U00020000\U0002a6d6 rare
\U000f0000 private \ue000
Instruct: Given a web search query\\nQuery:what is love
"""
)
_ODD = ["", " ", "  ", "\t", "\n", "\r\n", "a", ".", "é", "中", "👍", "\x00", "a\x00b", "\x7f\x85"]
_ODD += [
    "  leading",
    "trailing  ",
    "double  spaces   three",
    "\ttab\tbed\t",
    "line\nbreak\n\nparagraph\n",
    "\r\nwindows\r\n",
]
_ODD += [
    "    indented code:\n        more\n",
    "a \n b",
    " \n ",
    "\u2028line\u2029paragraph",
    "x" * 300,
    "ab " * 60,
    "1" * 40,
]


def lines():
    """The lines; also decomposed, behind spaces, and in capital letters."""
    written = _LINES.splitlines()
    decomposed = [unicodedata.normalize("NFD", line) for line in written]
    changed = [f"  {line}" for line in written[::2]] + [line.upper() for line in written[1::4]]
    return list(dict.fromkeys([*written, *_ODD, *(line for line in decomposed if line not in written), *changed]))
