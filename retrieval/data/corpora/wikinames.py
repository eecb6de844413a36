"""The vocabulary of MediaWiki and of its editors: names of namespaces, tags, templates and sections."""

import re
import tomllib
import unicodedata
from pathlib import Path


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# English names are understood by every wiki, whatever it calls its namespaces. The Chinese and the Japanese one go by
# these in their exports, and their pages have others.
HIDDEN_NAMESPACES = _words("file image category 分类 分類 文件 档案 檔案 图像 圖像 カテゴリ 画像")
# Old names of a wiki's file namespace are not in its export, but what they point to has the name of a file.
FILE = re.compile(r"[^:]+:.+\.(?:jpe?g|png|svg|gif|tiff?|webp|og[gav]|webm|pdf|djvu)$", re.IGNORECASE)
# The page of another language, as old dumps list them at the end.
LANGUAGE_LINK = re.compile(r"(?:[a-z]{2,3}(?:-[a-z-]{2,12})?|simple):\S.*")

# Tags whose content is no running text.
DROPPED_TAGS = _words(
    "ref references math chem ce gallery timeline syntaxhighlight source score hiero imagemap graph mapframe maplink"
    " templatedata templatestyles inputbox categorytree includeonly table style script pre"
)
BLOCK_TAGS = _words("p div blockquote center ul ol li dl dt dd hr h1 h2 h3 h4 h5 h6 poem tr td th caption thead tbody")
INLINE_TAGS = _words(
    "abbr b bdi bdo big br cite code data del dfn em font i indicator ins kbd mark noinclude nowiki onlyinclude q rb rp"
    " rt rtc ruby s samp section small span strike strong sub sup time translate tt u var wbr"
)

_LANGUAGES = tomllib.loads(Path(__file__).with_name("languages.toml").read_text(encoding="utf-8"))
_AMBIGUOUS = _LANGUAGES["disambiguation"]
DISAMBIGUATION = re.compile(
    r"\{\{\s*+(?:[\w -]{0,40}?disambig(?:uation)?(?:[ -]cleanup| page)?|[\w -]{0,20}?(?:hn|geo-?|num|school|church|road"
    r"|station|hospital|callsign|mil-unit-)dis(?:-cleanup)?|disamb|dab|dis|mathdab|4cc|"
    rf"{_AMBIGUOUS})\s*[|}}]",
    re.IGNORECASE,
)
DISAMBIGUATION_TITLE = re.compile(
    rf"\((?:disambiguation|olika betydelser|andre betydninger|значения|значення|{_AMBIGUOUS})\)$", re.IGNORECASE
)
LIST_TITLE = re.compile(
    r"(?:lists? of|index of|outline of|списък на|списък с|liste? (?:der|des|von|de)|lista (?:de|di|över)|lijst van"
    r"|список) |.*(?:列表|一覧|목록)$",
    re.IGNORECASE,
)

# Sections that point elsewhere, as a heading is compared: in the composed form, and without case.
_POINTERS = "|".join(_LANGUAGES["sections"].values())
BOILERPLATE_SECTIONS = frozenset(unicodedata.normalize("NFC", _POINTERS).casefold().split("|"))
