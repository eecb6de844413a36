"""What templates show within a sentence: the few of English that protect one token in a thousand of a dump, or near it.

A rule is a format, where {1} is the first unnamed parameter and {last} the last, or a function of the parameters by
name ('1', '2' ...). Names are in lower case. What has no rule is a hole in its sentence.
"""

import re
from collections.abc import Callable, Mapping

Values = Mapping[str, str]
_Rule = str | Callable[[Values], str]


def _named(names: str, rule: _Rule) -> dict[str, _Rule]:
    return dict.fromkeys(names.split("|"), rule)


def _listed(values: Values) -> list[str]:
    return [value for name, value in values.items() if name.isdecimal() and value]


def _joined(between: str) -> Callable[[Values], str]:
    return lambda values: between.join(_listed(values))


def _measure(values: Values) -> str:
    """'5 to 10 km' of {{convert|5|to|10|km|mi}}: everything up to the first unit."""
    parts = _listed(values)
    is_unit = [part not in _MEASURE_WORDS and not part[:1].isdigit() and part[:1] not in "-−+." for part in parts]
    return " ".join(parts[: is_unit.index(True) + 1] if True in is_unit else parts)


_MEASURE_WORDS = frozenset("to and or by x × - – +/- ± , *".split())
RULES: dict[str, _Rule] = {
    **_named(
        "nowrap|nobr|nihongo|small|smaller|big|sc|smallcaps|abbr|vanchor|em|strong|flag|flagu|sup|sub|mvar", "{1}"
    ),
    **_named(
        "math|railgauge|track gauge|nobold|noitalic|script|angbr|vr|us$|q|sic|num|val|ill|interlanguage link", "{1}"
    ),
    **_named("as of", "As of {1}"),
    **_named("circa|c.", "c. {1}"),
    **_named("lang|rtl-lang|native phrase|native name|color|font color", "{2}"),
    **_named("transl|transliteration|resize|url", "{last}"),
    **_named("quote|blockquote|cquote|quotation|poemquote", "\n\n{1}\n\n"),
    **_named("snd|spnd|spaced ndash|dash", " – "),
    **_named("ndash|endash", "–"),
    **_named("mdash|mdashb", "—"),
    **_named("nbsp|space|thinsp|spaces", " "),
    **_named("convert|cvt", _measure),
    **_named("chem|chem2|linktext", _joined("")),
    **_named("hlist|unbulleted list|ubl|plainlist|flatlist", _joined(", ")),
    **_named("frac|sfrac", _joined("/")),
    **_named("'", "'"),
    **_named("'s", "'s"),
    **_named("!", "|"),
}


# {{formatnum:1234.5}}, by the names of it that wikis have: the number as their language writes it.
_NUMBER = re.compile(
    r"(?:formatnum|zahlenformat|formaton[uú]mero|formatanum|formatarnum|formateranum|formatteernum|numformatteren"
    r"|форматчисла)\s*:\s*([-−+]?)(\d[\d,]*)(?:\.(\d+))?"
)
_EVERY_THIRD = re.compile(r"(?<=\d)(?=(?:\d{3})+$)")
_BETWEEN_THOUSANDS = {
    **dict.fromkeys("ca da de el es eu gl hr id is it mk nl pt ro sl sr tr vi".split(), "."),
    **dict.fromkeys("bg cs eo et fi fr hu kk lt lv nb nn no pl ru sk sv uk".split(), " "),
}
_FROM_FIVE_DIGITS = frozenset("bg es hu it lv pl pt".split())  # four are not parted


def number(name: str, values: Values, language: str) -> str:
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


def shown(name: str, values: Values) -> str:
    """What a template shows; '' where nobody knows.

    Args:
      values: its parameters, unnamed ones by their numbers.
    """
    rule, parts = RULES.get(name, ""), _listed(values)
    if callable(rule):
        return rule(values)
    if "{" in rule and not parts:
        return ""
    return rule.format("", *(values.get(str(number), "") for number in (1, 2)), last=parts[-1] if parts else "")
