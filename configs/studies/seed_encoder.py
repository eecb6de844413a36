"""The study of Lu et al. 2021 (SEED-Encoder), Tables 1 and 4, Figures 3, 5 and 6: what a decoder in pre-training is
worth to a retriever, and what mining negatives anew is.

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

from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from retrieval.configs import seed_encoder
from retrieval.configs.studies import lu_2021, parts
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
from retrieval.studies.claims import Cell, Claim, Report, Row, Table


def get_config(size: str = "paper") -> ConfigDict:
    """The table of runs, and what is reported of them, for a size and a dataset such as 'local' or 'paper,msmarco'."""
    size, dataset = parts.read(size, SIZES, SETS)
    config = ConfigDict()
    config.corpus = ""  # MediaWiki exports, separated by commas, or 'pydocs'
    config.questions = ""  # files of SQuAD, or MS MARCO's passages, queries and qrels, separated by commas
    config.transfer = ""  # BEIR folders, separated by commas
    config.parallel = SIZES[size].parallel  # runs at a time
    config.runs = runs.table(config, SIZES[size], dataset)
    config.report = _Tables(SIZES[size], dataset).report()
    return config


class _Tables:
    """The report of a size and a dataset."""

    def __init__(self, size: Size, dataset: str):
        self._size, self._dataset, self._set, self._title = size, dataset, SETS[dataset], TITLES[dataset]
        self._metrics = METRICS[dataset]

    def report(self) -> Report:
        """Everything that the study shows."""
        return Report(
            f"A weak decoder and refreshed negatives on {self._title} (Lu et al. 2021)",
            "RR: mean reciprocal rank of the first right candidate; Success@k: share of the test questions with one "
            "among the first k; R@k: share of the right candidates that are.",
            [
                *(self._main(), *self._coverage(), self._transfer(), self._variations(), self._similarity()),
                *(self._by_step(negatives) for negatives in NEGATIVES),
            ],
            [claim for share in SHARES for claim in self._claims(share)],
        )

    def _search(self, share: str) -> Cell:
        return self._cell([runs.split_run(share, seed) for seed in self._size.seeds], "bm25")

    def _model(self, model: str, share: str, negatives: str) -> Cell:
        return self._cell([runs.run_name(model, share, negatives, seed) for seed in self._size.seeds], "dense")

    def _cell(self, names: list[str], system: str) -> Cell:
        return Cell(tuple(names), system, self._set, "pair" if self._set == "reqa" else "test", self._metrics[0])

    def _rows(self, share: str, paper: dict[Any, Sequence[float]], *labels: str, **columns: Any) -> list[Row]:
        """BM25's row and those of every model, whose cells differ in `columns`; the rest of `columns` is for all."""
        (name, values), *others = columns.items()
        each = [(self._search(share), ["BM25 alone", ""], paper.get("search", ()))]
        for negatives, label in NEGATIVES.items():
            for model in MODELS[negatives]:
                cell = self._model(model, share, negatives)
                each.append((cell, [LABELS[model], label], paper.get((negatives, model), ())))
        return [Row([*labels, *more], cell.at(**dict(others)).each(**{name: values}), of) for cell, more, of in each]

    def _main(self) -> Table:
        taken = len(METRICS["msmarco"]) if self._dataset == "msmarco" else 1  # of the paper's MRR@10 and Recall@1k
        paper = {key: of[:taken] for key, of in {**lu_2021.TABLE_1, "search": lu_2021.SEARCH}.items()}
        rows = [
            row
            for share in SHARES
            for row in self._rows(share, paper if share == "100" else {}, f"{share} %", metric=self._metrics)
        ]
        shares = " and ".join(f"{100 * share:g} %" for share in SHARES.values())
        notes = (
            "In brackets the paper's numbers on MS MARCO's passages; beside RR its MRR@10. Of all questions "
            f"{' and '.join(SHARES)} % of the labels are {shares}, of which a tenth chooses the checkpoint."
        )
        return Table(f"Table 1: {self._title}", ["labels", "pre-training", "negatives", *self._metrics], rows, notes)

    def _coverage(self) -> list[Table]:
        """Table 4, where the answers are known."""
        if self._dataset != "squad":
            return []
        rows = self._rows("100", lu_2021.TABLE_4, metric=ANSWERS, split="answers")
        notes = "In brackets the paper's numbers on Natural Questions, over 21 million passages of Wikipedia."
        return [Table("Table 4: passages that hold the answer", ["pre-training", "negatives", *ANSWERS], rows, notes)]

    def _transfer(self) -> Table:
        rows = self._rows("100", {}, dataset=TRANSFER, split="test", metric="nDCG@10")
        notes = f"Nothing was learned from these collections: the labels are {self._title}'s."
        return Table("Transfer: nDCG@10", ["pre-training", "negatives", *TRANSFER], rows, notes)

    def _variations(self) -> Table:
        models = dict.fromkeys(("bert", *self._size.variations))
        rows = [Row([LABELS[model]], self._model(model, "100", "bm25").each(metric=self._metrics)) for model in models]
        notes = "Fine-tuned on all labels with BM25's negatives."
        return Table("Figure 3: decoders", ["pre-training", *self._metrics], rows, notes)

    def _similarity(self) -> Table:
        longest = runs.sized(seed_encoder.get_config(self._size.base), self._size).data.document_length
        lengths = [f"{longest // part} tokens" for part in (8, 4, 2, 1)]
        rows = []
        for model in MODELS["bm25"]:
            names = tuple(runs.pretrained(model, seed) for seed in self._size.seeds)
            rows.append(Row([LABELS[model]], Cell(names, "trained", "corpus", "", "cosine").each(split=lengths)))
        title = "Figure 5: the cosine of random texts to the pre-trained encoder, %"
        return Table(title, ["pre-training", *lengths], rows)

    def _by_step(self, negatives: str) -> Table:
        """Figure 6, a and b. Its other half, by labels, is in Table 1."""
        every = runs.fine_tune(self._size, self._dataset, "weak", "100", negatives, 0).loop.validate_every
        steps = [f"step {every * count}" for count in range(1, runs.validations(self._size, negatives) + 1)]
        rows = []
        for model in MODELS[negatives]:
            cell = self._model(model, "100", negatives).at(system="training", dataset="validation", metric="RR")
            rows.append(Row([LABELS[model]], cell.each(split=steps)))
        title = f"Figure 6: RR of the validation questions, {NEGATIVES[negatives]} negatives"
        return Table(title, ["pre-training", *steps], rows)

    def _claims(self, share: str) -> list[Claim]:
        short, bert, weak, strong = (self._model(model, share, "bm25") for model in MODELS["bm25"])
        fixed_short, fixed_weak = (self._model(model, share, "fixed") for model in MODELS["fixed"])
        new_short, new_weak = (self._model(model, share, "ance") for model in MODELS["ance"])
        claims = [
            ("BM25's negatives, the weak decoder beats MLM alone of as many steps", weak, short),
            ("BM25's negatives, the weak decoder beats MLM alone of as much compute", weak, bert),
            ("BM25's negatives, the weak decoder beats the strong one", weak, strong),
            ("BM25's negatives, MLM alone of as much compute beats the strong decoder", bert, strong),
            ("refreshed negatives, the weak decoder beats MLM alone of as many steps", new_weak, new_short),
            ("MLM alone of as many steps, refreshed negatives beat BM25's, each alone", new_short, fixed_short),
            ("weak decoder, refreshed negatives beat BM25's, each alone", new_weak, fixed_weak),
            ("weak decoder, refreshed negatives alone beat those of the batch with BM25's", new_weak, weak),
            ("weak decoder, refreshed, it beats BM25 itself", new_weak, self._search(share)),
        ]
        return [Claim(f"{share} %: {text}", better, worse) for text, better, worse in claims]
