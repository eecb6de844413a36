"""Rerankers that answer 'yes' or 'no': their scores against the whole softmax, and what is refused."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from support import judges
from support.tiny import make_run

from retrieval.common.errors import UserError
from retrieval.methods.reranker import yes_no
from retrieval.methods.reranker.trained import RERANKERS

LENGTH = 320
FIELD = "config.rerank.model"
IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity"}


def opened(inputs, folder, length=LENGTH):
    run = make_run("monobert", inputs, folder / "run", **{"rerank.length": length})
    return RERANKERS.open(run, str(folder / "judge"), FIELD)


def expected(model, layer, length=LENGTH):
    """log p(yes) - log p(no) by the softmax over all tokens."""
    yes, no = (judges.tokenizer().token_to_id(answer) for answer in ("yes", "no"))
    logits = np.stack([layer.astype(np.float64) @ judges.hidden(model, ids) for ids in judges.rows(length)])
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return np.log(probabilities[:, yes]) - np.log(probabilities[:, no])


def with_module(folder, **score):
    """Makes a folder one of sentence-transformers."""
    types = ["base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore"]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.{kind}"}
        for n, (path, kind) in enumerate(zip(("", "1_LogitScore"), types))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(score))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "CrossEncoder", **IDENTITY}))


def test_one_row_is_the_softmax_over_all_tokens(inputs, tmp_path):
    """p(yes) of the two answers, by their words; one document is cut."""
    wanted = expected(*judges.write(tmp_path / "judge", tied=False))
    reranker = opened(inputs, tmp_path)
    found = reranker.scores(judges.QUERIES, judges.DOCUMENTS)
    assert np.ptp(found) > 0.01
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-wanted)), atol=1e-5)
    np.testing.assert_allclose(reranker.scores_of(judges.QUERIES[0], judges.DOCUMENTS[:2]), found[:2], atol=1e-5)


def test_the_answers_are_those_that_the_module_names(inputs, tmp_path):
    """Here they change places; without an activation the score is the difference itself."""
    wanted = expected(*judges.write(tmp_path / "judge"))
    yes, no = (judges.tokenizer().token_to_id(answer) for answer in ("yes", "no"))
    with_module(tmp_path / "judge", true_token_id=no, false_token_id=yes, module_input_name="causal_logits")
    found = opened(inputs, tmp_path).scores(judges.QUERIES, judges.DOCUMENTS)
    np.testing.assert_allclose(found, -wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("tokenizer.json", ("<|im_start|>", "<|start|>"), r"tokens lack <\|im_start\|> and <\|im_end\|>, by which"),
        ("tokenizer.json", ('"yes"', '"yep"'), "copy it again|'yes' and 'no', are no tokens that it has"),
        ("1_LogitScore/config.json", ('"true_token_id": 1', '"true_token_id": 9999'), "are no tokens that it has"),
        ("1_LogitScore/config.json", ("false_token_id", "other_token_id"), "other_token_id is 2, and whether that"),
        ("modules.json", ("LogitScore", "Dense"), "its modules are "),
    ],
)
def test_what_is_not_understood_is_refused(file, change, says, inputs, tmp_path):
    folder = tmp_path / "judge"
    judges.write(folder)
    if file != "tokenizer.json":
        with_module(folder, true_token_id=1, false_token_id=2)
    text = (folder / file).read_text()
    assert change[0] in text
    (folder / file).write_text(text.replace(*change))
    with pytest.raises(UserError, match=says):
        opened(inputs, tmp_path)


def test_a_row_needs_room_for_the_pair(inputs, tmp_path):
    judges.write(tmp_path / "judge")
    with pytest.raises(UserError, match=r"\d+ tokens stand around a query and a document: set config.rerank.length="):
        opened(inputs, tmp_path, length=100)


def of_role(role):
    return f"{{{{ messages | selectattr('role', 'eq', '{role}') | map(attribute='content') | first }}}}"


ASKED = "".join(judges.TOLD).replace(judges.TASK, "{}").format(*map(of_role, ("system", "query", "document")))


@pytest.mark.parametrize(
    ("template", "alone", "is_refused"),
    [
        ("{{ messages }}", False, True),
        (ASKED, False, False),
        (ASKED, True, False),
        (ASKED.replace(of_role("system"), judges.TASK), False, False),
        (ASKED.replace(of_role("system"), "Find code"), False, True),
        (
            "{# note #}{%- set q = " + of_role("query")[2:-2] + "%}" + ASKED.replace(of_role("query"), "{{ q }}"),
            True,
            False,
        ),
        (ASKED.replace("Judge", "Say"), False, True),
        (ASKED.replace("Judge", "Say"), True, True),
        (ASKED.replace("'query'", "'other'"), True, True),
        (ASKED.replace("<Query>", "<Document>"), True, True),
        ("{% if tools %}{% endif %}" + ASKED, False, True),
        ("{% if tools %}<|im_start|>{{ messages }}<think>{% endif %}", True, False),  # Qwen3's own
        ("{% if tools %}<|im_start|>{{ messages }}<think>{% endif %}", False, True),
    ],
)
def test_a_template_in_other_words_is_refused(
    template, alone, is_refused, inputs, tmp_path, place="tokenizer_config.json"
):
    judges.write(folder := tmp_path / "judge")
    if not alone:
        with_module(folder, true_token_id=1, false_token_id=2)
    if place.endswith("jinja"):
        (folder / place).write_text(template)
    else:
        path = folder / "tokenizer_config.json"
        value = [{"name": "default", "template": template}] if place == "list" else template
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": value}))
    if is_refused:
        with pytest.raises(UserError, match=r"(jinja|tokenizer_config\.json): a pair is put to it in other words"):
            opened(inputs, tmp_path)
    else:
        opened(inputs, tmp_path)


@pytest.mark.parametrize("place", ["chat_template.jinja", "list"])
def test_templates_are_looked_for_where_they_may_be(place, inputs, tmp_path):
    test_a_template_in_other_words_is_refused(ASKED.replace("Judge", "Say"), True, True, inputs, tmp_path, place)


def test_a_language_model_of_another_kind_is_not_taken_for_a_judge(tmp_path):
    judges.write(folder := tmp_path / "judge")
    with pytest.raises(UserError, match="does not say how it judges a pair"):
        yes_no._check_words(SimpleNamespace(path=folder, place=folder, family="qwen2"), yes_no.TASK)
