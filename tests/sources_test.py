"""Sources of labelled examples: what a TOML file may say of them, and what each makes of the config."""

import pytest

from retrieval.common.errors import UserError
from retrieval.config import experiment
from retrieval.data.labelled import sources

TWO = """
# Questions and titles.
[nq]
files = ["a.jsonl", "b.jsonl"]  # of two years
weight = 2
query_prompt = "question: "
negatives = 3

[titles]
files = "c.parquet"
fields = "query=title,positive=body"
weight = 0.5
loss = "multi_negative_nll"
"""


def config_of(text):
    config = experiment.defaults()
    config.pairs.sources = text
    config.data.document_prefix = "passage: "
    return config


def test_a_source_has_its_own_values_and_else_those_of_the_config():
    configs = sources.configs_of(config_of(TWO))
    nq, titles = configs["nq"], configs["titles"]
    assert (nq.pairs.files, nq.pairs.fields, nq.pairs.sources) == ("a.jsonl,b.jsonl", "", "")
    assert (titles.pairs.files, titles.pairs.fields) == ("c.parquet", "query=title,positive=body")
    assert (nq.data.negatives, titles.data.negatives) == (3, 0)
    assert (nq.train.loss, titles.train.loss) == ("in_batch_softmax", "multi_negative_nll")
    assert [source.weight for source in sources.read(TWO)] == [2, 0.5]
    prompts = sources.prompts_of(config_of(TWO))
    assert prompts == {"nq": ("question: ", "passage: "), "titles": ("", "passage: ")}
    assert sources.prompts_of(experiment.defaults()) == {}


def test_the_content_of_a_file_is_kept_without_comments(tmp_path):
    path = tmp_path / "sources.toml"
    path.write_text(TWO)
    kept = sources.written_out(str(path))
    assert sources.read(kept) == sources.read(TWO) == sources.read(str(path)) and "#" not in kept
    assert kept == sources.written_out(kept) and sources.written_out("") == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nfiles = 'x'\n[a]\nfiles = 'y'", r"no TOML, Cannot declare \('a',\) twice"),
        ("[a\n", "no TOML, Expected ']' at the end of a table declaration"),
        ("\n", "no source in it; one is a table"),
        ("files = 'x'\n", "'files' stands before the first source"),
        ("[a]\n", "source 'a': no files"),
        ("[a]\nfiles = 1", "source 'a': files=1: a text is needed"),
        ("[a]\nfiles = 'x'\nweight = 0", "source 'a': weight=0: a number above 0"),
        ("[a]\nfiles = 'x'\nweight = -1.5", "source 'a': weight=-1.5: a number above 0"),
        ("[a]\nfiles = 'x'\nnegative = 1", "unknown key of .*source 'a', 'negative': did you mean negatives"),
        ("[a]\nfiles = 'x'\nnegatives = true", "negatives=True: a whole number of at least 0"),
        ("['../a']\nfiles = 'x'", "letters, digits, - and _ are needed for a name"),
        ("[a]\nfiles = 'x'\nweight = 1\n[b]\nfiles = 'y'", "source 'a' has a weight, and 'b' has none"),
        ("sources.toml", "no such file or folder, in config.pairs.sources"),
    ],
)
def test_what_no_source_can_be_is_refused_in_a_sentence(text, message):
    with pytest.raises(UserError, match=message) as raised:
        sources.read(text)
    assert "\n" not in str(raised.value)
