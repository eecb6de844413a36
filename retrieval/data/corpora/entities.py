"""HTML entities in text that anyone may have written."""

import html
import re

# No character has so many digits, and Python refuses to read a number of some thousands.
_ENDLESS = re.compile(r"&#[0-9]{100,};?")


def unescape(text: str) -> str:
    """`html.unescape` for any text: a number too large for a character gives U+FFFD, however long it is."""
    return html.unescape(_ENDLESS.sub("\ufffd", text)) if "&" in text else text
