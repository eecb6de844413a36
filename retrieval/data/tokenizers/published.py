"""The tokenizer of a folder that another library wrote, run as it is by Hugging Face's `tokenizers`.

What the files beside a `tokenizer.json` change is what transformers 4 makes of them: it runs that file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import models, processors

from retrieval.common import files
from retrieval.common.errors import UserError, library_errors
from retrieval.data.tokenizers import tokenizer_json
from retrieval.data.tokenizers.template import Frame, Template
from retrieval.data.tokenizers.token_list import BERT_ROLES, SPECIAL_TOKENS, folds_and_lowers, read_lines, read_object
from retrieval.data.tokenizers.vocab import Vocabulary, WordPiece, bert_tokenizer

# The files beside that of the vocabulary that say what becomes of a text.
BESIDE = ("config.json", "tokenizer_config.json", "special_tokens_map.json")
_ADDED = "added_tokens.json"
_LOWERS = "sentence_bert_config.json"  # of sentence-transformers, also beside weights alone

# Classes of transformers whose list of tokens, a vocab.txt, BERT's pipeline reads; without 'Fast' at their ends.
_BERT = "Bert DistilBert Electra MobileBert ConvBert DPRQuestionEncoder DPRContextEncoder MPNet".split()
# Those that give token types where nothing says whether they do.
_TYPED = {*_BERT, "Deberta", "DebertaV2"} - {"DistilBert", "MPNet"}
# Those whose usual special tokens are RoBERTa's.
_ROBERTA = "Roberta XLMRoberta Camembert Longformer Bart MBart".split()
# Those that put tokens around a text as settings say, whatever their tokenizer.json does.
_WITH_FLAGS = ("Llama", "CodeLlama")
_AS_IT_IS = ("PreTrainedTokenizerFast", "TokenizersBackend")
_LISTED = (*_AS_IT_IS, *_BERT)
# The `model_type` of a config.json -> the class of its tokenizer.
_OF_MODELS = dict(bert="Bert", distilbert="DistilBert", electra="Electra", roberta="Roberta", llama="Llama")
_OF_MODELS["mistral"] = "Llama"

# What the parts of a tokenizer.json call what tokenizer_config.json changes, and the key there.
_KEYS = dict(lowercase="do_lower_case", strip_accents="strip_accents", handle_chinese_chars="tokenize_chinese_chars")
_CLEANS = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
_OF_BERT = dict(type="WordPiece", unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=100)
_TYPES = {"added_tokens_decoder": dict, "content": str, **dict.fromkeys(_KEYS.values(), bool)}
_WAY_OUT = "take another model"


class PublishedTokenizer(Vocabulary):
    """Any pipeline of the `tokenizers` library."""

    FILE = "tokenizer.json"

    def __init__(self, config: tokenizer_json.Config, frame: Frame, tokens_in_text: bool):
        """Args:
        config: a `tokenizer.json` whose post-processor does nothing.
        frame: its special tokens, and what stands around a text.
        tokens_in_text: whether a special token that is written in a text is that token.
        """
        tokens, tokenizer = tokenizer_json.tokens(config), tokenizer_json.tokenizer(config)
        super().__init__(tokens, tokenizer, frame)
        self.tokens_in_text, self._published = tokens_in_text, frame.template
        self._tokenizer.encode_special_tokens = not tokens_in_text
        normalizer = self._tokenizer.normalizer
        self.folds_accents = normalizer is not None and normalizer.normalize_str("é") == "e"

    @property
    def fingerprint(self) -> str:
        return files.fingerprint([self._tokenizer.to_str(), self.tokens_in_text, self._published])

    def save(self, path: Path) -> None:
        """Writes `tokenizer.json`, and beside it what transformers has to know of it."""
        pair = self.pair_template
        types = 2 if pair and pair.of_first >= 0 else 0
        files.write_text(path, self.to_json(max(1, types), pair) + "\n")
        files.write_json(path.with_name("tokenizer_config.json"), self.settings(types))


def beside(path: Path) -> list[Path]:
    """The files beside that of a vocabulary that change its ids."""
    return [other for name in (*BESIDE, _LOWERS) if (other := path.with_name(name)).is_file()]


def load(path: Path) -> Vocabulary:
    """Reads a `tokenizer.json` or a `vocab.txt` with what lies beside it.

    Raises:
      UserError: a file cannot be read, or our ids would not be those of its own tokenizer.
    """
    with library_errors(f"vocabulary {path}", "copy it again"):
        settings = _settings(path)
        kind, config = _checked_kind(path, settings), _pipeline(path, settings)
        _apply(path, settings, config, is_generic=path.suffix == ".json" and kind in _AS_IT_IS)
        tokenizer_json.check_growth(config)
        usual = next((tokenizer_json.USUAL[n] for n, kinds in enumerate((_ROBERTA, _BERT)) if kind in kinds), {})
        tokenizer_json.name_special_tokens(config, settings, usual.values() if settings else ())
        flags = dict(has_flags=kind in _WITH_FLAGS, has_types=_has_types(settings, kind))
        frame = tokenizer_json.take_frame(path, config, settings, **flags)
        tokens_in_text = settings.get("split_special_tokens") is not True
        return _word_piece(config, frame, tokens_in_text) or PublishedTokenizer(config, frame, tokens_in_text)


def _has_types(settings: Mapping[str, Any], kind: str) -> bool:
    """Whether transformers 5 gives a model token types: its settings say so, or else its class."""
    names = settings.get("model_input_names")
    return not settings or ("token_type_ids" in names if isinstance(names, list) else kind in _TYPED)


def _settings(path: Path) -> dict[str, Any]:
    """What the files beside say; of a `tokenizer.json` alone, nothing."""
    config, own, names = (read_object(path.with_name(name), _TYPES) for name in BESIDE)
    kind = own.get("tokenizer_class") or config.get("tokenizer_class") or _OF_MODELS.get(str(config.get("model_type")))
    lowers = read_object(path.with_name(_LOWERS)).get("do_lower_case") is True
    settings = names | own
    return {"tokenizer_class": kind, "lowers": lowers} | settings if config or settings or lowers else {}


def _checked_kind(path: Path, settings: Mapping[str, Any]) -> str:
    """The class of transformers that the folder names, without its end; without one, that of a tokenizer.json alone."""
    beside = path.with_name("tokenizer_config.json")
    name = str(settings.get("tokenizer_class") or _AS_IT_IS[0])
    kind = name if name in _AS_IT_IS else name.removesuffix("Fast").removesuffix("Tokenizer")
    code = settings.get("auto_map")
    if isinstance(code, dict) and code.get("AutoTokenizer"):
        raise UserError(f"{beside}: auto_map names code of its own for the tokenizer, which is not run; {_WAY_OUT}")
    added = {*map(tokenizer_json.name_of, (settings.get("added_tokens_decoder") or {}).values())}
    added |= read_object(path.with_name(_ADDED)).keys()
    is_slow = settings.get("do_basic_tokenize") is False or settings.get("never_split") or kind not in _LISTED
    if path.suffix != ".json" and (is_slow or added.difference(read_lines(path))):
        what = f"tokenizer_class {name!r}, do_basic_tokenize, never_split or added tokens make other ids"
        raise UserError(f"{beside}: {what}; {_WAY_OUT}, or add the tokenizer.json that transformers writes")
    return kind


def _pipeline(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The `tokenizer.json` that is there, or that the other files stand for."""
    if path.suffix == ".json":
        return tokenizer_json.read(path)
    tokens = read_lines(path)
    ids = {token: id for id, token in enumerate(tokens)}  # of one that is there twice the last place counts
    roles = ((role, settings.get(f"{role}_token") or f"[{role.upper()}]") for role in ("unk", "cls", "sep"))
    names = {role: tokenizer_json.name_of(token) for role, token in roles}
    model = models.WordPiece(ids, unk_token=names["unk"])
    tokenizer = bert_tokenizer(model, *folds_and_lowers(path, tokens))
    tokenizer.post_processor = processors.BertProcessing(*((names[role], ids[names[role]]) for role in ("sep", "cls")))
    return json.loads(tokenizer.to_str())


def _apply(path: Path, settings: Mapping[str, Any], config: dict[str, Any], is_generic: bool) -> None:
    """Changes a pipeline as transformers does, by the settings that its class is made with.

    Args:
      is_generic: whether the class is one that leaves a normalizer as it is.
    """
    keys = {"BertNormalizer": {} if is_generic else _KEYS, "ByteLevel": {"add_prefix_space": "add_prefix_space"}}
    for part in (config.get("normalizer") or {}, config.get("pre_tokenizer") or {}):
        own = keys.get(str(part.get("type")), {})
        part |= {name: settings[key] for name, key in own.items() if key in settings}
    if settings.get("lowers"):
        tokenizer_json.put_lower_case_first(config)
    sides = settings.get("truncation_side"), (config.get("truncation") or {}).get("direction")
    if "left" in map(str.lower, map(str, sides)):
        raise UserError(f"{path}: truncation.direction or truncation_side is 'left', and here ends are cut; {_WAY_OUT}")
    if config["model"].get("dropout"):
        raise UserError(f"{path}: with model.dropout a text has other ids each time; set it to null")
    config |= {"truncation": None, "padding": None}


def _word_piece(config: tokenizer_json.Config, frame: Frame, tokens_in_text: bool) -> WordPiece | None:
    """The quicker `WordPiece`, where it gives the same ids for every text."""
    normalizer, model, tokens = config.get("normalizer") or {}, config["model"], tokenizer_json.tokens(config)
    added = {token["content"]: token for token in config["added_tokens"]}
    same = (
        frame.roles == {**frame.roles, **BERT_ROLES}
        and frame.template == Template(*((tokens.index(token),) for token in ("[CLS]", "[SEP]", "[SEP]")))
        and all(tokens)
        and normalizer == normalizer | _CLEANS
        and normalizer.keys() >= _KEYS.keys()
        and config.get("pre_tokenizer") == {"type": "BertPreTokenizer"}
        and model == model | _OF_BERT
        and set(added) in (set(), set(SPECIAL_TOKENS))
        and not any(token["normalized"] or token["single_word"] for token in added.values())
    )
    if not same:
        return None
    lower_case, strips = normalizer["lowercase"], normalizer["strip_accents"]
    folds = lower_case if strips is None else strips
    vocabulary = WordPiece(tokens, folds, lower_case, tokens_in_text=bool(added) and tokens_in_text)
    vocabulary.pair_template = frame.pair
    return vocabulary
