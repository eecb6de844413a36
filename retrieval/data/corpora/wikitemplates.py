"""What templates and parser functions show within a sentence. Rules hold for English, and for what all wikis have.

A rule is a format, where {1} is the first unnamed parameter and {last} the last, or a function of the parameters by
name ('1', '2' ...). Names are in lower case. What has no rule and is not silent is a hole in its sentence.
"""

import calendar
import re
from collections.abc import Callable, Mapping

from retrieval.data.corpora.wikinames import LANGUAGES

Values = Mapping[str, str]


def _named(names: str, rule: "str | Callable[[Values], str]") -> "dict[str, str | Callable[[Values], str]]":
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


def _fraction(values: Values) -> str:
    """'1/2' of {{frac|1|2}}, '1/3' of {{frac|3}}, '2 1/3' of {{frac|2|1|3}}."""
    *whole, above, below = ["1", *_listed(values)] if len(_listed(values)) == 1 else _listed(values)
    return " ".join([*whole, f"{above}/{below}"])


def _date(values: Values) -> str:
    """'March 14, 1879' of {{birth date|1879|3|14}}; the day first where df says so."""
    year, month, day = [*_listed(values), "", "", ""][:3]
    if month.isdecimal() and 1 <= int(month) <= 12:
        month = calendar.month_name[int(month)]
    if values.get("df", "").lower() in ("y", "yes") and day:
        return f"{day} {month} {year}"
    return f"{month} {day}, {year}" if day else f"{month} {year}".strip()


def _as_of(values: Values) -> str:
    if values.get("alt"):
        return values["alt"]
    return f"{'as' if values.get('lc') else 'As'} of {_date(values)}"


def _number(values: Values) -> str:
    unit = values.get("u") or values.get("ul") or ""
    power = f"×10{values['e']}" if values.get("e") else ""
    return f"{'±'.join(_listed(values)[:2])}{power} {unit}".strip()


def _range(before: str, between: str) -> Callable[[Values], str]:
    return lambda values: between.join(f"{before}{year}" for year in _listed(values)[:2])


def _ordinal(values: Values) -> str:
    number = values["1"]
    ending = "th" if number[-2:-1] == "1" else {"1": "st", "2": "nd", "3": "rd"}.get(number[-1:], "th")
    return number + ending


def _height(values: Values) -> str:
    return " ".join(f"{values[unit]} {unit}" for unit in ("m", "cm", "ft", "in") if values.get(unit))


def _other_wiki(values: Values) -> str:
    """A link to another wiki, by its label: {{ill|Name|de|Titel}}, or in the old order {{ill|de|Titel}}."""
    first, *rest = _listed(values)
    return values.get("lt") or (rest[-1] if rest and first in LANGUAGES else first)


def _chinese(values: Values) -> str:
    """{{zh|s=汉|p=Hàn}}"""
    return ", ".join([*_listed(values), *filter(None, map(values.get, ("c", "s", "t", "p", "w", "j")))])


def _currency(values: Values) -> str:
    """'US$5' of {{currency|5|USD}}."""
    sign = next((sign for names, sign in _MONEY.items() if values.get("2", "").lower() in names.split("|")), "")
    return sign + values["1"]


def _ship(prefix: str) -> Callable[[Values], str]:
    """'HMS Ark Royal (91)' of {{HMS|Ark Royal|91}}; a third parameter is a form, without the number."""

    def shown(values: Values) -> str:
        name, number, form = (values.get(key, "") for key in "123")
        name = name if form == "2" else f"{prefix} {name}"
        return f"{name} ({number})" if number and not form else name

    return shown


def _any_ship(values: Values) -> str:
    shifted = {str(int(key) - 1): value for key, value in values.items() if key.isdecimal()}
    return _ship(values["1"])(shifted).strip()


def _money(values: Values) -> str:
    """'₹5 crore' of {{INRConvert|5|c}}."""
    words = {"k": " thousand", "l": " lakh", "m": " million", "c": " crore", "b": " billion", "t": " trillion"}
    return f"₹{values['1']}{words.get(values.get('2', ''), '')}"


_MEASURE_WORDS = frozenset("to and or by x × - – +/- ± , *".split())
_SHIPS = "HMS USS SS MV MS RMS HMAS HMCS HMNZS HMT HMHS HNLMS HNoMS HDMS HSwMS SMS USCGC USNS USRC USAT CSS INS RFA ORP"
_MONEY = {
    **{
        "us$|usd|us dollar": "US$",
        "gbp|£|pound sterling": "£",
        "eur|€|euro": "€",
        "aud|a$|au$": "A$",
        "c$|cad|ca$": "C$",
    },
    **{"nzd|nz$": "NZ$", "jpy|¥|yen|jpy¥": "¥", "cny|rmb|cn¥": "CN¥", "inr|indian rupee|₹|rs|rs.|rupee": "₹"},
    **{"hkd|hk$": "HK$", "sgd|s$": "S$", "krw|won|₩": "₩", "chf": "CHF ", "php|₱": "₱", "brl|r$": "R$", "ils|nis": "₪"},
}
_FIRST = (
    "nowrap|nobr|nobreak|nihongo|small|smaller|big|larger|sc|smallcaps|abbr|vanchor|em|strong|visible anchor"
    "|not a typo|flag|flagu|flagcountry|sup|sub|mvar|math|mathrm|nq|as written|typo|tooltip|overline|noitalic|nobold"
    "|normal|underline|underlinenosp|mono|monospace|code|kbd|key press|keypress|samp|char|unicode|trim|railgauge"
    "|track gauge|nts|num|number|script|proper name|zwnj|q|'''|sic|nihongo foot|dts|iso|no italic|noitalics"
    "|italic correction|ic|italics correction|slink"
)
RULES: "dict[str, str | Callable[[Values], str]]" = {
    **_named(_FIRST, "{1}"),
    **_named("lang|rtl-lang|langx|native phrase|native name|wikt-lang|color|font color|colored text|sort", "{2}"),
    **_named("transl|transliteration|resize|url", "{last}"),
    **_named("harvtxt|harvp|harvs", "{1} ({last})"),
    **_named("quote|blockquote|cquote|quotation|poemquote|poem quote", "\n\n{1}\n\n"),
    **_named("circa|c.|ca.", _range("c. ", " – ")),
    **_named("floruit|fl.", lambda values: f"fl. {_range('', '–')(values)}"),
    **_named("reign|r.", lambda values: f"r. {_range('', '–')(values)}"),
    **_named("ill|illm|interlanguage link|interlanguage link multi|link-interwiki|lien", _other_wiki),
    **_named("ordinal|ord", _ordinal),
    **_named("frac|sfrac|fraction", _fraction),
    **_named("snd|spnd|spaced ndash|spaced en dash|dash", " – "),
    **_named("mdash|em dash|mdashb", "—"),
    **_named("nbsp|space|thinsp|spaces|break", " "),
    **_named("ndash|en dash|endash", "–"),
    **_named("'|apostrophe", "'"),
    **_named("angbr|vr|grapheme", "⟨{1}⟩"),
    **_named("convert|cvt", _measure),
    **_named("birth date|birth date and age|birth-date|death date|death date and age|start date|end date|date", _date),
    **_named("start date and age|film date|launch date|birth year and age|release date", _date),
    **_named("chem|chem2|gaps|linktext", _joined("")),
    **_named("hlist|cslist|unbulleted list|ubl|plainlist|flatlist", _joined(", ")),
    **_named("bibleref|bibleverse|bibleref2|sortname", _joined(" ")),
    **_named("sclass|sclass-|sclass2|sclass2-", "{1}-class {2}"),
    **{name.lower(): _ship(name) for name in _SHIPS.split()},
    **{name: f"{sign}{{1}}" for names, sign in _MONEY.items() for name in names.split("|")},
    **{name: f"{name.upper()} {{1}}" for name in ("isbn", "issn", "oclc")},
    **{"ship": _any_ship, "inrconvert": _money, "val": _number, "as of": _as_of, "e": "×10{1}", "okina": "ʻ"},
    **{"height": _height, "zh": _chinese, "currency": _currency},
    **{"eqm": "⇌", "'s": "'s", "=": "=", "!": "|", "dot": " · ", "·": " · ", "•": " • ", "doi": "doi:{1}"},
    **{"us patent": "U.S. Patent {1}", "oldstyledate": "{1} {2}", "nyse": "NYSE: {1}", "nasdaq": "NASDAQ: {1}"},
}
_ACCIDENTALS = {"flat": "♭", "b": "♭", "sharp": "♯", "#": "♯", "natural": "♮"}
RULES["music"] = lambda values: _ACCIDENTALS[values["1"]]

# Notes, doubts about a text, anchors, and what lays it out.
SILENT = re.compile(
    r"(?:sfn|efn|ref|cite|citation|harv|flagicon|anchor|inflation-fn|update|weasel|lang-.+-pron|respell|ipac-|audio)\b.*"
    r"|.* (?:needed|inline|icon|date|templates?)\??|(?:sfnp|sfnm|refn|efn-.*|rp|r|cn|fact|dn|full|who|whom|which|when)"
    r"|where|why|how|what|by whom|according to whom|clarify|clarification|vague|dubious|or|pov|peacock term|huh|full"
    r"|failed verification|better source|verify source|unreliable source\??|dead link|clear|clearleft|-|refimprove"
    r"|disambiguation|qualify evidence|nowrap (?:begin|end)|toc.*|wbr|shy|zwsp|coord missing|portal.*|main|see also"
    r"|ntsh|hs|sic|reflist.*|commons.*|-\"|' ?\"|defaultsort:.*|displaytitle:.*|#tag:.*|relevance|page number"
)
# How words are said, and called elsewhere: outside of parentheses they are words of the sentence.
SPOKEN = re.compile(r"ipa(?:-.+|slink|blink|link)?|lang-.+|langx|zh")


def shown(name: str, values: Values) -> str | None:
    """What a template shows; None where nobody knows.

    Args:
      values: its parameters, unnamed ones by their numbers.
    """
    rule = RULES.get(name, "{1}" if SPOKEN.fullmatch(name) or name.startswith("script/") else None)
    if rule is None:
        return "" if SILENT.fullmatch(name) else None
    try:
        if callable(rule):
            return rule(values)
        parts = _listed(values)
        if "{" in rule and not parts:
            return ""
        return rule.format(
            "", *(values.get(str(number), "") for number in range(1, 4)), last=parts[-1] if parts else ""
        )
    except (IndexError, KeyError, ValueError):
        return ""


def function(name: str, first: str, rest: list[tuple[str, str]], title: str) -> str | None:
    """What a parser function or a variable shows that needs nothing but its parameters; None of any other.

    Args:
      first: what stands behind the colon.
      rest: its other parameters, each as (name or '', value).
      title: of the page.
    """
    texts = [f"{key}={value}" if key else value for key, value in rest]
    yes, no = [*texts, "", ""][:2]
    match name:
        case "pagename" | "fullpagename" | "subpagename" | "basepagename":
            return title
        case "formatnum":
            if "R" in texts:
                return first.replace(",", "")
            return _with_commas(first) if any(map(str.isdigit, first)) else first or None
        case "lc" | "uc":
            return first.lower() if name == "lc" else first.upper()
        case "lcfirst" | "ucfirst":
            return (first[:1].lower() if name == "lcfirst" else first[:1].upper()) + first[1:]
        case "plural":
            return yes if first == "1" else no or yes
        case "padleft" | "padright":
            width, fill = int(yes) if re.fullmatch("[0-9]{1,2}", yes) else 0, no[:1] or "0"
            return first.rjust(width, fill) if name == "padleft" else first.ljust(width, fill)
        case "#if":
            return yes if first else no
        case "#ifeq":
            return [*texts, "", "", ""][1 if first == yes else 2]
        case "#switch":
            return _switch(first, rest)
        case "#formatdate" | "#dateformat" | "nowrap":
            return first
    return None


def _switch(value: str, cases: list[tuple[str, str]]) -> str:
    """The first case that fits, or the one behind it that has a value; else the default."""
    fits = False
    for key, shown in cases:
        fits |= value == (key or shown)
        if key and fits:
            return shown
    default = next((shown for key, shown in cases if key == "#default"), "")
    return cases[-1][1] if cases and not cases[-1][0] else default


def _with_commas(number: str) -> str:
    whole, point, part = number.partition(".")
    is_whole = re.fullmatch("[-−]?[0-9]{1,30}", whole)
    return re.sub(r"(?<=[0-9])(?=(?:[0-9]{3})+$)", ",", whole) + point + part if is_whole else number
