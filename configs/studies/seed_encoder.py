"""The study of Lu et al. 2021 (SEED-Encoder), Tables 1 and 4, Figures 3 and 6: what a decoder in pre-training is worth
to a retriever, and what mining negatives anew is.

    python -m retrieval.study --config=configs/studies/seed_encoder.py:local --workdir=runs/seed \\
        --config.corpus=wikispeedia.xml.bz2 --config.questions=dev-v1.1.json \\
        --config.transfer=beir/cranfield,beir/cisi,beir/cacm,beir/npl

Sizes: 'paper' (a pod; 'paper,msmarco' takes the paper's passages: --config.questions=PASSAGES,QUERIES,QRELS of the
training queries), 'gpu' (one accelerator, minutes a run, it is hoped: it has not been run) and 'local' (2 CPU cores).
What came out is in docs/results/seed-encoder.md.

An encoder is pre-trained as 'bert' (MLM alone), 'weak' (and a decoder of 3 layers that sees 2 tokens back) and 'strong'
(of 5 layers that see all before it); 'wide' and 'deep' have one of the two (Figure 3). All take the same compute: what
is cheaper takes more steps. 'short' is MLM alone with the steps of the weak decoder, the paper's. Each is fine-tuned
with a tenth and all of the labels on BM25's negatives and those of its batch. Two go on from there, as in the paper, by
a loss that knows no negatives but the mined ones: those of BM25 once more, or what is mined anew in training (ANCE).
These are 'short' and 'weak': MLM of as much compute learns nothing in its first phase that could be gone on from.
Every seed draws its split, its batches and pre-trainings of its own: claims are judged over pre-trainings.
`transfer` are BEIR folders of these names, searched with what was learned from all of the labels.
"""

import functools
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from retrieval.configs.studies import argument, lu_2021, parts
from retrieval.configs.studies import seed_encoder_runs as runs
from retrieval.configs.studies.seed_encoder_runs import (
    ANSWERS,
    LABELS,
    METRICS,
    MODELS,
    NEGATIVES,
    SETS,
    SHARES,
    SIZES,
    TITLES,
    TRANSFER,
    Size,
)


def get_config(size: str = "paper") -> ConfigDict:
    """The table of runs, and what is reported of them, for a size and a dataset such as 'local' or 'paper,msmarco'."""
    size, dataset = argument.read(size, SIZES, SETS)
    config = ConfigDict()
    config.corpus = ""  # MediaWiki exports, separated by commas, or 'pydocs'
    config.questions = ""  # files of SQuAD, or MS MARCO's passages, queries and qrels, separated by commas
    config.transfer = ""  # BEIR folders, separated by commas
    config.parallel = SIZES[size].parallel  # runs at a time
    config.runs = runs.table(config, SIZES[size], dataset)
    config.report = ConfigDict(_Report(SIZES[size], dataset).spec())
    return config


class _Report:
    """Tables, plots and claims, as `retrieval.studies.claims` reads them."""

    def __init__(self, size: Size, dataset: str):
        self._size = size
        self._dataset = dataset
        self._set = SETS[dataset]
        self._title = TITLES[dataset]

    def spec(self) -> dict[str, Any]:
        """Everything that the report shows."""
        return {
            "title": f"A weak decoder and refreshed negatives on {self._title} (Lu et al. 2021)",
            "preamble": [
                "RR: mean reciprocal rank of the first right candidate; Success@k: share of the test questions with "
                "one among the first k; R@k: share of the right candidates that are."
            ],
            "tables": [self._main(), *self._coverage(), self._transfer(), self._variations()],
            "plots": [
                *(self._by_step(negatives) for negatives in NEGATIVES),
                *(self._by_labels(negatives) for negatives in NEGATIVES),
            ],
            "claims": [claim for share in SHARES for claim in self._claims(share)],
        }

    def _search(self, share: str, metric: str) -> dict[str, Any]:
        return self._cell([runs.split_run(share, seed) for seed in self._size.seeds], "bm25", metric)

    def _model(self, model: str, share: str, negatives: str, metric: str = "") -> dict[str, Any]:
        names = [runs.run_name(model, share, negatives, seed) for seed in self._size.seeds]
        return self._cell(names, "dense", metric or METRICS[self._dataset][0])

    def _cell(self, names: list[str], system: str, metric: str) -> dict[str, Any]:
        return dict(runs=names, system=system, metric=metric, dataset=self._set, split=self._rule())

    def _rule(self) -> str:
        return "pair" if self._set == "reqa" else "test"

    def _main(self) -> dict[str, Any]:
        metrics, rows = METRICS[self._dataset], []
        for share in SHARES:
            label = f"{share} %"
            cells = [self._search(share, metric) for metric in metrics]
            rows.append(parts.row([label, "BM25 alone", ""], cells, self._paper(lu_2021.SEARCH, share)))
            for negatives, name in NEGATIVES.items():
                for model in MODELS[negatives]:
                    cells = [self._model(model, share, negatives, metric) for metric in metrics]
                    paper = self._paper(lu_2021.TABLE_1.get((negatives, model), ()), share)
                    rows.append(parts.row([label, LABELS[model], name], cells, paper))
        header = ["labels", "pre-training", "negatives", *metrics]
        shares = " and ".join(f"{100 * share:g} %" for share in SHARES.values())
        notes = (
            "In brackets the paper's numbers on MS MARCO's passages; beside RR its MRR@10. Of all questions "
            f"{' and '.join(SHARES)} % of the labels are {shares}, of which a tenth chooses the checkpoint."
        )
        return dict(title=f"Table 1: {self._title}", header=header, rows=rows, notes=notes)

    def _coverage(self) -> list[dict[str, Any]]:
        """Table 4, where the answers are known."""
        if self._dataset != "squad":
            return []

        def cells(cell: dict[str, Any]) -> list[dict[str, Any]]:
            return [cell | dict(metric=metric, split="answers") for metric in ANSWERS]

        rows = [parts.row(["BM25 alone", ""], cells(self._search("100", "")), lu_2021.TABLE_4["search"])]
        for negatives, name in NEGATIVES.items():
            for model in MODELS[negatives]:
                paper = lu_2021.TABLE_4.get((negatives, model), ())
                rows.append(parts.row([LABELS[model], name], cells(self._model(model, "100", negatives)), paper))
        notes = "In brackets the paper's numbers on Natural Questions, over 21 million passages of Wikipedia."
        header = ["pre-training", "negatives", *ANSWERS]
        return [dict(title="Table 4: passages that hold the answer", header=header, rows=rows, notes=notes)]

    def _paper(self, numbers: Sequence[float], share: str) -> Sequence[float]:
        """What of the paper's MRR@10 and Recall@1k belongs beside ours."""
        return numbers[: len(METRICS["msmarco"]) if self._dataset == "msmarco" else 1] if share == "100" else ()

    def _transfer(self) -> dict[str, Any]:
        def cells(cell: dict[str, Any]) -> list[dict[str, Any]]:
            return [cell | dict(dataset=name, split="test") for name in TRANSFER]

        rows = [parts.row(["BM25 alone", ""], cells(self._search("100", "nDCG@10")))]
        for negatives, name in NEGATIVES.items():
            for model in MODELS[negatives]:
                rows.append(parts.row([LABELS[model], name], cells(self._model(model, "100", negatives, "nDCG@10"))))
        notes = f"Nothing was learned from these collections: the labels are {self._title}'s."
        header = ["pre-training", "negatives", *TRANSFER]
        return dict(title="Transfer: nDCG@10", header=header, rows=rows, notes=notes)

    def _variations(self) -> dict[str, Any]:
        metrics, rows = METRICS[self._dataset], []
        for model in dict.fromkeys(("bert", *self._size.variations)):
            cells = [self._model(model, "100", "bm25", metric) for metric in metrics]
            rows.append(parts.row([LABELS[model]], cells))
        notes = "Fine-tuned on all labels with BM25's negatives."
        return dict(title="Figure 3: decoders", header=["pre-training", *metrics], rows=rows, notes=notes)

    def _by_step(self, negatives: str) -> dict[str, Any]:
        """Figure 6, a and b."""
        every = runs.fine_tune(self._size, self._dataset, "weak", "100", negatives, 0).loop.validate_every
        steps = [every * turn for turn in range(1, runs.validations(self._size, negatives) + 1)]
        lines = []
        for model in MODELS[negatives]:
            cell = self._model(model, "100", negatives, "RR") | dict(system="training", dataset="validation")
            lines.append(dict(label=LABELS[model], points=[[s, cell | dict(split=f"step {s}")] for s in steps]))
        title = f"Figure 6: by step, {NEGATIVES[negatives]} negatives"
        return dict(title=title, x="step", y="RR of the validation questions, %", lines=lines)

    def _by_labels(self, negatives: str) -> dict[str, Any]:
        """Figure 6, c and d."""
        lines = [
            dict(label=LABELS[model], points=[[float(s), self._model(model, s, negatives)] for s in SHARES])
            for model in MODELS[negatives]
        ]
        title = f"Figure 6: by labels, {NEGATIVES[negatives]} negatives"
        return dict(title=title, x="labels, %", y="RR, %", lines=lines, log_x=True)

    def _claims(self, share: str) -> list[dict[str, Any]]:
        claim = functools.partial(parts.claim, share)
        short, bert, weak, strong = (self._model(model, share, "bm25") for model in MODELS["bm25"])
        fixed_short, fixed_weak = (self._model(model, share, "fixed") for model in MODELS["fixed"])
        new_short, new_weak = (self._model(model, share, "ance") for model in MODELS["ance"])
        return [
            claim("BM25's negatives, the weak decoder beats MLM alone of as many steps", weak, short),
            claim("BM25's negatives, the weak decoder beats MLM alone of as much compute", weak, bert),
            claim("BM25's negatives, the weak decoder beats the strong one", weak, strong),
            claim("BM25's negatives, MLM alone of as much compute beats the strong decoder", bert, strong),
            claim("refreshed negatives, the weak decoder beats MLM alone of as many steps", new_weak, new_short),
            claim("MLM alone of as many steps, refreshed negatives beat BM25's, each alone", new_short, fixed_short),
            claim("weak decoder, refreshed negatives beat BM25's, each alone", new_weak, fixed_weak),
            claim("weak decoder, refreshed negatives alone beat those of the batch with BM25's", new_weak, weak),
            claim(
                "weak decoder, refreshed, it beats BM25 itself",
                new_weak,
                self._search(share, METRICS[self._dataset][0]),
            ),
        ]
