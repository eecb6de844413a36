"""Where models stand: nDCG@10, recall@100 and MRR@10 on evaluation sets, with intervals, beside BM25.

    retrieval benchmark hf:sentence-transformers/all-MiniLM-L6-v2 --sets=nanobeir --workdir=runs/standing
    retrieval benchmark MODEL OTHER --sets=DATA/beir --workdir=runs/standing
    retrieval benchmark MODEL --sets=DATA/nfcorpus --workdir=runs/standing --card

A model is a folder, hf:NAME, or the work directory of a run. A set is a BEIR folder, a folder of such folders, a folder
or a data set of the hub (hf:NAME) with Parquet, or nanobeir, which is hf:sentence-transformers/NanoBEIR-en. Every model
is a run in its folder below --workdir; called again, what is done is not done anew. Further models are tested against
the first, and one alone against BM25. With --card what each model's card says is measured again, and the command ends
with 1 where a value differs. Fields of a config can be set, as in --config.data.query_prefix="query: ".
"""

import argparse
import contextlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging as absl_logging

from retrieval import cli
from retrieval.errors import UserError, no_path
from retrieval.runtime import hub

NAME = "benchmark"  # of the command, of its config, and of the files that it writes
NANOBEIR = "nanobeir"
_ON_THE_HUB = "hf:sentence-transformers/NanoBEIR-en"
_FIELD = re.compile(r"--config\.([\w.]+)=(.*)", re.DOTALL)
_TEST = "test"
_DEPTH = 100  # results of a query, where no metric needs more


def main(argv: Sequence[str]) -> int:
    """Evaluates the models, prints the tables and writes them; returns 1 where a card differs."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    fields = {match[1]: match[2] for word in argv[1:] if (match := _FIELD.fullmatch(word))}
    asked = _parser().parse_intermixed_args([word for word in argv[1:] if not _FIELD.fullmatch(word)])
    names, workdir = _names(asked.models), Path(asked.workdir)
    metrics = [name for name in asked.metrics.split(",") if name]
    if not metrics:
        raise UserError("--metrics is empty: name one or more, such as nDCG@10,R@100, or leave it out")
    fields = _of_sets(asked.sets) | _of_metrics(metrics) | fields
    from retrieval import files
    from retrieval.api.finished_run import run
    from retrieval.evaluation import card_results
    from retrieval.runtime import model_folder
    from retrieval.studies import card_check, over_sets, run_comparison

    cards = [card_results.read(hub.path(model) / model_folder.CARD) for model in asked.models] if asked.card else []
    for model, name in zip(asked.models, names):
        try:
            with contextlib.redirect_stdout(sys.stderr):  # the tables alone are the output
                run(f"{NAME}:{model}", workdir / name, fields)
        except UserError:
            raise SystemExit(2) from None  # the run's log has said what is wrong
    runs = [run_comparison.read_run(str(workdir / name), name) for name in names]
    found = over_sets.standings(runs, metrics)
    shown = [f"# {' beside '.join(names)}", *over_sets.tables(found, metrics)]
    towers = found[-len(runs) :]
    for one, other in [(each, towers[0]) for each in towers[1:]] or [(towers[0], each) for each in found[:-1]]:
        rows = over_sets.comparison(one, other, metrics[0])
        shown += over_sets.comparison_table(one.name, other.name, metrics[0], rows)
    beyond = 0
    for finished, results, of_model in zip(runs, cards, towers):
        check = card_check.check(results, of_model, over_sets.rules_of(finished))
        shown += card_check.tables(of_model.name, check, asked.tolerance)
        beyond += len(check.beyond(asked.tolerance))
    text = "\n\n".join(shown) + "\n"
    files.write_text(workdir / f"{NAME}.md", text)
    files.write_json(workdir / f"{NAME}.json", {each.name: over_sets.named_values(each) for each in found})
    print(text, end="")
    return 1 if beyond else 0


def _names(models: Sequence[str]) -> list[str]:
    """The folder of each model below the work directory: the last part of its name, or all of it.

    Raises:
      UserError: one is there twice.
    """
    parts = [model.removeprefix(hub.PREFIX).partition("@")[0].rstrip("/") for model in models]
    last = [re.sub(r"[^\w.-]", "-", part.rpartition("/")[2]) for part in parts]
    names = last if len(set(last)) == len(last) else [re.sub(r"[^\w.-]", "-", part).strip("-") for part in parts]
    if twice := next((model for place, model in enumerate(models) if names[place] in names[:place]), None):
        raise UserError(f"the model {twice} is there twice; leave one out")
    return names


def _of_metrics(metrics: Sequence[str]) -> dict[str, Any]:
    cutoffs = [int(cut) for name in metrics if (cut := name.partition("@")[2]).isdecimal()]
    return {"evaluate.metrics": repr(tuple(metrics)), "evaluate.depth": max([_DEPTH, *cutoffs])}


def _of_sets(value: str) -> dict[str, str]:
    """The fields that name the sets.

    Raises:
      UserError: one is none.
    """
    kinds: Mapping[str, list[str]] = {"beir": [], "parquet": []}
    for source in filter(None, value.split(",")):
        if source == NANOBEIR or hub.is_name(source):
            kinds["parquet"].append(_ON_THE_HUB if source == NANOBEIR else source)
            continue
        for kind, folders in _in_folder(Path(source)).items():
            kinds[kind] += map(str, folders)
    if not any(kinds.values()):
        raise UserError("--sets is empty: name nanobeir, BEIR folders or data sets of the hub (hf:NAME)")
    fields = {f"sets.{kind}": ",".join(sources) for kind, sources in kinds.items() if sources}
    folders = [Path(source) for source in kinds["beir"]]
    if folders and all(any(folder.glob(f"qrels/{_TEST}.tsv*")) for folder in folders):
        fields["sets.splits"] = repr((_TEST,))
    return fields


def _in_folder(folder: Path) -> dict[str, list[Path]]:
    """The sets of a folder, which is one itself or has some, by their format."""
    from retrieval.data.sets import parquet_sets

    if not folder.is_dir():
        if folder.exists():
            raise UserError(f"{folder}: a file, but --sets takes folders, data sets of the hub (hf:NAME) and nanobeir")
        raise no_path(folder, "--sets", [NANOBEIR])
    if parquet_sets.is_folder(folder):
        return {"parquet": [folder]}
    if _is_beir(folder):
        return {"beir": [folder]}
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and _is_beir(path))
    if not inside:
        raise UserError(
            f"{folder}: no evaluation set: neither a corpus.jsonl nor corpus/*.parquet is there, nor a folder with one"
        )
    return {"beir": inside}


def _is_beir(folder: Path) -> bool:
    return any((folder / f"corpus.jsonl{ending}").is_file() for ending in ("", ".gz"))


def _parser() -> argparse.ArgumentParser:
    what, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        f"retrieval {NAME}",
        description=what,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # what is meant for a field is no flag
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a folder, hf:NAME, or a work directory")
    parser.add_argument(
        "--sets", required=True, metavar="A,B", help="nanobeir, folders, or data sets of the hub, hf:NAME"
    )
    parser.add_argument("--workdir", required=True, metavar="FOLDER", help="the runs, and the tables")
    parser.add_argument("--metrics", default="nDCG@10,R@100,RR@10", metavar="A,B", help="the first one is tested")
    parser.add_argument("--card", action="store_true", help="measure again what the models' cards say")
    parser.add_argument(
        "--tolerance", type=float, default=0.005, metavar="SHARE", help="a difference that a card may have: 0.005"
    )
    return parser


def program() -> None:
    """Runs the command."""
    cli.run(main, has_flags=False)


if __name__ == "__main__":
    program()
