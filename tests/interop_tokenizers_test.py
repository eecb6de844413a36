"""Tokenizers of every family: the ids of transformers, and the embeddings of sentence-transformers with prompts."""

import json

import numpy as np
import pytest
from support import exported
from support.languages import lines
from support.packages import package
from support.tokenizer_kinds import KINDS, write

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers import vocabularies

transformers, sentence_transformers = package("transformers"), package("sentence_transformers")

# transformers 5 makes the pipelines of these anew from their vocabulary: of T5 with another normaliser than ours, and
# of Mistral without the token behind a text. With another class it reads the file.
REMADE = ("T5", "E5-Mistral")


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers(tmp_path, kind):
    write(tmp_path, kind)
    vocabulary, path = vocabularies.load(tmp_path), tmp_path / "tokenizer_config.json"
    if kind in REMADE:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    if kind == "E5-Mistral":
        theirs.add_bos_token = theirs.add_eos_token = True  # as its settings say
    for line in lines():
        assert theirs(line)["input_ids"] == vocabulary.single(vocabulary.encode(line), 10_000)
    long = " ".join(lines()[:40])
    cut = theirs(long, truncation=True, max_length=24)["input_ids"]
    assert cut == vocabulary.single(vocabulary.encode(long), 24)


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_what_is_exported(tmp_path, kind):
    write(tmp_path / "published", kind)
    vocabulary = vocabularies.load(tmp_path / "published")
    (tmp_path / "export").mkdir()
    vocabulary.export(tmp_path / "export", length=32, types=1)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "export")
    rows = theirs(lines(), truncation=True, padding=True)  # which takes a token of padding
    for line, ids, mask in zip(lines(), rows["input_ids"], rows["attention_mask"]):
        ours = vocabulary.single(vocabulary.encode(line), 32)
        assert ids[: len(ours)] == ours and sum(mask) == len(ours)


@pytest.mark.parametrize(
    ("kind", "titles"), [("Qwen3-Embedding", "joined"), ("EmbeddingGemma", "pair"), ("T5", "pair")]
)
def test_sentence_transformers_embeds_the_same_with_prompts(tmp_path, kind, titles):
    """Titles of pairs are a first text there, those that are joined the beginning of one."""
    write(tmp_path / "published", kind)
    vocabulary = vocabularies.load(tmp_path / "published")
    prompts = {"data.query_prefix": "Instruct: Find it.\nQuery:", "data.document_prefix": "title: none | text:"}
    changes = {**prompts, "data.titles": titles, "model.tied": True, "model.pooling": "mean"}
    changes |= {"model.type_vocab_size": 1, "model.layer_norm_epsilon": 1e-5, "data.query_length": 32}
    run = exported.work_directory(tmp_path / "run", vocabulary=vocabulary, **changes)
    theirs = sentence_transformers.SentenceTransformer(str(exported.export(run)), device="cpu")
    documents = [Candidate(line, line[:9].strip(), line) for line in lines()]
    if titles == "joined":
        texts = [" ".join(filter(None, (each.title, each.text))) for each in documents]
    else:
        texts = [(each.title, each.text) if each.title else each.text for each in documents]
    queries_QE, documents_NE = exported.embed(run, lines(), documents)
    np.testing.assert_allclose(theirs.encode_query(lines()), queries_QE, rtol=0, atol=1e-5)
    np.testing.assert_allclose(theirs.encode_document(texts), documents_NE, rtol=0, atol=1e-5)
