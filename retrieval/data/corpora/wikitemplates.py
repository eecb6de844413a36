"""What templates show within a sentence: the few of English that protect one token in a thousand of a dump, or near it.

A rule is a format, where {1} is the first unnamed parameter and {last} the last, or a function of the parameters by
name ('1', '2' ...). Names are in lower case. What has no rule is a hole in its sentence.
"""

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
