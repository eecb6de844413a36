"""A `tokenizer.json` of Hugging Face's `tokenizers` as the object that it is: its parts read, and changed.

What is read here has the types of `_TYPES`. The library checks all else, and `errors.library_errors` tells what is
damaged.
"""

import base64
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from retrieval.common.errors import UserError, shown
from retrieval.data.tokenizers.template import Frame, PairTemplate, Template
from retrieval.data.tokenizers.token_list import BERT_ROLES, SPECIAL_TOKENS, read_object

Config = dict[str, Any]

ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
USUAL: list[dict[str, str]] = [dict(zip(BERT_ROLES, names)) for names in (ROBERTA, SPECIAL_TOKENS)]
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}

# The types of keys that are read here, wherever they stand.
_TYPES: dict[str, type] = {
    **dict.fromkeys("model normalizer pre_tokenizer post_processor pattern truncation".split(), dict),
    **dict.fromkeys("added_tokens normalizers pretokenizers".split(), list),
    **dict.fromkeys("type content prepend String precompiled_charsmap".split(), str),
    **dict.fromkeys((*FLAGS, "lowercase", "strip_accents"), bool),
    "id": int,
}
_MOST_HOLES = 1000  # ids without a token
_MOST_GROWTH = 64  # characters that a normalizer makes of one
_OF_NFKC = 33  # bytes that it makes of one character, at most
_MOST_AROUND = 256  # tokens around a text
# Normalizers that make several characters of one, over and over where others bring that one back.
_EXPANDING = {"BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Precompiled"}


def read(path: Path) -> Config:
    """Reads the file.

    Raises:
      UserError: it is none, or has no model with tokens.
      ValueError: a token is not as the library has it.
    """
    config = read_object(path, _TYPES)
    vocab = (config.get("model") or {}).get("vocab")
    if not isinstance(vocab, dict | list):
        raise UserError(f"vocabulary {path}: no tokenizer.json, which has a model with a vocab; copy it again")
    has_ids = isinstance(vocab, dict)
    for entry in map(list, vocab.items()) if has_ids else vocab:  # others have a list of tokens with their scores
        types = [*map(type, entry)] if isinstance(entry, list) else []
        if types != [str, int] and (has_ids or types != [str, float]):
            raise ValueError(f"vocab has {shown(entry)}, and a token with its number is needed")
    config["added_tokens"] = config.get("added_tokens") or []
    for token in config["added_tokens"]:
        if lacking := [key for key in ("id", "content", *FLAGS) if token.get(key) is None]:
            raise ValueError(f"added_tokens has {shown(token)}, without {lacking[0]}")
    return config


def name_of(token: Any) -> str:
    """The text of a token, which some files have with its flags.

    Raises:
      ValueError: it is none.
    """
    name = token.get("content") if isinstance(token, dict) else token
    if not isinstance(name, str) or not name:
        raise ValueError(f"{shown(name)} is the name of no token")
    return name


def tokens(config: Config) -> list[str]:
    """id -> token; '' for an id that has none.

    Raises:
      ValueError: two tokens have one id, or nearly all ids have none.
    """
    ids = _ids(config)
    names = {id: token for token, id in ids.items()}
    if min(names) < 0 or len(names) < len(ids) or max(names) >= 2 * len(ids) + _MOST_HOLES:
        raise ValueError("its ids are not one number for each token")
    return [names.get(id, "") for id in range(max(names) + 1)]


def tokenizer(config: Config) -> Tokenizer:
    """The library's object.

    Raises:
      ValueError: it gives an added token another id than the file.
    """
    made = Tokenizer.from_str(json.dumps(config, ensure_ascii=False))
    for token in config["added_tokens"]:
        if token["content"] and (id := made.token_to_id(token["content"])) != token["id"]:
            raise ValueError(f"added_tokens has id {token['id']} for {token['content']!r}, and the library {id}")
    return made


def check_growth(config: Config) -> None:
    """Checks that no text becomes many times longer before it is tokenized.

    Raises:
      ValueError: it may.
    """
    growth, parts, kinds = 1.0, [config.get("normalizer"), config.get("pre_tokenizer")], set[str]()
    while parts:
        part = parts.pop() or {}
        parts += part.get("normalizers") or part.get("pretokenizers") or []
        growth *= 4 if (kind := str(part.get("type"))) in _EXPANDING & kinds else 1
        kinds.add(kind)
        growth *= longest if (longest := _longest_replacement(part)) > _OF_NFKC else 1
        content = part.get("content", part.get("prepend")) or ""
        pattern = (part.get("pattern") or {}).get("String") or "?"  # a regular expression may find one character
        growth *= max(1.0, len(content) / len(pattern))
    if growth > _MOST_GROWTH:
        raise ValueError(f"its normalizer makes {growth:.0f} characters of one, and {_MOST_GROWTH} is the most here")


def _longest_replacement(part: Config) -> int:
    """The bytes of the longest text that a map of SentencePiece has for a character: they stand behind its trie."""
    charsmap = base64.b64decode(part.get("precompiled_charsmap") or "")
    return max(map(len, charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")))


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
    configured = filter(None, (settings.get(f"{role}_token") for role in ("bos", "eos", *USUAL[0])))
    for name in dict.fromkeys([*map(name_of, configured), *usual]):
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
        configured = settings.get(f"{name}_token")
        names = [name_of(configured)] if configured else [usual[name] for usual in USUAL if name in usual]
        return next((token for token in names if token in ids), "")

    roles = {name: role(name) for name in (*USUAL[0], "bos", "eos")}
    if processor or settings:
        before, behind, pair = _around(processor, set(ids.values()))
    else:  # our own, or one that nobody has said anything about
        ends = (([ids[cls]], [ids[sep]]) for cls, sep in (SPECIAL_TOKENS[2:4], ROBERTA[2:4]) if cls in ids)
        before, behind = next(ends, ([], []))
        pair = PairTemplate(tuple(before), tuple(behind), tuple(behind), len(behind))
    flags = {name: settings.get(f"add_{name}_token") for name in ("bos", "eos")} if has_flags else {}
    flags = {name: flag for name, flag in flags.items() if flag is not None}
    if lacking := next((name for name, flag in flags.items() if flag and not roles[name]), ""):
        beside = path.with_name("tokenizer_config.json")
        raise UserError(f"{beside}: add_{lacking}_token is true, and {lacking}_token names no token; copy it again")
    of_flags = {name: [ids[roles[name]]] if flag else [] for name, flag in flags.items()}
    before, behind = tuple(of_flags.get("bos", before)), tuple(of_flags.get("eos", behind))
    between = behind[-1:] or ((ids[roles["eos"]],) if roles["eos"] else ())
    if has_flags and (flags or pair is None):  # as it does with a text alone, then with the other
        pair = PairTemplate(before, (*behind, *before), behind, len(behind))
    if pair and not has_types:
        pair = pair._replace(of_first=-1)
    return Frame(roles, Template(before, between, behind), pair)


def _ids(config: Config) -> dict[str, int]:
    """The id of each token, of the model and added."""
    vocab = config["model"]["vocab"]
    ids: dict[str, int] = dict(vocab) if isinstance(vocab, dict) else {piece: id for id, (piece, _) in enumerate(vocab)}
    for token in config["added_tokens"]:
        ids.setdefault(token["content"], token["id"])
    return ids


def _around(processor: Any, ids: set[int]) -> tuple[list[int], list[int], PairTemplate | None]:
    """The ids that a post-processor puts before a text, and those behind it; and what it makes of two texts.

    The library tells, of two texts of one token. None where the two are turned, or have types of another kind.

    Raises:
      ValueError: it is of no kind that is known, or does something else, too.
    """
    if len(json.dumps(processor)) > 1 << 14:  # 100,000 tokens take the library seconds
        raise ValueError("post_processor is many times longer than any that is known")
    model = {"type": "WordLevel", "vocab": {"a": 2**32 - 1}, "unk_token": "a"}  # an id that no other token has
    try:
        probe = Tokenizer.from_str(json.dumps({"added_tokens": [], "model": model, "post_processor": processor}))
    except Exception as error:
        raise ValueError(f"post_processor of an unknown type, {(processor or {}).get('type')}") from error
    single, both = probe.encode("a"), probe.encode("a", "a")
    parts = _parted(single, 1)
    if not parts or any(single.type_ids) or len(single.ids) > _MOST_AROUND or not ids >= {*itertools.chain(*parts)}:
        what = "has the text twice or not at all, another token type than 0, unknown ids around it"
        raise ValueError(f"post_processor {what}, or more than {_MOST_AROUND}")
    (before, behind), pair, types = parts, _parted(both, 2), both.type_ids
    first, second = (len(pair[0]), len(pair[0]) + 1 + len(pair[1])) if pair else (0, 0)
    if not pair or types[first] or types != sorted(types) or types[-1] != types[second] or types[-1] > 1:
        return before, behind, None
    return before, behind, PairTemplate(*map(tuple, pair), of_first=types.count(0) - first - 1 if types[-1] else -1)


def _parted(encoding: Encoding, texts: int) -> list[list[int]] | None:
    """The ids before, between and behind texts; None where these do not stand in their order, each once."""
    places = [place for place, text in enumerate(encoding.sequence_ids) if text is not None]
    if [encoding.sequence_ids[place] for place in places] != list(range(texts)):
        return None
    return [encoding.ids[start + 1 : end] for start, end in itertools.pairwise([-1, *places, len(encoding.ids)])]
