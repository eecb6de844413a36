"""The studies of the papers: their runs, and the reports that name them."""

import jax.numpy as jnp
import pytest

from configs.studies import (
    pretraining_curves,
    pretraining_tasks,
    proqa,
    quadruplet,
    repbert,
    seed_encoder,
    seed_encoder_runs,
)
from retrieval import study
from retrieval.data.sets.set_format import SETS
from retrieval.recipes import question_tower
from retrieval.recipes.recipe import recipe_of
from retrieval.studies import run_table
from retrieval.training.objectives.in_batch_softmax import in_batch_softmax

pytestmark = pytest.mark.usefixtures("one_device")


def agreeing(config, folder):
    """The table of a study, whose report names no other runs."""
    table = run_table.read_table(config, folder)
    run_table.check_table(table)
    study.read_report(config).check_runs(table)
    study.write_report(config, folder, ())
    return table


@pytest.mark.parametrize(
    ("module", "size"),
    [
        *((pretraining_curves, size) for size in ("gpu", "local", "short")),
        *((quadruplet, size) for size in ("local", "paper,nq", "short")),
        *((pretraining_tasks, size) for size in ("gpu", "local", "paper,nq")),
        *((seed_encoder, size) for size in ("gpu", "local", "paper,msmarco")),
    ],
)
def test_the_studys_runs_and_its_report_agree(module, size, tmp_path):
    config = module.get_config(size)
    config.corpus, config.questions = "dump.xml", "passages.tsv,queries.tsv,qrels.tsv"
    table = agreeing(config, tmp_path)
    assert {need for entry in table.values() for need in entry.needs} <= set(table)


def test_the_gain_of_quadruplets_is_parted_into_negatives_and_loss():
    report = quadruplet.get_config("local").report.to_dict()
    (gains,) = [table for table in report["tables"] if table["title"] == "Where the gain comes from: 5 %"]
    whole, negatives, loss = ([(cell["runs"], cell["over"]["runs"]) for cell in row["cells"]] for row in gains["rows"])
    assert [(a, d) for (a, _), (_, d) in zip(loss, negatives)] == whole  # the parts begin and end as the whole does
    assert [d for _, d in loss] == [a for a, _ in negatives] and whole[0][0][0] == "quadruplet-5-s0"
    assert gains["rows"][0]["cells"][0]["paper"] == 5.15


@pytest.mark.parametrize(("size", "rate"), [("paper", 1e-5), ("local", 3e-4)])
def test_all_second_phases_of_quadruplets_have_one_rate(size, rate):
    mines = [run.mine for run in quadruplet.get_config(size).runs.values() if "mine" in run]
    assert {mine.turn_rate for mine in mines if mine.patience} == {rate}
    assert {mine.turn_rate for mine in mines if not mine.patience} == {0.0}


def test_each_seed_of_quadruplets_is_tested_over_its_questions():
    claims = quadruplet.get_config("local").report.to_dict()["claims"]
    alone = [claim for claim in claims if len(claim["better"]["runs"]) == len(claim["worse"]["runs"]) == 1]
    assert len(alone) == len(quadruplet.SHARES) * len(quadruplet.GAINS) * len(quadruplet.SEEDS)
    assert all(claim["better"]["runs"][0][-2:] == claim["worse"]["runs"][0][-2:] for claim in alone)


def test_proqas_study_and_its_report_agree(tmp_path):
    for size in proqa.SIZES:
        config = proqa.get_config(size)
        config.corpus, config.squad, config.clusters = "dump.xml", "squad.json", 7
        config.train_questions, config.test_questions = "train.jsonl", "test.jsonl"
        config.validation_questions = "validation.jsonl"
        table = agreeing(config, tmp_path / size)
        run = table["proqa-1"].run.config
        assert set(table["proqa-1"].needs) == {"bm25", "writer", "corpus"} and run.cluster.count == 7
        assert run.pairs.files == str(tmp_path / size / "writer" / "generated" / "corpus.jsonl")
        assert table["bm25"].run.config.sets.qa == "corpus,test.jsonl,validation.jsonl"
        joint, towers = table["reader-joint-1"], table["proqa-1"].run.config
        assert joint.needs == ("reader-proqa-1",) and joint.run.config.answer.sets == "qa,qa-validation"
        for name in ("reader-proqa-1", "reader-joint-1", "reader-orqa-1"):
            config = table[name].run.config
            assert config.train.early and config.spans.early and config.train.temperature == towers.train.temperature
            assert question_tower._fields(config) == question_tower._fields(towers)
            recipe_of(config).check()
        assert not table["reader-bm25-1"].run.config.train.early
        asked = table["reader-bm25-0"].run.config
        assert (asked.spans.set, asked.answer.validation) == (proqa.TEST, "qa-validation")
        assert SETS["qa"].names(table["bm25"].run.config.sets.qa) == [proqa.TEST, "qa-validation"]
        ict = table["ict-1"].run.config
        kept = ("steps", "batch_size", "groups", "learning_rate", "clip_norm", "warmup_ratio", "schedule_steps")
        assert [ict.train[name] for name in kept] == [run.train[name] for name in kept]
        assert ict.model.to_dict() == run.model.to_dict()


def test_proqas_retrievers_and_readers_start_from_one_encoder(tmp_path):
    config = proqa.get_config("local")
    config.corpus, config.squad, config.encoder = "dump.xml", "squad.json", "bert"
    config.test_questions = config.validation_questions = "test.jsonl"
    starts = {
        name: entry.run.config.train.init_from
        for name, entry in run_table.read_table(config, tmp_path / "study").items()
        if "train" in entry.run.config.stages and name != "writer"
    }
    earlier = {name for name in starts if name.startswith(("plain-5-", "plain-7-"))}
    assert len(earlier) == 6 and {starts[name] for name in starts.keys() - earlier} == {"bert"}


def test_proqas_study_trains_on_questions_that_one_has(tmp_path):
    config = proqa.get_config("local")
    config.corpus, config.generated = "dump.xml", str(tmp_path / "questions.jsonl")
    config.test_questions = config.validation_questions = "test.jsonl"
    table = run_table.read_table(config, tmp_path / "study")
    assert set(table["proqa-1"].needs) == {"bm25", "corpus"}
    assert table["plain-0"].run.config.pairs.files == str(tmp_path / "questions.jsonl")


def test_proqas_study_shows_what_its_loss_measures():
    claims = proqa.get_config("local").report.to_dict()["claims"]
    asked = {
        claim[side]["metric"] for claim in claims for side in ("better", "worse") if claim[side]["dataset"] == "batch"
    }
    pairs = jnp.eye(2)
    assert asked and asked <= in_batch_softmax(pairs, pairs[:, None], jnp.arange(2)[:, None], None)[1].keys()


def test_repberts_study_and_its_report_agree(tmp_path):
    config = repbert.get_config("local")
    config.corpus, config.sets, lists = "passages.jsonl", "pool", tmp_path / "x.trec"
    config.squad, config.elsewhere = "squad.json", "nfcorpus"
    lists.touch()
    for name, systems in (("dev", repbert.DEV), ("dl", repbert.DL)):
        config[f"{name}_judgements"] = "queries.tsv,qrels.tsv"
        config[f"{name}_runs"] = tuple(f"{system}={lists}" for system in systems)
    table = agreeing(config, tmp_path)
    assert table["reranker-dense-2"].needs == ("repbert-2", "ict-2")
    assert table["distilled-1"].needs == ("questions-1", "ict-1", "reranker-bm25-1")
    assert set(table["expanded-1"].needs) == {"repbert-1", "doc2query-1", "deepct-1"}
    assert table["taught-squad-1"].needs == ("questions-1", "towers-squad-1", "reranker-squad-bm25-1")
    assert table["reranker-squad-dense-2"].needs == ("repbert-squad-2", "cross-squad-2")
    read = {name: table[name].run.config.sets.beir for name in ("questions-1", "distilled-1", "elsewhere-1")}
    assert read == {"questions-1": "pool", "distilled-1": "pool", "elsewhere-1": "nfcorpus"}


def test_what_repberts_report_shows_is_measured():
    """TREC counts DL 2019's passages as relevant from grade 2 on."""
    config = repbert.get_config("local")
    cells = study.read_report(config).cells
    of_dl = [cell for cell in cells if cell.dataset == "dl19" or cell.runs == ("published-dl",)]
    binary = {cell.metric for cell in of_dl if cell.metric.startswith("R")}
    assert binary == {"RR(rel=2)@10", "R(rel=2)@100", "R(rel=2)@1000"}
    for cell in cells:
        if cell.metric.partition("@")[0] in ("RR", "R", "nDCG", "RR(rel=2)", "R(rel=2)"):
            assert all(cell.metric in config.runs[name].evaluate.metrics for name in cell.runs), cell
        reranked, _, depth = cell.system.partition("+rerank@")
        if depth:
            of = [config.runs[name].rerank for name in cell.runs]
            assert all(reranked in rerank.systems and int(depth) in rerank.depths for rerank in of), cell
        _, of_consistency, reference = cell.metric.partition("consistency with ")
        if of_consistency:
            reference, _, depth = reference.partition("@")
            of = [config.runs[name].rerank for name in cell.runs]
            assert all(reference in rerank.trained_on and int(depth) in rerank.depths for rerank in of), cell


def test_repberts_report_has_all_that_the_paper_shows():
    report = study.read_report(repbert.get_config("local"))
    first = report.tables[0]
    (row,) = [row for row in first.rows if [cell.paper for cell in row.cells] == [36.5, 81.4, None]]
    assert row.labels[0].startswith("BM25 + reranker") and "29.8 RR@10 on dev, 29.1 on test, and 81.4" in first.notes
    assert {"Figure 1 (a): recall by depth", "Figure 1 (b): RR@10 by depth"} <= {plot.title for plot in report.plots}
    own = {cell.system for cell in report.cells if cell.metric.startswith("consistency with bm25@")}
    assert own == {"bm25", "dense"}
    gains = [claim for claim in report.claims if "gain" in claim.text and claim.better.over and claim.worse.over]
    assert len(gains) == 3 and all(claim.worse.over.system == claim.better.system for claim in gains)


def test_the_row_of_chosen_margins_has_all_six():
    config = quadruplet.get_config("local")
    (table, *_) = config.report.to_dict()["tables"]
    (row,) = [row for row in table["rows"] if row["labels"] == ["QuadrupletBERT, margin by validation"]]
    for run, rivals in zip(row["cells"][0]["runs"], row["cells"][0]["rivals"], strict=True):
        assert sorted(config.runs[name].train.margin for name in (run, *rivals)) == [0, 0.1, 0.2, 1, 1.5, 2]


def test_pre_training_with_every_decoder_takes_the_same_compute():
    for size in seed_encoder_runs.SIZES:
        runs = seed_encoder.get_config(size).runs
        chosen = {
            name[4:-2]: config for name, config in runs.items() if name.startswith("pre-") and name.endswith("-0")
        }
        short = chosen.pop("short")
        assert short.train == chosen["weak"].train and short.data == chosen["bert"].data
        totals = [config.train.steps * seed_encoder_runs.cost(config) for config in chosen.values()]
        assert max(totals) < 1.001 * min(totals), size
        assert len({config.train.batch_size for config in chosen.values()}) == 1
        decoders = {name: (c.model.decoder.layers, c.model.decoder.span) for name, c in chosen.items()}
        length = chosen["weak"].data.document_length
        assert decoders["weak"] == (3, 2) and decoders["strong"] == (5, length)
        assert chosen["bert"].recipe == "mlm" and chosen["bert"].data.rates.mlm == 1
    # By hand, in millions for a token: 12 layers 84.93, 3 and 5 more 21.23 and 35.39, the vocabulary 25.17.
    runs = seed_encoder.get_config("paper").runs
    mlm, weak, strong = 84.93 + 0.15 * 25.17, 84.93 + 21.23 + 1.15 * 25.17, 84.93 + 35.39 + 1.15 * 25.17
    assert runs["pre-bert-0"].train.steps == pytest.approx(1e6 * weak / mlm, rel=1e-3)
    assert runs["pre-strong-0"].train.steps == pytest.approx(1e6 * weak / strong, rel=1e-3)
