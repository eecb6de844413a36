"""The stage `weigh`: how much each word of a passage counts, by a trained DeepCT, for the index `deepct`."""

import functools
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from retrieval.common.runtime import devices
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.prefixes import cut, rows_of
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, Vocabulary
from retrieval.methods.deepct.recipe import DeepCT
from retrieval.recipes.inference import Inference
from retrieval.recipes.parameters import local_mesh, parameters_of
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.ranking import passage_lines
from retrieval.runs.ranking.collection import collections, of_pairs
from retrieval.runs.ranking.passage_lines import Lines
from retrieval.runs.weights.trained_model import check_kind, open_trained
from retrieval.search.text_batches import batches
from retrieval.search.words import paired

FOLDER = "term_weights"
_GOES_ON = "##"
_BATCH = 64  # passages, rounded up to whole devices
_SCALE = 100  # a word of weight 1 counts so many times
KEPT, WITHOUT = "words kept", "passages without a word"


def weigh(run: Run) -> dict[str, Any]:
    """Writes `term_weights/NAME.jsonl` for every collection; returns the counts of each."""
    weigher = functools.cache(lambda: TermWeigher(*open_trained(run)))  # none where all is weighed

    def make(passages: Sequence[Candidate]) -> Lines:
        frequencies, long = weigher().weigh(passages), weigher().cut(passages)
        records = ({"_id": passage.id, "frequencies": words} for passage, words in zip(passages, frequencies))
        counts = {KEPT: sum(map(len, frequencies)), WITHOUT: sum(not words for words in frequencies)}
        counts[passage_lines.LONG] = long
        return Lines([json.dumps(record, ensure_ascii=False) + "\n" for record in records], Counter(counts))

    return passage_lines.write_all(run.folder / FOLDER, collections(run), run.config.encode.shard_size, make)


class TermWeigher:
    """Passages to the frequencies of their words, on this host's devices."""

    def __init__(self, config: ConfigDict, vocabulary: Vocabulary, model: DeepCT):
        """Args are the config that the model was trained with, and its vocabulary."""
        mesh = local_mesh(config)
        self._length, self._vocabulary = config.data.document_length, vocabulary
        self._rows = -(-_BATCH // mesh.size) * mesh.size
        inference = Inference(config, model, vocabulary.sep_id, mesh)
        self._weigh = inference.compiled(lambda model, text: model(text, None))(parameters_of(model))

    def cut(self, passages: Sequence[Candidate]) -> int:
        """How many passages are longer than the model reads: words behind that get no weight."""
        return cut(self._vocabulary, passages, self._length)

    def weigh(self, passages: Sequence[Candidate]) -> list[dict[str, int]]:
        """The frequencies of each passage's words, for `Bm25Index.from_frequencies`."""
        rows = rows_of(self._vocabulary, passages, self._length)
        frequencies: list[dict[str, int]] = [{} for _ in passages]
        for places, ids_RL in batches(rows, lambda _: self._rows, self._length):
            for place, weights_L in zip(places, self._weigh(ids_RL)):
                pieces = [self._vocabulary.tokens[id] for id in rows[place]]
                frequencies[place] = term_frequencies(pieces, weights_L[: len(pieces)].tolist())
        return frequencies


def term_frequencies(pieces: Sequence[str], weights: Sequence[float], scale: int = _SCALE) -> dict[str, int]:
    """What a model said of a passage as term frequencies of an index: round(scale * weight) of each word (equation 4).

    A word that comes again has its greatest weight. Words that round to 0 or less are left out. The authors' program
    rounds nothing up to 1; their paper does.

    Args:
      weights: of each piece; of those with ## they are not looked at.
    """
    frequencies: dict[str, int] = {}
    parts = list(itertools.accumulate(piece in SPECIAL_TOKENS for piece in pieces))
    for _, part in itertools.groupby(words(pieces), lambda word: parts[word[0]]):
        for word, weight in paired((word, max(weights[place], 0.0)) for place, word in part):
            frequency = round(scale * weight)
            if frequency > frequencies.get(word, 0):
                frequencies[word] = frequency
    return frequencies


def words(pieces: Sequence[str]) -> list[tuple[int, str]]:
    """The words that pieces make, each after the place of its first piece; special tokens are none.

    A word cut off at the end of a passage is what is left of it. One that the vocabulary has no pieces for is left out.
    """
    whole: list[tuple[int, str]] = []
    in_word = False
    for place, piece in enumerate(pieces):
        if not piece.startswith(_GOES_ON):
            in_word = piece not in SPECIAL_TOKENS
            if in_word:
                whole.append((place, piece))
        elif in_word:
            whole[-1] = (whole[-1][0], whole[-1][1] + piece.removeprefix(_GOES_ON))
    return whole


def check(run: Run) -> None:
    """Checks that the model weighs words."""
    check_kind(run, "terms", "stage 'weigh' needs a model that weighs words", "deepct")


STAGES.register(
    "weigh",
    Stage(
        weigh,
        check=(check, Run.check_vocabulary, devices.check),
        fields=("encode.corpus", "encode.shard_size"),
        reads=lambda config: ("prepare", "sets", "train", *of_pairs(config)),
        files=Run.vocabulary_inputs,
        writes=(FOLDER,),
        on_every_host=True,
    ),
)
