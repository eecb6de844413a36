"""Where models stand: `retrieval benchmark`, whose runs are written by hand here; and what a card says of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from support import exported
from support.tiny import make_config

from configs import benchmark as configuration
from retrieval import benchmark
from retrieval.api import finished_run
from retrieval.data.sets.parquet_sets import NANOBEIR
from retrieval.errors import UserError
from retrieval.evaluation import card, card_results, per_query, significance
from retrieval.pipeline import records
from retrieval.studies import card_check, over_sets, run_comparison

METRICS = ("nDCG@10", "R@100", "RR@10")
A = {"one": [1.0, 0.5, 0.0, 0.25], "two": [0.5, 0.75]}
B = {"one": [0.5, 0.5, 0.25, 1.0], "two": [1.0, 1.0]}
WORDS = {"one": [0.25, 0.25, 0.25, 0.25], "two": [0.5, 0.5]}


def write_run(folder, dense, normalize=True, words=WORDS):
    """A work directory with the values of every query; R@100 is half of nDCG@10, and RR@10 a quarter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(make_config("bm25", **{"model.normalize": normalize}).to_json())
    rows = []
    for dataset, values in dense.items():
        queries = [f"q{number}" for number in range(len(values))]
        of_systems = {
            system: {metric: np.array(of) / 2**place for place, metric in enumerate(METRICS)}
            for system, of in (("bm25", words.get(dataset, values)), ("dense", values))
        }
        for split in ("dev", "test"):
            per_query.write(per_query.path_of(folder, dataset, split), queries, of_systems)
            rows += [
                {"system": system, "dataset": dataset, "split": split, "metric": metric, "value": float(of.mean())}
                | {"queries": len(queries), "seconds": 1.0, "step": 0}
                for system, metrics in of_systems.items()
                for metric, of in metrics.items()
            ]
    (folder / "results.json").write_text(json.dumps(rows))


def found_of(*folders):
    return over_sets.standings([run_comparison.read_run(str(folder), folder.name) for folder in folders], METRICS)


def beir(folder, splits=("test",)):
    (folder / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl", *(f"qrels/{split}.tsv" for split in splits)):
        (folder / name).write_text("")
    return folder


def test_a_mean_counts_each_set_alike_and_names_them(tmp_path):
    write_run(tmp_path / "a", A)
    words, dense = found_of(tmp_path / "a")
    (first, *_) = over_sets.tables([words, dense], METRICS)
    low, high = (100 * end for end in significance.bootstrap(list(map(np.array, A.values()))))
    mean = 100 * (np.mean(A["one"]) + np.mean(A["two"])) / 2
    assert f"| mean of 2 sets: one, two | 6 | 37.50 [37.5, 37.5] | {mean:.2f} [{low:.1f}, {high:.1f}] |" in first
    assert "| one | 4 | 25.00 [25.0, 25.0] | 43.75 [" in first
    assert over_sets.named_values(dense)["two_cosine_recall@100"] == pytest.approx(np.mean(A["two"]) / 2)
    assert over_sets.named_values(dense)["mean_cosine_ndcg@10"] == pytest.approx(mean / 100)
    assert "one_mrr@10" in over_sets.named_values(words)


def test_the_mean_of_the_13_sets_has_the_name_that_others_give_it(tmp_path):
    write_run(tmp_path / "a", {name: [0.5, 1.0] for name in NANOBEIR}, normalize=False)
    values = over_sets.named_values(found_of(tmp_path / "a")[1])
    assert values["NanoBEIR_mean_dot_ndcg@10"] == 0.75 and values["NanoMSMARCO_dot_mrr@10"] == pytest.approx(0.1875)
    assert "mean of NanoBEIR's: NanoArguAna, " in over_sets.mean_name(sorted(NANOBEIR))


def test_one_model_over_another_set_by_set(tmp_path):
    write_run(tmp_path / "a", A)
    write_run(tmp_path / "b", B)
    _, a, b = found_of(tmp_path / "a", tmp_path / "b")
    one, two, mean = over_sets.comparison(b, a, "nDCG@10")
    differences = [np.array(B[name]) - np.array(A[name]) for name in ("one", "two")]
    assert (one.difference, two.difference) == tuple(each.mean() for each in differences)
    assert mean.difference == pytest.approx(np.mean([each.mean() for each in differences]))
    expected = significance.holm([significance.randomisation(each) for each in differences])
    assert [one.p_value, two.p_value] == expected
    assert (one.won, one.tied, one.lost) == (2, 1, 1) and (mean.won, mean.tied, mean.lost) == (4, 1, 1)
    assert (mean.low, mean.high) == significance.bootstrap(differences)


def test_the_mean_is_tested_with_each_set_counting_alike():
    """A large set in which nothing differs takes nothing from a small one in which all queries are won."""
    values = {"small": [0.4] * 12, "large": [0.0] * 400}
    sets = {name: {f"q{number}": value for number, value in enumerate(of)} for name, of in values.items()}
    zeros = {name: dict.fromkeys(of, 0.0) for name, of in sets.items()}
    one, other = (over_sets.Standing("x", "dot", {"nDCG@10": of}) for of in (sets, zeros))
    *_, mean = over_sets.comparison(one, other, "nDCG@10")
    assert mean.difference == pytest.approx(0.2) and mean.p_value < 0.01


@pytest.fixture
def command(tmp_path, monkeypatch):
    """The command on two models, whose runs are written instead of done; what it asked for."""
    asked = []

    def run(config, workdir, fields):
        asked.append((config, Path(workdir).name, fields))
        write_run(Path(workdir), B if "other" in config else A)

    monkeypatch.setattr(finished_run, "run", run)
    sets = f"{beir(tmp_path / 'all' / 'one').parent},hf:me/NanoNQ,nanobeir"
    beir(tmp_path / "all" / "two")

    def call(*words, sets=sets):
        return benchmark.main(["", *words, f"--sets={sets}", f"--workdir={tmp_path / 'runs'}"])

    call.asked, call.folder = asked, tmp_path
    return call


def test_the_command_does_a_run_for_each_model_and_compares(command, capsys):
    assert command("hf:me/model@v1", "some/other", "--config.data.query_prefix=query: ", "--metrics=nDCG@10,RR@10") == 0
    (first, name, fields), (second, other, _) = command.asked
    assert (first, name, second, other) == ("benchmark:hf:me/model@v1", "model", "benchmark:some/other", "other")
    folders = ",".join(str(command.folder / "all" / each) for each in ("one", "two"))
    assert fields == {
        "sets.beir": folders,
        "sets.parquet": "hf:me/NanoNQ,hf:sentence-transformers/NanoBEIR-en",
        "sets.splits": "('test',)",
        "evaluate.metrics": "('nDCG@10', 'RR@10')",
        "evaluate.depth": 100,
        "data.query_prefix": "query: ",
    }
    text = capsys.readouterr().out
    assert text == (command.folder / "runs" / "benchmark.md").read_text()
    assert "# model beside other" in text and "## other over model" in text and "R@100" not in text
    values = json.loads((command.folder / "runs" / "benchmark.json").read_text())
    assert values["other"]["one_cosine_ndcg@10"] == np.mean(B["one"])


def test_one_model_alone_is_tested_against_bm25(command, capsys):
    assert command("m") == 0
    assert "## m over BM25" in capsys.readouterr().out


CARD = """---
language: en
model-index:
- name: m
  results:
  - task: {{type: Retrieval}}
    dataset: {{name: MTEB One (default), type: mteb/one, split: test}}
    metrics:
    - {{type: main_score, value: {value}}}
    - {{type: ndcg_at_10, value: {value}}}
    - {{type: mrr_at_10, value: 10.9375}}
    - {{type: nauc_map_at_1_std, value: 3}}
    - {{type: map_at_100, value: 20}}
  - task: {{type: information-retrieval}}
    dataset: {{name: NanoNQ, type: NanoNQ}}
    metrics:
    - {{type: cosine_ndcg@10, value: 0.5}}
  - task: {{type: Retrieval}}
    dataset: {{name: two, type: two, split: train}}
    metrics:
    - {{type: ndcg_at_10, value: 62.5}}
  - task: {{type: STS}}
    dataset: {{name: two, type: two}}
    metrics:
    - {{type: cosine_pearson, value: 80}}
---
# m
"""


@pytest.mark.parametrize(("value", "status"), [(43.75, 0), (44.1, 0), (44.5, 1)])
def test_a_card_is_measured_again(command, capsys, value, status):
    """What can be is compared, and the rest is told with its reason."""
    (command.folder / "m").mkdir()
    (command.folder / "m" / "README.md").write_text(CARD.format(value=value))
    assert command(str(command.folder / "m"), "--card") == status
    text = capsys.readouterr().out
    difference = 43.75 - value
    assert f"| MTEB One (default) | nDCG@10 | {value:.2f} | 43.75 | {difference:+.2f} [" in text.replace("\\", "")
    assert ("differs" in text) == bool(status)
    assert "| RR@10 | 10.94 | 10.94 | +0.00 [" in text
    for reason in (
        "no set NanoNQ was given (--sets)",
        "the task is STS, and not retrieval",
        "the metric is none of ours",
        "AP@100 was not asked for (--metrics)",
        "the card is about the split train of two, and test was measured",
    ):
        assert f"| {reason} | 1 |" in text


def test_the_mean_of_a_card_is_that_of_the_13_sets(tmp_path):
    write_run(tmp_path / "a", {name: [0.5, 1.0] for name in NANOBEIR})
    names = frozenset({"nanobeirmean"})
    mean = card_results.CardResult("NanoBEIR mean", names, "", "information-retrieval", "nDCG@10", "x", 0.7)
    _, dense = found_of(tmp_path / "a")
    found = card_check.check([mean], dense, dict.fromkeys(NANOBEIR, "test"))
    assert found.checked[0].difference == pytest.approx(0.05) and not found.left_out
    assert card_check.check([mean], dense, {"NanoNQ": "test"}).left_out == {
        "no set NanoBEIR mean was given (--sets)": 1
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "README.md: no such file: the model has no card"),
        ("# nothing", "README.md: no results in its metadata"),
        ("---\nlicense: mit\n---\n", "README.md: no results in its metadata"),
        ("---\na: [\n---\n", "README.md: its metadata is no YAML"),
        ("---\na: !!python/object/apply:os.system [ls]\n---\n", "README.md: its metadata is no YAML"),
        ("---\nmodel-index: 7\n---\n", "README.md: model-index is not a list"),
        ("---\n" + "a: " + "[" * 3000 + "\n---\n", "README.md: its metadata is no YAML"),
    ],
)
def test_a_card_without_results_is_one_sentence(command, text, message):
    (command.folder / "m").mkdir()
    if text is not None:
        (command.folder / "m" / "README.md").write_text(text)
    with pytest.raises(UserError, match=message) as refused:
        command(str(command.folder / "m"), "--card")
    assert "\n" not in str(refused.value) and not command.asked


def test_what_our_card_says_is_read_again(tmp_path):
    rows = [
        {"dataset": "nfcorpus", "split": "test", "metric": metric, "value": value}
        for metric, value in (("nDCG@10", 0.3125), ("R@100", 0.5), ("Success@1", 0.25), ("RR", 0.125))
    ]
    text = card.model_card(
        card.TOWERS, title="m: [x]", license="", datasets=[], data=[], notes=[], settings={}, results=[], own=rows,
        score="cosine",
    )  # fmt: skip
    (tmp_path / "README.md").write_text(text)
    found = card_results.read(tmp_path / "README.md")
    assert [(each.metric, each.value) for each in found] == [("nDCG@10", 0.3125), ("R@100", 0.5), ("Success@1", 0.25)]
    assert {each.given for each in found} == {"cosine_ndcg@10", "cosine_recall@100", "cosine_accuracy@1"}
    assert all(each.is_retrieval and each.names == {"nfcorpus"} and each.split == "test" for each in found)


def test_mistakes_in_the_arguments(command, capsys):
    with pytest.raises(UserError, match="the model hf:m is there twice"):
        command("m", "hf:m")
    with pytest.raises(UserError, match="--metrics is empty"):
        command("m", "--metrics=,")
    with pytest.raises(SystemExit):
        command("m", "--set=x")
    assert "unrecognized arguments: --set=x" in capsys.readouterr().err and not command.asked


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("nanobier", r"nanobier: no such file or folder, in --sets; did you mean nanobeir\?"),
        (",", "--sets is empty"),
        ("{empty}", "no evaluation set: neither a corpus.jsonl"),
        ("{file}", "a file, but --sets takes folders"),
    ],
)
def test_mistakes_in_the_sets(command, tmp_path, sets, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=message) as refused:
        command("m", sets=sets.format(empty=tmp_path / "empty", file=tmp_path / "file"))
    assert "\n" not in str(refused.value) and not command.asked


def test_judgements_that_are_not_all_called_test_are_all_evaluated(command, tmp_path):
    command("m", sets=str(beir(tmp_path / "msmarco", splits=("dev",))))
    assert command.asked[0][2] == {
        "sets.beir": str(tmp_path / "msmarco"),
        "evaluate.metrics": "('nDCG@10', 'R@100', 'RR@10')",
        "evaluate.depth": 100,
    }


def test_runs_of_other_sets_are_refused(tmp_path):
    write_run(tmp_path / "a", A)
    write_run(tmp_path / "b", {"one": A["one"]})
    with pytest.raises(UserError, match="b was evaluated on one, and a on one, two: evaluate both on the same sets"):
        found_of(tmp_path / "a", tmp_path / "b")


def test_the_config_takes_a_model_or_a_run(tmp_path):
    write_run(tmp_path / "run", A)
    config = configuration.get_config(str(tmp_path / "run"))
    assert (config.base, config.stages) == (str(tmp_path / "run"), ("sets", "encode", "index", "evaluate", "report"))
    assert config.evaluate.metrics == METRICS
    assert configuration.get_config("gs://bucket/run").base == "gs://bucket/run"
    with pytest.raises(UserError, match="--config=benchmark has no model: write"):
        configuration.get_config()
    with pytest.raises(UserError, match=r"--config=benchmark:.*none: no such folder"):
        configuration.get_config(str(tmp_path / "none"))


@pytest.mark.long
def test_a_model_is_measured_and_its_card_says_the_same(tmp_path, monkeypatch, capsys):
    """A run and its export on two sets in one command; then the export's card, which is right, and one that is not."""
    run = exported.work_directory(tmp_path / "run", **{"model.normalize": True, "data.titles": "joined"})
    folder = exported.export(run)
    records.write_record(run, "prepare", records.record_of(run, "prepare") | {"details": {}})
    for name in ("one", "two"):
        rows = [{"_id": str(number), "text": f"{name} {'fox' * number} the dog"} for number in range(8)]
        beir(tmp_path / "sets" / name)
        (tmp_path / "sets" / name / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "sets" / name / "queries.jsonl").write_text('{"_id": "q", "text": "what is a fox?"}\n')
        (tmp_path / "sets" / name / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t2\t1\n")
    words = ["", str(folder), f"--sets={tmp_path / 'sets'}", f"--workdir={tmp_path / 'out'}"]
    assert benchmark.main([*words, str(tmp_path / "run")]) == 0  # the run that the folder is the export of
    found = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    values = found["export"]
    assert values == found["run"] and "## run over export" in capsys.readouterr().out
    results = [
        {"dataset": name, "split": "test", "metric": metric, "value": values[f"{name}_cosine_{theirs}"]}
        for name in ("one", "two")
        for metric, theirs in (("nDCG@10", "ndcg@10"), ("RR@10", "mrr@10"))
    ]
    text = "\n".join(["---", *card_results.index("m", results, "cosine"), "---"])
    (folder / "README.md").write_text(text)
    assert benchmark.main([*words, "--card"]) == 0
    captured = capsys.readouterr()
    assert "up to date" in captured.err and captured.out.startswith("# export")
    results[0]["value"] += 0.1
    (folder / "README.md").write_text("\n".join(["---", *card_results.index("m", results, "cosine"), "---"]))
    assert benchmark.main([*words, "--card"]) == 1
