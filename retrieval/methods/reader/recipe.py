"""The recipe 'reader': where in the retrieved paragraphs of a question its answer stands (Xiong et al. 2020).

It may train the question tower of its retriever too, from that of the towers which embedded its paragraphs. Paragraphs
keep their embeddings (section 3.4 there; Lee et al. 2019, section 6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.runtime.arrays import reshape_rows
from retrieval.config.fields import values_of
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.reader import task
from retrieval.methods.reader.model_and_loss import ANSWER_TOKENS, SPAN_PAIRS, SPANS, ReaderLoss, SpanReader
from retrieval.models.rngs import Rngs
from retrieval.models.two_tower import full_size
from retrieval.models.warm_start import copy_parameters
from retrieval.recipes.batch_texts import text_of, token_count
from retrieval.recipes.encoder_sizes import size_fields, take_positions
from retrieval.recipes.inference import Inference
from retrieval.recipes.parameters import local_mesh, parameters_of
from retrieval.recipes.recipe import RECIPES, LossAndMetrics, Recipe, recipe_of
from retrieval.recipes.towers import build_towers, query_tokens
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import trained_run
from retrieval.search.encoding import encode_rows
from retrieval.training.candidates import inner_products

_KEY = 3  # of the question tower's dropout, beside the reader's
# A batch cuts rows, spans and scores to its own room for them.
_WRITTEN_WITH = ("data.query_length", "data.document_length", "spans.depth")
_HEAD = ("embed_dim", "embed_norm", "head", "pooling", "normalize", "token_types", "pool_from", "truncate_dim")


class ReaderRecipe(Recipe):
    """A question and a paragraph are one row of at most `data.document_length` tokens.

    The question has `data.query_length` of them at most; the paragraph is cut to the rest.
    """

    kind = task.ANSWERED
    label = "a reader"
    outputs = (SPANS, SPAN_PAIRS)
    options = ("data.paragraphs",)
    examples_of = "spans"

    @property
    def reader_loss(self) -> ReaderLoss:
        """The loss that `train.loss` names."""
        assert isinstance(self.loss, ReaderLoss), "`check` refuses others"
        return self.loss

    @property
    def retrieves(self) -> bool:
        """Whether the question tower of the retriever is trained too."""
        return self.config.train.early and bool(self.loss and "train.early" in self.loss.options())

    def build(self, vocab_size: int) -> SpanReader:
        """A Transformer with the heads that the loss compares."""
        self.check()
        loss, retriever = self.reader_loss, None
        if self.retrieves:  # a tower of the same sizes, with positions for questions
            own = self.config.copy_and_resolve_references()
            own.data.document_length, own.model.positions, own.model.tied = own.data.query_length, 0, True
            retriever = build_towers(own, vocab_size)
        widths = ANSWER_TOKENS if loss.inputs == SPAN_PAIRS else 0
        heads: dict[str, Any] = {"widths": widths, "selects": loss.selects, "retriever": retriever}
        return SpanReader(self.sizes(vocab_size), **heads, rngs=Rngs(self.config.seed))

    def check(self) -> None:
        """As `Recipe.check`; rows have room for a paragraph, and as many paragraphs are kept as are read."""
        super().check()
        config, data = self.config, self.config.data
        if data.document_length < 2 * data.query_length:
            why = f"the question of config.data.query_length={data.query_length} leaves less than half of a row"
            raise UserError(f"config.data.document_length={data.document_length}: {why}: raise the first")
        read = {"depth": ("data.paragraphs", data.paragraphs)}
        read |= {"early": ("spans.depth", config.spans.depth)} if self.retrieves else {}
        for name, (field, least) in read.items():
            if config.spans[name] < least:
                more = f"training reads more of a question, config.{field}={least}"
                raise UserError(f"config.spans.{name}={config.spans[name]}: {more}: lower that, or raise the first")

    def start_from(self, model: Any, trained: nnx.Module) -> None:
        """As `Recipe.start_from`; of another reader, what both have."""
        if isinstance(trained, SpanReader):
            copy_parameters(trained, model, shared=True)
        else:
            super().start_from(model, trained)

    def check_run(self, run: Run) -> None:
        """As `Recipe.check_run`: the examples, the question tower, and the candidates that it is trained with."""
        config, spans = self.config, run.owner("spans")
        theirs, ours = (values_of(each, _WRITTEN_WITH) for each in (spans.config, config))
        _check_same(f"the spans of {spans.display_path} were written with", theirs, ours)
        if not self.retrieves:
            return
        towers = towers_of(run)
        check_towers(towers, "config.train.early=True")
        theirs, ours = tower_fields(towers.config), tower_fields(config)
        _check_same(f"the question tower of {towers.display_path} has", theirs, ours)
        most, least = spans.config.spans.early, towers.config.data.query_length
        if config.spans.early > most:
            what = f"{spans.display_path} keeps {most} candidates"
            raise UserError(f"config.spans.early={config.spans.early}: {what}: set that at most")
        if config.data.query_length < least:
            what = f"the question tower of {towers.display_path} takes {least} tokens"
            raise UserError(f"config.data.query_length={config.data.query_length}: {what}: set that at least")

    def begin(self, run: Run, model: SpanReader) -> None:
        """As `Recipe.begin`: the question tower that the paragraphs were retrieved with."""
        if self.retrieves:
            towers = towers_of(run)
            trained_run.check_vocabulary(run, towers.folder, "config.base")
            _, trained = trained_run.load_parameters(towers.folder, len(run.load_vocabulary()), run.config.mesh)
            take_positions(trained, run.config.data.query_length)
            copy_parameters(trained.query_tower, model.retriever.query_tower)

    def lengths(self, positives: int = 0) -> dict[str, int]:
        """Rows are as long as documents."""
        data, spans = self.config.data, self.config.spans
        lengths = {"pair": data.document_length, "paragraph": data.paragraphs, "spans": task.MOST}
        lengths["retrieved"] = spans.depth
        of_tower = {"question": data.query_length, "candidates": spans.early, "holds": spans.early}
        return lengths | (of_tower if self.retrieves else {})

    @property
    def tables(self) -> dict[str, tuple[str, int]]:
        """The embeddings of candidates."""
        model = self.config.model
        size = model.truncate_dim or full_size(model.embed_dim, model.head, model.hidden_size)
        return {"embedding": ("candidates", size)} if self.retrieves else {}

    def loss_of(self, model: SpanReader, batch: Mapping[str, jax.Array], key: jax.Array) -> LossAndMetrics:
        """The loss that the config names, of all rows of a batch."""
        B, K = batch["paragraph"].shape
        scores = model(text_of(batch, "pair"), key)
        scores = {name: reshape_rows(values, B, K, *values.shape[1:]) for name, values in scores.items()}
        if self.retrieves:
            question_BE = model.retriever.encode_query(text_of(batch, "question"), jax.random.fold_in(key, _KEY))
            scores["retriever"] = inner_products(question_BE, batch["embedding"])
        loss_B, metrics = self.reader_loss(scores, batch)
        return loss_B, metrics | {"tokens": token_count(batch["pair"], B)}


RECIPES.register("reader", ReaderRecipe)


def towers_of(run: Run) -> Run:
    """The run with the towers that embedded the paragraphs of a reader's run: the base of the stage `spans`."""
    return run.owner("spans").as_seen_by("spans").owner("train")


def check_towers(towers: Run, field: str) -> None:
    """Checks that a run has two towers whose paragraphs are one embedding each."""
    if not towers.lists("train") or not recipe_of(towers.config).has_towers:
        why = f"takes the question tower of config.base, and {towers.display_path} has no towers"
        raise UserError(f"{field} {why}: name a run that has, such as one of configs/proqa.py")


def tower_fields(config: ConfigDict) -> dict[str, object]:
    """The fields on which it depends whether a question tower suits a reader."""
    return size_fields(config) | {f"model.{name}": config.model.get(name) for name in _HEAD}


def _check_same(what: str, theirs: Mapping[str, object], ours: Mapping[str, object]) -> None:
    """Checks that fields have the values that something was made with."""
    for field, value in ours.items():
        if value != theirs[field]:
            way = "set it to that, put 'spans' before 'train', or take another config.base"
            raise UserError(f"config.{field}={value}: {what} {theirs[field]}: {way}")


def embedded(
    model: SpanReader, towers: ConfigDict, own: ConfigDict, vocabulary: Vocabulary, texts: Sequence[str]
) -> np.ndarray:
    """Questions to embeddings [Q, E] by the question tower of a reader, on this host's devices.

    Args:
      towers: the config of the towers that it is from: they say how a question is tokenised.
      own: the config of the reader.
    """
    mesh = local_mesh(own)
    inference = Inference(own, model, vocabulary.sep_id, mesh)
    embed = inference.compiled(lambda reader, text: reader.retriever.encode_query(text, None))(parameters_of(model))
    tokens = query_tokens(towers, vocabulary, texts)
    return encode_rows(tokens, embed, own.encode.batch_tokens, towers.data.query_length, mesh.size)
