"""The stage `generate`: passages to queries that they may answer, by a model of this project or a published one."""

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.config.fields import of_fields
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError, unknown_name
from retrieval.evaluation.exact_match import normalised
from retrieval.methods.reader import readers
from retrieval.methods.reranker import rerankers
from retrieval.methods.writer import published_writer, writer
from retrieval.methods.writer.answer_maker import MAKERS, chosen
from retrieval.methods.writer.answer_proposer import PROPOSER, AnswerProposer
from retrieval.methods.writer.expansions import Expansion, to_line
from retrieval.methods.writer.judges import READER, RERANKER, AnswerJudge, QueryJudge
from retrieval.methods.writer.model import EncoderDecoder
from retrieval.methods.writer.published_writer import PublishedWriter
from retrieval.methods.writer.writer import Decoding, Writer, WrittenText
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.recipes.trained_model import Trained, check_kind, open_trained
from retrieval.runtime import hub, platforms
from retrieval.stage_outputs import Run
from retrieval.stages import passage_lines
from retrieval.stages.collection import GENERATED, Collection, collections, of_pairs, train_unless
from retrieval.stages.passage_lines import Lines

_log = logging.getLogger(__name__)

# What is counted of the texts that were written.
WRITTEN, KEPT, EMPTY, DUPLICATES, CUT = (
    "texts",
    "kept",
    "left out: empty",
    "left out: the passage has the same",
    "kept, but cut at config.generate.tokens",
)

# The same of questions: why an answer gets none, and why one is left out.
PROPOSED, SHORT, TOLD, LOST = (
    "answers proposed",
    "passages left out: too few words",
    "left out: the question has the answer",
    "left out: the reader finds another answer",
)

# From passages to what is written of each.
Write = Callable[[Sequence[Candidate]], list[list[WrittenText]]]


class Found(NamedTuple):
    """What was kept, each text with its passage; what was counted; and which of the texts were cut."""

    kept: Sequence[tuple[Candidate, Expansion]]
    counts: Counter
    cut: Sequence[bool]


class Judges(NamedTuple):
    """What looks at the texts: questions or queries and their passages to answers, and to scores [P]; None for none."""

    answers: Callable[[Sequence[str], Sequence[Candidate]], list[str]] | None = None
    scores: Callable[[Sequence[str], Sequence[Candidate]], np.ndarray] | None = None


def generate(run: Run) -> dict[str, Any]:
    """Writes `generated/NAME.jsonl` for every collection; returns the counts of each."""
    config, fields = run.config, run.config.generate

    @functools.cache
    def writer_of_run() -> Writer | PublishedWriter:  # none where all is written
        if fields.model:
            return PublishedWriter(hub.path(fields.model), _decoding(fields, config.seed), config.data.document_length)
        return _writer(open_trained(run), fields, config.seed)

    def write(passages: Sequence[Candidate]) -> list[list[WrittenText]]:
        return writer_of_run().write(passages)

    @functools.cache
    def judges() -> Judges:
        reader, reranker = fields.reader, fields.reranker
        return Judges(
            AnswerJudge(run, reader).answers if reader else None,
            QueryJudge(run, reranker).scores if reranker else None,
        )

    @functools.cache
    def proposer() -> AnswerProposer | None:
        return AnswerProposer(run, fields.proposer) if fields.proposer else None

    def make(passages: Sequence[Candidate]) -> Lines:
        if fields.answers:
            found = _questions(passages, write, fields, config.seed, proposer())
        else:
            found = _queries(passages, write)
        found.counts[passage_lines.LONG] = writer_of_run().cut(passages)
        return _judged(found, judges())

    chosen = list(_chosen(collections(run), fields.collections))
    written = passage_lines.write_all(run.folder / GENERATED, chosen, fields.shard_size, make)
    for name, counts in written.items():
        left_out = ", ".join(
            f"{what} {counts[what]:,}"
            for what in (passage_lines.LONG, SHORT, TOLD, LOST, EMPTY, DUPLICATES, CUT)
            if what in counts
        )
        _log.info("%s: %d queries of %d passages; %s", name, counts[KEPT], counts["passages"], left_out)
    return written


def _queries(passages: Sequence[Candidate], write: Write) -> Found:
    """The texts that are kept."""
    counts = Counter(dict.fromkeys((WRITTEN, KEPT, EMPTY, DUPLICATES, CUT), 0))
    written = ((passage, text, None) for passage, texts in zip(passages, write(passages)) for text in texts)
    return _kept(written, str, counts)


def _questions(
    passages: Sequence[Candidate], write: Write, fields: ConfigDict, seed: int, proposer: AnswerProposer | None = None
) -> Found:
    """The questions that are kept, each written of an answer and its passage.

    ProQA's filters leave out passages of few words, and questions that have their answer in them.
    """
    kinds = (PROPOSED, SHORT, TOLD, WRITTEN, KEPT, EMPTY, DUPLICATES, CUT)
    counts = Counter(dict.fromkeys(kinds, 0))
    long = [passage for passage in passages if len(passage.text.split()) >= fields.least_words]
    counts[SHORT] = len(passages) - len(long)
    spans = MAKERS[fields.answers].spans([passage.text for passage in long])
    proposed = proposer.spans(long) if proposer else itertools.repeat(())
    asked = [
        (passage, answer)
        for passage, found, best in zip(long, spans, proposed)
        for answer in chosen(passage.text, found, fields.queries, seed, best)
    ]
    counts[PROPOSED] = len(asked)
    sources = [Candidate(f"{passage.id}\0{answer}", answer, passage.text) for passage, answer in asked]
    written = ((passage, text, answer) for (passage, answer), (text, *_) in zip(asked, write(sources)))
    return _kept(written, normalised, counts)


def _kept(
    written: Iterable[tuple[Candidate, WrittenText, str | None]], key_of: Callable[[str], str], counts: Counter
) -> Found:
    """The texts that are kept, of passages, texts and the answers of questions; `key_of` gives equal ones the same."""
    kept, cut, seen = [], [], set()
    for passage, text, answer in written:
        key = passage.id, key_of(text.text)
        told = answer is not None and normalised(answer) in key[1]
        counts[WRITTEN] += 1
        if why := EMPTY if not key[1] else DUPLICATES if key in seen else TOLD if told else "":
            counts[why] += 1
            continue
        seen.add(key)
        counts[KEPT] += 1
        cut.append(text.is_cut)
        kept.append((passage, Expansion(passage.id, text.text, text.log_probability, answer or "")))
    return Found(kept, counts, cut)


def _judged(found: Found, judges: Judges) -> Lines:
    """A line for each text that its judges keep."""
    kept, cut, counts = list(found.kept), list(found.cut), found.counts
    if judges.answers:
        answers = judges.answers([text.text for _, text in kept], [passage for passage, _ in kept])
        right = [normalised(answer) == normalised(text.answer) for answer, (_, text) in zip(answers, kept)]
        counts[LOST] = len(kept) - sum(right)
        counts[KEPT] -= counts[LOST]
        kept, cut = list(itertools.compress(kept, right)), list(itertools.compress(cut, right))
    counts[CUT] = sum(cut)
    scores: Sequence[float | None] = [None] * len(kept)
    if judges.scores:
        scores = judges.scores([text.text for _, text in kept], [passage for passage, _ in kept]).tolist()
    return Lines([to_line(text._replace(score=score)) for (_, text), score in zip(kept, scores)], counts)


def _writer(trained: Trained, fields: ConfigDict, seed: int) -> Writer:
    """What writes with a trained model, as `config.generate` says."""
    assert isinstance(trained.model, EncoderDecoder), "`check` refuses others"
    decoding = _decoding(fields, seed, trained.config.data.query_length - 1)
    return Writer(*trained, decoding, fields.batch_size)


def _decoding(fields: ConfigDict, seed: int, most: int = published_writer.TOKENS) -> Decoding:
    """How `config.generate` has queries written: of `most` tokens, where it does not say."""
    more = {name: fields[name] for name in ("beams", "length_penalty", "top_k", "temperature")}
    texts = 1 if fields.answers else fields.queries
    return Decoding(fields.way, texts, fields.tokens or most, **more, seed=seed)


def _chosen(collections_there: Sequence[Collection], names: Sequence[str]) -> Iterator[Collection]:
    """The collections of these names, or all.

    Raises:
      UserError: there is no such collection.
    """
    known = {item.name: item for item in collections_there}
    for name in names or known:
        if name not in known:
            raise unknown_name("collection in config.generate.collections", name, known)
        yield known[name]


def check_settings(generate: ConfigDict, seed: int) -> None:
    """Checks how queries are to be written, by the group `generate` of the config.

    Raises:
      UserError: the settings do not fit each other.
    """
    writer.check(_decoding(generate, seed))
    for field in ("reader", "proposer"):
        if (value := generate[field]) and not generate.answers:
            raise UserError(
                f"config.generate.{field}={value} is for the answers of questions, and queries have none: set "
                f"config.generate.answers, such as rules, or config.generate.{field}=''"
            )


def check(run: Run) -> None:
    """Checks that the model writes, and queries as long as those that are asked for.

    Raises:
      UserError: it does not, or what proposes answers is not installed.
    """
    if name := run.config.generate.answers:
        MAKERS[name].check()
    if name := run.config.generate.reader:
        readers.check(run, name, READER)
    if name := run.config.generate.proposer:
        readers.check(run, name, PROPOSER, asked=False)
    if name := run.config.generate.reranker:
        rerankers.check(run, name, RERANKER)
    if folder := run.config.generate.model:
        published_writer.check(hub.path(folder), _decoding(run.config.generate, run.config.seed).tokens)
        return
    run.check_vocabulary()
    check_kind(run, "generation", "stage 'generate' needs a model that writes", "seq2seq")
    trained = run.holder("train").config
    for name in ("query_length", "document_length"):
        if run.config.data[name] != trained.data[name]:
            raise UserError(
                f"config.data.{name}={run.config.data[name]}: the model of {run.holder('train').place} writes with "
                f"{trained.data[name]}, with which it was trained; set that"
            )
    most = trained.data.query_length - 1
    if run.config.generate.tokens > most:
        raise UserError(
            f"config.generate.tokens={run.config.generate.tokens}: the model has positions for {most}, "
            f"config.data.query_length={trained.data.query_length} without the start: ask for {most} at most, or train "
            "with longer queries"
        )


def fetch(run: Run) -> None:
    """Copies down the models that propose answers and judge queries, where these are on a store."""
    fields = run.config.generate
    readers.KIND.fetch(run, fields.reader, READER)
    readers.KIND.fetch(run, fields.proposer, PROPOSER)
    rerankers.KIND.fetch(run, fields.reranker, RERANKER)


def inputs(model: str, vocabulary: Callable[[], Sequence[Path]]) -> Sequence[Path]:
    """The files of the published model; without one those of the vocabulary."""
    return published_writer.inputs(hub.path(model)) if model else vocabulary()


STAGES.register(
    "generate",
    Stage(
        generate,
        check_config=(of_fields(check_settings, "generate", "seed"),),
        check=(
            check,
            platforms.check,
        ),
        fields=("seed", "generate", "encode.corpus", "data.query_length", "data.document_length", "model.dtype"),
        uses=("encode.batch_tokens",),
        reads=lambda config: ("prepare", "sets", *of_pairs(config), *train_unless(config.generate.model)),
        files=lambda run: [
            *inputs(run.config.generate.model, run.vocabulary_inputs),
            *readers.KIND.inputs(run, run.config.generate.reader, READER),
            *readers.KIND.inputs(run, run.config.generate.proposer, PROPOSER),
            *rerankers.inputs(run, run.config.generate.reranker, RERANKER),
        ],
        fetch=fetch,
        writes=(GENERATED,),
        everywhere=True,
    ),
)
