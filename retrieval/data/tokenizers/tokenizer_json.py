"""A `tokenizer.json` of Hugging Face's `tokenizers` as the object that it is: its parts read, and changed.

Shapes are not checked on the way: the library does that, and `errors.library_errors` tells what is damaged.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from retrieval import files
from retrieval.data.tokenizers.template import PairTemplate, Template
from retrieval.data.tokenizers.token_list import SPECIAL_TOKENS
from retrieval.errors import UserError

Config = dict[str, Any]

ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
USUAL: list[dict[str, str]] = [
    dict(zip(("pad", "unk", "cls", "sep", "mask"), names)) for names in (ROBERTA, SPECIAL_TOKENS)
]
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}

_MOST_HOLES = 1000  # ids without a token
_MOST_GROWTH = 64  # characters that a normalizer makes of one
_MOST_AROUND = 256  # tokens around a text


class Frame(NamedTuple):
    """The special tokens of a vocabulary, by role, '' where it has none; and what stands around a text, and a pair.

    `pair` is None where the post-processor makes pairs of a kind that no model here reads.
    """

    roles: Mapping[str, str]
    template: Template
    pair: PairTemplate | None


def read(path: Path) -> Config:
    """Reads the file.

    Raises:
      UserError: it is none, or has no model with tokens.
    """
    config = files.read_json(path)
    model = config.get("model") if isinstance(config, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list):
        raise UserError(f"vocabulary {path}: no tokenizer.json, which has a model with a vocab; copy it again")
    vocab = model["vocab"]
    unk = model.get("unk_token" if isinstance(vocab, dict) else "unk_id")
    if unk not in vocab and unk is not None if isinstance(vocab, dict) else unk is None:
        raise UserError(f"vocabulary {path}: its model has no token for what it does not know; copy it again")
    config["added_tokens"] = config.get("added_tokens") or []
    return config


def word_piece(tokens: Sequence[str], folds_accents: bool, lower_case: bool, settings: Mapping[str, Any]) -> Config:
    """BERT's pipeline with the tokens of a `vocab.txt`. Of one that is there twice the last place counts."""
    vocab = {token: id for id, token in enumerate(tokens)}
    unk, cls, sep = (name_of(settings.get(f"{role}_token") or f"[{role.upper()}]") for role in ("unk", "cls", "sep"))
    return {
        "added_tokens": [],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": folds_accents,
            "lowercase": lower_case,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": [sep, vocab.get(sep)], "cls": [cls, vocab.get(cls)]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unk,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }


def name_of(token: Any) -> str:
    """The text of a token, which some files have with its flags.

    Raises:
      ValueError: it is none.
    """
    name = token["content"] if isinstance(token, dict) else token
    if not isinstance(name, str) or not name:
        raise ValueError(f"{name!r} is the name of no token")
    return name


def tokens(config: Config) -> list[str]:
    """id -> token; '' for an id that has none.

    Raises:
      ValueError: two tokens have one id, or nearly all ids have none.
    """
    ids = _ids(config)
    size = max(ids.values()) + 1
    if min(ids.values()) < 0 or len(set(ids.values())) < len(ids) or size > 2 * len(ids) + _MOST_HOLES:
        raise ValueError("its ids are not one number for each token")
    names = [""] * size
    for token, id in ids.items():
        names[id] = token
    return names


def tokenizer(config: Config) -> Tokenizer:
    """The library's object."""
    return Tokenizer.from_str(json.dumps(config, ensure_ascii=False))


def check_growth(config: Config) -> None:
    """Checks that no text becomes many times longer before it is tokenized.

    Raises:
      ValueError: it may.
    """
    growth, parts = 1.0, [config.get("normalizer")]
    while parts:
        part = parts.pop() or {}
        parts += part.get("normalizers") or []
        content = part.get("content", part.get("prepend")) or ""
        pattern = (part.get("pattern") or {}).get("String") or "?"  # a regular expression may find one character
        growth *= max(1.0, len(content) / len(pattern))
    if growth > _MOST_GROWTH:
        raise ValueError(f"its normalizer makes {growth:.0f} characters of one, and {_MOST_GROWTH} is the most here")


def check_added(config: Config, tokenizer: Tokenizer) -> None:
    """Checks that the library gave each added token the id that the file has for it.

    Raises:
      ValueError: it did not.
    """
    for token in config["added_tokens"]:
        if token["content"] and (id := tokenizer.token_to_id(token["content"])) != token["id"]:
            raise ValueError(f"added_tokens has id {token['id']} for {token['content']!r}, and the library {id}")


def put_lower_case_first(config: Config) -> None:
    """Makes the normaliser lower-case a text before all else, as sentence-transformers does, if it does not so far."""
    normalizer = config.get("normalizer") or {}
    parts = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    if not any(part and part["type"] == "Lowercase" for part in parts):
        config["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *filter(None, parts)]}


def name_special_tokens(config: Config, settings: Mapping[str, Any], usual: Iterable[str]) -> None:
    """Makes tokens special, so that they are looked for in a text before the model is asked.

    Args:
      settings: what the files beside say, which may name them.
      usual: those of its class.
    """
    ids, listed = _ids(config), {token["content"] for token in config["added_tokens"]}
    given = (settings.get(f"{role}_token") for role in ("bos", "eos", *USUAL[0]))
    named = [name_of(token) for token in given if token]
    for name in dict.fromkeys([*named, *usual]):
        if name in ids and name not in listed:
            flags = {**FLAGS, "lstrip": name == "<mask>", "normalized": False, "special": True}
            config["added_tokens"].append({**flags, "id": ids[name], "content": name})
    config["added_tokens"].sort(key=lambda token: token["id"])


def take_frame(path: Path, config: Config, settings: Mapping[str, Any], *, has_flags: bool, has_types: bool) -> Frame:
    """The special tokens; the post-processor is taken out, as `Template` and `PairTemplate` do what it does.

    Args:
      has_types: whether the document of a pair may have another token type than the query.
      has_flags: whether the `add_bos_token` and `add_eos_token` of the settings count more than the post-processor.

    Raises:
      UserError: such a flag asks for a token that there is not.
    """
    ids, processor, config["post_processor"] = _ids(config), config.get("post_processor"), None

    def role(name: str) -> str:
        given = settings.get(f"{name}_token")
        names = [name_of(given)] if given else [usual[name] for usual in USUAL if name in usual]
        return next((token for token in names if token in ids), "")

    roles = {name: role(name) for name in (*USUAL[0], "bos", "eos")}
    if processor or settings:
        before, behind = _around(processor, ids)
        pair = _pair(processor)
    else:  # our own, or one that nobody has said anything about
        ends = next(([cls, sep] for cls, sep in (SPECIAL_TOKENS[2:4], ROBERTA[2:4]) if cls in ids), [])
        before, behind = [ids[name] for name in ends[:1]], [ids[name] for name in ends[1:]]
        pair = PairTemplate(tuple(before), tuple(behind), tuple(behind), len(behind))
    flags = {name: settings.get(f"add_{name}_token") if has_flags else None for name in ("bos", "eos")}
    if lacking := next((name for name, flag in flags.items() if flag and not roles[name]), ""):
        raise UserError(
            f"{path.with_name('tokenizer_config.json')}: add_{lacking}_token is true, and {lacking}_token names "
            f"no token of {path.name}; copy both again"
        )
    if any(flag is not None for flag in flags.values()):
        pair = None
    of_flags = {name: [ids[roles[name]]] if flag else [] for name, flag in flags.items() if flag is not None}
    before, behind = of_flags.get("bos", before), of_flags.get("eos", behind)
    between = behind[-1:] or ([ids[roles["eos"]]] if roles["eos"] else [])
    template = Template(tuple(before), tuple(between), tuple(behind))
    if has_flags and pair is None:  # as it does with a text alone, then with the other
        pair = PairTemplate(
            template.before, (*template.behind, *template.before), template.behind, len(template.behind)
        )
    if pair and not has_types:
        pair = pair._replace(of_first=-1)
    return Frame(roles, template, pair)


def _ids(config: Config) -> dict[str, int]:
    """The id of each token, of the model and added."""
    vocab = config["model"]["vocab"]
    ids: dict[str, int] = dict(vocab) if isinstance(vocab, dict) else {piece: id for id, (piece, _) in enumerate(vocab)}
    for token in config["added_tokens"]:
        ids.setdefault(token["content"], token["id"])
    return ids


def _around(processor: Any, ids: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """The ids that a post-processor puts before a text, and those behind it.

    Raises:
      ValueError: it does something else, too.
    """
    before: list[int] = []
    behind: list[int] = []
    parts = processor["processors"] if (processor or {}).get("type") == "Sequence" else [processor]
    for part in filter(None, parts):
        if part["type"] in ("BertProcessing", "RobertaProcessing"):
            row = [[part["cls"][1]], None, [part["sep"][1]]]
        elif part["type"] == "TemplateProcessing":
            row = [_of_item(item, part["special_tokens"]) for item in part["single"]]
        elif part["type"] == "ByteLevel":
            row = [None]
        else:
            raise ValueError(f"post_processor of an unknown type, {part['type']}")
        if row.count(None) != 1 or not set(ids.values()).issuperset(itertools.chain(*filter(None, row))):
            raise ValueError("post_processor has the text twice, or ids that its model has not")
        place = row.index(None)
        before = [*itertools.chain(*filter(None, row[:place])), *before]
        behind = [*behind, *itertools.chain(*filter(None, row[place:]))]
        if len(before) + len(behind) > _MOST_AROUND:
            raise ValueError(f"post_processor puts more than {_MOST_AROUND} tokens around a text")
    return before, behind


def _pair(processor: Any) -> PairTemplate | None:
    """What a post-processor makes of two texts; None where it turns them, or gives types of another kind."""
    parts = processor["processors"] if (processor or {}).get("type") == "Sequence" else [processor]
    parts = [part for part in parts if part and part["type"] != "ByteLevel"]
    if not parts:
        return PairTemplate(of_first=0)
    part = parts[0]
    if len(parts) > 1:
        return None
    if part["type"] != "TemplateProcessing":
        cls, sep = (part["cls"][1],), (part["sep"][1],)
        is_bert = part["type"] == "BertProcessing"
        return PairTemplate(cls, sep, sep, 1) if is_bert else PairTemplate(cls, sep * 2, sep)
    before: list[int] = []
    row, types, texts = [before], [], []
    for item in part["pair"]:
        ((kind, value),) = item.items()
        if kind == "Sequence":
            texts.append(value["id"])
            row.append([])
            types.append(value["type_id"])
        else:
            ids = part["special_tokens"][value["id"]]["ids"]
            row[-1] += ids
            types += [value["type_id"]] * len(ids)
    if texts != ["A", "B"] or types != sorted(types) or types[: len(before) + 1] != [0] * (len(before) + 1):
        return None
    of_first = -1 if not any(types) else types.count(0) - len(before) - 1
    second = len(before) + 1 + len(row[1])  # the place of the document's type
    if of_first >= 0 and (types[second] != 1 or types[-1] != 1):
        return None
    return PairTemplate(*map(tuple, row), of_first=of_first)


def _of_item(item: Mapping[str, Any], special_tokens: Mapping[str, Any]) -> list[int] | None:
    """The ids of an item of a template; None for the text."""
    ((kind, value),) = item.items()
    if value["type_id"]:
        raise ValueError("post_processor gives the first text another token type than 0")
    return None if kind == "Sequence" else special_tokens[value["id"]]["ids"]
