"""Fine-tuning on few labelled pairs, tested on every one of them: five models, each on the fifth it was not trained on.

    python -m retrieval.study --config=configs/studies/folds.py:MODEL --workdir=runs/folds --config.base=runs/own \\
        --config.labelled=DATA/pairs.jsonl

Of fewer than about 100 questions a single fifth is too few to tell anything. MODEL is what `own:pairs:MODEL` takes, and
`base` the run over the documents. `runs/folds/study.md` has the model before and after, over all questions, and the
interval of their difference. It is about the training, not about one model: train the one to keep with `own:pairs`.
"""

import tempfile
from pathlib import Path

from ml_collections import ConfigDict

from configs import own
from retrieval.common.errors import UserError
from retrieval.config.fields import values_of
from retrieval.data.sets.set_format import SETS, Context
from retrieval.runs.pipeline.run import Run
from retrieval.studies.claims import Cell, Claim, Report, Row, Table

FOLDS = 5
METRICS = ("Success@1", "Success@5", "Success@10", "RR")


def get_config(model: str = "") -> ConfigDict:
    """The table of runs; `complete` adds what the labelled file decides.

    Args:
      model: as `own:pairs` takes it; '' for the one that it starts from by itself.
    """
    study = ConfigDict({"base": "", "labelled": "", "runs": {}, "report": None})
    tuned = own.get_config(f"pairs:{model}" if model else "pairs")
    tuned.encode.corpus = False
    tuned.evaluate.metrics = METRICS
    tuned.loop.update(checkpoint_every=50)
    for number in range(FOLDS + 1):
        name = f"fold-{number}" if number else "start"
        study.runs[name] = run = tuned.copy_and_resolve_references()
        run.base, run.sets.labelled = study.get_ref("base"), study.get_ref("labelled")
        last = ("encode", "index", "evaluate")
        run.stages = ("sets", "pairs", "train", *last) if number else ("sets", "adopt", *last)
        run.encode.start = False  # which the first run has
        run.split.update(set="", fold=f"{number}/{FOLDS}" if number else "")
    return study


def complete(study: ConfigDict) -> None:
    """Sets what is divided, and what is shown of it.

    Raises:
      UserError: the base or the labelled file is missing, or is none.
    """
    for field in ("base", "labelled"):
        if not study[field] or not Path(study[field]).exists():
            raise UserError(f"config.{field}={study[field]}: no such path; name the run of --config=own and the pairs")
    config = study.runs["start"]
    form, base = SETS["labelled"], Run.opened(study.base, "config.base", Path())
    options = values_of(config, form.options)
    form.check(study.labelled, options, base.prepares)
    with tempfile.TemporaryDirectory() as folder:
        value = next(form.read(study.labelled, Context(options, base.corpus, Path(folder))))
    for number in range(1, FOLDS + 1):
        study.runs[f"fold-{number}"].split.set = value.name
    study.report = _report(value.name, next(iter(value.qrels)), len(value.queries), *value.notes)


def _report(dataset: str, rule: str, questions: int, note: str) -> Report:
    before = Cell(("start",), "dense", dataset, rule, "")
    after = Cell(tuple(f"fold-{number}" for number in range(1, FOLDS + 1)), "dense", dataset, rule, "", pooled=True)
    shown = [("BM25", before.at(system="bm25")), ("the model before", before), ("fine-tuned", after)]
    shown += [("hybrid, before", before.at(system="hybrid")), ("hybrid, fine-tuned", after.at(system="hybrid"))]
    rows = [Row([label], cell.each(metric=METRICS)) for label, cell in shown]
    pairs = {"fine-tuning beats the model before": before, "fine-tuning beats BM25": before.at(system="bm25")}
    claims = [Claim(text, after.at(metric="RR"), other.at(metric="RR")) for text, other in pairs.items()]
    notes = f"{questions} questions, each tested by one of {FOLDS} models, which was trained without it. {note}"
    return Report(f"Fine-tuning on {dataset}, by folds", notes, [Table("What is found", ["", *METRICS], rows)], claims)
