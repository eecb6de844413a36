"""The stage `inspect`: what training is about to read. What is likely to be a mistake is told in the log, too."""

import itertools
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval import files
from retrieval.config.fields import Field, declare, whole
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets import beir, splits
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.evaluation import display
from retrieval.pipeline import records
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.stage_outputs import Run
from retrieval.stages import findings, labelled_groups
from retrieval.stages.collection import CORPUS, open_collection, set_names
from retrieval.stages.findings import Finding, cut_off

_log = logging.getLogger(__name__)

_NAME = "inspect.json"

declare(
    "inspect",
    texts=Field(20_000, whole(1), "passages and labelled queries that --stage=inspect looks at, the first", was=20_000),
)


def inspect(run: Run) -> list[dict[str, Any]]:
    """Prints a table of what was found, logs its warnings, and writes `inspect.json`.

    Raises:
      UserError: there is nothing to look at.
    """
    config, most = run.config, run.config.inspect.texts
    vocabulary = run.load_vocabulary() if run.vocabulary else None
    texts = list(itertools.islice(open_collection(run, CORPUS).candidates(), most)) if run.passages else []
    is_labelled = bool(source_paths.split(config.pairs.files)) or run.training.exists()
    examples = _examples(lambda folder: labelled_groups.opened(run, folder), most) if is_labelled else []
    if not (texts or examples):
        raise UserError(f"--stage=inspect: {run.place} has neither a prepared corpus nor labelled examples to look at")
    lengths = config.data.query_length, config.data.document_length
    sets = [run.sets / name for name in set_names(run.sets)]
    statistics = records.details(run, "prepare") if run.prepares else None
    noted = [
        *findings.of_corpus(statistics, texts, lengths[1], vocabulary, config.seed),
        *(findings.of_labelled(examples, lengths, vocabulary) if examples else ()),
        *itertools.chain.from_iterable(_set(folder, examples, lengths[0], vocabulary) for folder in sets),
    ]
    header = ["about", "what", "number", "of", "%", ""]
    print(display.markdown(header, [_row(finding) for finding in noted], left=2))
    findings.warn("inspect", noted)
    rows = [finding._asdict() for finding in noted]
    files.write_json(run.folder / _NAME, rows)
    return rows


def _examples(opened: Callable[[Path], Any], most: int) -> list[Example]:
    """The first labelled queries, each with its positives and negatives."""
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as (groups, _):
        return list(itertools.islice(groups, most))


def _set(
    folder: Path, examples: Sequence[Example], query_length: int, vocabulary: Vocabulary | None
) -> Iterator[Finding]:
    """What an evaluation set has in common with the labelled examples, and how many of its queries are cut."""
    about = f"set {folder.name}"
    value = beir.read_judged(folder)
    queries = list(value.queries.values())
    if vocabulary:
        yield from cut_off(f"{about}, queries", queries, query_length, vocabulary)
    if not examples:
        return
    trained = {splits.wording(example.query) for example in examples}
    asked = sum(splits.wording(query) in trained for query in queries)
    yield Finding(about, "queries that are trained on", asked, len(queries), asked > 0)
    relevant = {id for qrels in value.qrels.values() for grades in qrels.values() for id, g in grades.items() if g > 0}
    positives = {grouping.digest(text) for example in examples for text in example.positives}
    candidates = beir.read_candidates(folder / "corpus.jsonl")
    known = sum(text.id in relevant and grouping.digest(text) in positives for text in candidates)
    yield Finding(about, "relevant passages that are positives of training", known, len(relevant))


def _row(finding: Finding) -> list[Any]:
    share = f"{100 * finding.count / finding.of:.1f}" if finding.of else ""
    warning = "look" if finding.is_warning else ""
    return [finding.about, finding.what, finding.count, finding.of if finding.of is not None else "", share, warning]


STAGES.register(
    "inspect",
    Stage(
        inspect,
        reads="passages, labelled examples, evaluation sets",
        writes="`inspect.json`; prints what training is about to read, and warns of likely mistakes",
        uses=("inspect", "seed", "data", "pairs", "split"),
        needs=("prepare", "sets"),
        wants=("mine", "pairs"),
        inputs=lambda run: [*labelled_groups.inputs(run.config), *run.vocabulary_inputs()],
        leaves=(_NAME,),
        always=True,
    ),
)
