"""Language models that judge a pair by 'yes' or 'no', as Qwen3-Reranker does (Zhang et al. 2025).

The score is the logit of 'yes' less that of 'no', behind a prefix, a body and a suffix, of which the body is cut. One
row gives it, the difference of the output layer's rows of the two tokens: no other logit is computed.

They are read from folders of a causal language model, alone or with the module LogitScore of sentence-transformers.
"""

import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.template import PairTemplate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.reranker.model import SIGMOIDS, CrossEncoder, activation_of, settings_of, with_parameters
from retrieval.models import known_keys
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.known_keys import ANY
from retrieval.models.rngs import Rngs
from retrieval.models.transformer_config import TransformerConfig
from retrieval.runs.weights.pair_scorer import JoinedRows

_log = logging.getLogger(__name__)

PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TASK = "Given a web search query, retrieve relevant passages that answer the query"
_MARKS = ("<|im_start|>", "<|im_end|>")  # a token each

_SCORE = {"true_token_id": ANY, "false_token_id": ANY, "module_input_name": ("causal_logits",)}
_TRANSFORMER = {
    "transformer_task": ("text-generation",),
    "module_output_name": ("causal_logits",),
    "do_lower_case": (False,),
    **dict.fromkeys(["max_seq_length", "modality_config", "processing_kwargs"], ANY),
}
_DEFAULT = "default_prompt_name"
_ROOM = 8  # tokens of a query and a document at least
# Parts of a chat template: a comment, a statement, and an expression. Of the latter, whose words it puts there.
_PART = re.compile(r"{#.*?#}|{%-?(?P<statement>.*?)-?%}|{{-?(?P<expression>.*?)-?}}", re.DOTALL)
_SET, _ROLE, _TEXT = r"\s*set\s+(\w+)\s*=(.*)", r"""["'](system|query|document)["']""", r"""\s*(["'])(.*)\1\s*"""
_OF_QWEN3 = ("tools", "<|im_start|>", "<think>")  # in the template of Qwen3 itself, which knows nothing of pairs


def is_judge(folder: EncoderFolder) -> bool:
    """Whether a folder is of a causal language model, with what its logits are used for or without."""
    if model_folder.has_modules(folder.path):
        return model_folder.modules(folder.path)[-1].kind == "LogitScore"
    names = files.read_json(folder.files[0]).get("architectures")
    return isinstance(names, list) and any(str(name).endswith("ForCausalLM") for name in names)


@dataclasses.dataclass(frozen=True)
class JudgedRows(JoinedRows):
    """Pairs as rows of at most `length` tokens, of which the body is cut.

    Attributes:
      task: what the document has to do for the query, in English.
    """

    task: str = TASK

    @property
    def pair(self) -> PairTemplate:
        """None: all tokens are of one type."""
        return PairTemplate()

    def begin(self, queries: Sequence[str]) -> list[Any]:
        """What stands before the documents of each query."""
        return [f"<Instruct>: {self.task}\n<Query>: {query}\n<Document>: " for query in queries]

    def of(self, beginnings: Iterable[Any], documents: Sequence[Candidate]) -> list[list[int]]:
        """The row of each document, behind its beginning; a body is tokenised as one text."""
        before, behind = (self.vocabulary.encode(text) for text in (PREFIX, SUFFIX))
        room = max(0, self.length - len(before) - len(behind))
        texts = [" ".join(filter(None, (document.title, document.text))) for document in documents]
        bodies = self.vocabulary.encode_batch([start + text for start, text in zip(beginnings, texts)])
        return [[*before, *body[:room], *behind] for body in bodies]


def opened(
    folder: EncoderFolder, vocabulary: Vocabulary, length: int, field: str
) -> tuple[JudgedRows, Callable[[EncoderFolder, TransformerConfig], CrossEncoder]]:
    """The rows that a folder's language model judges, and what loads it as a cross-encoder of one class.

    Raises:
      UserError: a setting is not understood, an answer is no token, the vocabulary lacks the tokens of the frame, or a
        row has no room for a query and a document.
    """
    yes, no = _of_module(folder) if model_folder.has_modules(folder.path) else map(vocabulary.encode, ("yes", "no"))
    if not (len(yes) == 1 and len(no) <= 1 and 0 <= min(yes + no) <= max(yes + no) < folder.sizes["vocab_size"]):
        raise UserError(f"{folder.path}: the answers of its judgement, 'yes' and 'no', are no tokens that it has")
    own = settings_of(folder, _DEFAULT)
    sigmoid = activation_of(folder, own, SIGMOIDS)
    task = (own.get("prompts") or {}).get(own.get(_DEFAULT)) or TASK
    _check_words(folder, task)
    ids = [vocabulary.encode(mark) for mark in _MARKS]
    if not all(len(each) == 1 and vocabulary.tokens[each[0]] in _MARKS for each in ids):
        needed = f"{' and '.join(_MARKS)}, by which Qwen3-Reranker is asked; take a cross-encoder"
        raise UserError(f"{field}={folder.path}: a language model whose tokens lack {needed}")
    rows = JudgedRows(vocabulary, length, task=task)
    (row,) = rows.of(rows.begin([""]), [Candidate("", "", "")])
    if length < len(row) + _ROOM:
        why = f"{len(row)} tokens stand around a query and a document"
        raise UserError(f"{field}={folder.path}: {why}: set config.rerank.length={len(row) + _ROOM} at least")

    def load(folder: EncoderFolder, config: TransformerConfig) -> CrossEncoder:
        rows_VH = folder.output_layer()
        head = {"classifier": {"kernel": (rows_VH[yes[0]] - (rows_VH[no[0]] if no else 0))[:, None]}}
        model = CrossEncoder(config, 1, sigmoid=sigmoid, rngs=Rngs(0))
        return with_parameters(model, lambda like: {"encoder": folder.encoder(like["encoder"])} | head)

    return rows, load


def _of_module(folder: EncoderFolder) -> tuple[list[int], list[int]]:
    """The ids that LogitScore has, of a folder whose language model is asked as Qwen3-Reranker is."""
    modules, path = model_folder.modules(folder.path), folder.path / model_folder.MODULES
    if (kinds := [module.kind for module in modules]) != ["Transformer", "LogitScore"]:
        raise UserError(f"{path}: {' and '.join(kinds)}, and a Transformer and LogitScore are needed")
    known_keys.read(folder.place / "sentence_bert_config.json", _TRANSFORMER, optional=True)
    score = known_keys.read(path := modules[1].folder / "config.json", _SCORE)
    keys = ["true_token_id", *(["false_token_id"] if "false_token_id" in score else [])]
    yes, *no = (known_keys.whole(path, score, key, least=0) for key in keys)
    return [yes], no


def _check_words(folder: EncoderFolder, task: str) -> None:
    """Checks that a pair is put to the model in the words that are known here, wherever its template stands.

    Raises:
      UserError: its template has others, or it has none and is no Qwen3-Reranker.
    """
    templates, is_alone = dict(_templates(folder.place)), not model_folder.has_modules(folder.path)
    tasks = ("{system}", *([TASK] if task == TASK else []))  # one that the template has itself takes no other
    known = [f"{PREFIX}<Instruct>:{each}<Query>:{{query}}<Document>:{{document}}{SUFFIX}" for each in tasks]
    others = {path: text for path, text in templates.items() if _words(text) not in map(_squeezed, known)}
    are_of_qwen3 = all(mark in text for text in others.values() for mark in _OF_QWEN3)
    if is_alone and folder.family == "qwen3" and are_of_qwen3:
        _log.warning("%s: says nothing of how pairs are judged: it is asked as Qwen3-Reranker is", folder.path)
    elif others:
        why = "a pair is put to it in other words than to Qwen3-Reranker, or by a template that branches"
        raise UserError(f"{next(iter(others))}: {why}; take a cross-encoder for sequence classification")
    elif is_alone and not templates:
        raise UserError(f"{folder.path}: a language model that does not say how it judges a pair; take a cross-encoder")


def _templates(place: Path) -> Iterator[tuple[Path, str]]:
    """The chat templates of a folder, in every place where transformers keeps one."""
    for path in (place / "chat_template.jinja", *sorted(place.glob("additional_chat_templates/*.jinja"))):
        if path.is_file():
            yield path, path.read_text("utf-8", "replace")
    for path in (place / name for name in ("chat_template.json", "processor_config.json", "tokenizer_config.json")):
        record = files.read_json(path) if path.is_file() else {}
        template = record.get("chat_template") if isinstance(record, dict) else None
        for each in template if isinstance(template, list) else [template] if template else []:
            yield path, str(each.get("template") if isinstance(each, dict) else each)


def _words(template: str) -> str:
    """A template without its blanks, {query} where those of the query stand, and {?} where it does something else."""
    names: dict[str, str] = {}

    def words(part: re.Match) -> str:
        statement, expression = part["statement"], part["expression"] or "''"
        if statement:
            if assigned := re.fullmatch(_SET, statement.strip(), re.DOTALL):
                names[assigned[1]] = assigned[2]
            return "" if assigned else "{?}"
        if text := re.fullmatch(_TEXT, expression, re.DOTALL):
            return text[2].replace("\\n", "\n")
        value = names.get(expression.strip(), expression)
        role, long = re.findall(_ROLE, value), re.findall(r"""["']([^"']{20,})["']""", value)
        return f"{{{role[0]}}}" if len(role) == 1 and all(text == TASK for text in long) else "{?}"

    return _squeezed(_PART.sub(words, template))


def _squeezed(text: str) -> str:
    return "".join(text.split())
