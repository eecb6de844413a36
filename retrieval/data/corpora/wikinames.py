"""The vocabulary of MediaWiki and of its editors: names of namespaces, tags and sections, and what templates show."""

import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

# English names are understood by every wiki, whatever it calls its namespaces. The Chinese and the Japanese one go by
# these in their exports, and their pages have others.
HIDDEN_NAMESPACES = frozenset("file image category 分类 分類 文件 档案 檔案 图像 圖像 カテゴリ 画像".split())
# Old names of a wiki's file namespace are not in its export, but what they point to has the name of a file.
FILE = re.compile(r"[^:]+:.+\.(?:jpe?g|png|svg|gif|tiff?|webp|og[gav]|webm|pdf|djvu)$", re.IGNORECASE)
# The page of another language, as old dumps list them at the end.
LANGUAGE_LINK = re.compile(r"(?:[a-z]{2,3}(?:-[a-z-]{2,12})?|simple):\S.*")

_LANGUAGES = tomllib.loads(Path(__file__).with_name("languages.toml").read_text(encoding="utf-8"))
DROPPED_TAGS, BLOCK_TAGS, INLINE_TAGS = (frozenset(tags.split()) for tags in _LANGUAGES["tags"].values())
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

# What has no rule is a hole in its sentence. The parameters of a template are by name, unnamed ones by '1', '2' ...
Values = Mapping[str, str]
_RULES = {name: rule for rule, names in _LANGUAGES["templates"].items() for name in names.split("|")}
_MEASURE_WORDS = frozenset("to and or by x × - – +/- ± , *".split())

# {{formatnum:1234.5}}, by the names of it that wikis have: the number as their language writes it.
_NUMBER = re.compile(
    r"(?:formatnum|zahlenformat|formaton[uú]mero|formatanum|formatarnum|formateranum|formatteernum|numformatteren"
    r"|форматчисла)\s*:\s*([-−+]?)(\d[\d,]*)(?:\.(\d+))?"
)
_EVERY_THIRD = re.compile(r"(?<=\d)(?=(?:\d{3})+$)")
_BETWEEN_THOUSANDS = {name: mark for mark, names in _LANGUAGES["thousands"].items() for name in names.split()}
_FROM_FIVE_DIGITS = frozenset("bg es hu it lv pl pt".split())  # four are not parted


def formatted_number(name: str, values: Values, language: str) -> str:
    """What {{formatnum:...}} shows in a wiki of a language such as 'de'; '' where the template is another one."""
    match = _NUMBER.fullmatch(name)
    if not match:
        return ""
    sign, whole, part = match[1].replace("-", "−"), match[2].replace(",", ""), match[3]
    between = _BETWEEN_THOUSANDS.get(language, ",")
    if {"R", "NOSEP"} & {value.strip().upper() for value in values.values()}:
        return name.partition(":")[2].strip().replace(",", "")
    if not (language in _FROM_FIVE_DIGITS and len(whole) < 5):
        whole = _EVERY_THIRD.sub(between, whole)
    return sign + whole + (f"{',' if between != ',' else '.'}{part}" if part else "")


def shown_by_template(name: str, values: Values) -> str:
    """What a template shows; '' where nobody knows."""
    rule, parts = _RULES.get(name, ""), [value for key, value in values.items() if key.isdecimal() and value]
    if "{" not in rule or not parts:
        return "" if "{" in rule else rule
    several = {"joined": "".join(parts), "commas": ", ".join(parts), "slashes": "/".join(parts)}
    named = {"last": parts[-1], "measure": _measure(parts), **several}
    return rule.format("", *(values.get(str(number), "") for number in (1, 2)), **named)


def _measure(parts: Sequence[str]) -> str:
    """'5 to 10 km' of {{convert|5|to|10|km|mi}}: everything up to the first unit."""
    is_unit = [part not in _MEASURE_WORDS and not part[:1].isdigit() and part[:1] not in "-−+." for part in parts]
    return " ".join(parts[: is_unit.index(True) + 1] if True in is_unit else parts)
