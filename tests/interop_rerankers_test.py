"""Rerankers of every family in transformers and sentence-transformers: the same scores as here, there and back."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import judges
from support.modules import spread
from support.packages import package
from support.tiny import make_run

from retrieval.common.runtime.filler import FILLER
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.methods.reranker.model import CrossEncoder, load_cross_encoder, write_cross_encoder
from retrieval.methods.reranker.trained import RERANKERS
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.encoders.family import FAMILIES
from retrieval.models.text import Text
from retrieval.models.transformer_config import TransformerConfig
from retrieval.training.loss_kind import LOSSES

torch, transformers, sentence_transformers = package("torch"), package("transformers"), package("sentence_transformers")

WORDS = "where do zebras live they graze on grassland in africa and lions sleep there ?".split()
VOCABULARY = WordPiece([*SPECIAL_TOKENS, *WORDS])
PAIRS = [
    ("where do zebras live?", "zebras graze on grassland in africa"),
    ("where do zebras live?", "lions sleep"),
    ("do lions sleep?", "they live there and there and there and there and there and there"),
]
SIZES = dict(vocab_size=len(VOCABULARY), num_layers=3, hidden_size=24, num_heads=3, mlp_size=16, max_length=24)
# The switches that make a tiny model of a family differ from its neighbours.
CASES = {
    "bert": {},
    "modernbert": dict(window=2),
    "qwen3": dict(kv_heads=1, head_size=6),
    "qwen2": {},
    "llama": dict(kv_heads=1),
    "mistral": dict(kv_heads=1, window=3),
    "gemma3_text": dict(kv_heads=1, head_size=6, score_size=8, window=3, global_every=2),
    "mpnet": {},
    "nomic_bert": {},
    "gte": {},
}


def texts(with_types=True):
    encoded = [[VOCABULARY.encode(text) for text in pair] for pair in PAIRS]
    ids, types = np.full((len(PAIRS), 24), FILLER, np.int32), np.zeros((len(PAIRS), 24), np.int32)
    for row, (query, passage) in enumerate(encoded):
        pair = VOCABULARY.pair(query, passage, 24)
        ids[row, : len(pair)] = pair
        types[row, len(query) + 2 : len(pair)] = with_types
    return Text.from_ids(jnp.asarray(ids), jnp.asarray(types))


def made(family, classes=1, pooling=""):
    architecture = FAMILIES[family].architecture.replaced(**CASES[family])
    types = 2 if family in ("bert", "nomic_bert") else 1
    sizes = TransformerConfig(**SIZES, architecture=architecture, type_vocab_size=types, layer_norm_epsilon=1e-5)
    return spread(CrossEncoder(sizes, classes, pooling=pooling, rngs=nnx.Rngs(0)), size=0.2)


def logits(model, text):
    """What transformers gives, of classes one after the other."""
    given = {
        "input_ids": np.maximum(text.ids_RL, VOCABULARY.pad_id),
        "attention_mask": text.segments_RL,
        "token_type_ids": text.types_RL,
    }
    if model.config.model_type not in ("bert", "nomic_bert"):
        del given["token_type_ids"]
    with torch.no_grad():
        return model.eval()(**{name: torch.from_numpy(np.array(x)).long() for name, x in given.items()}).logits.numpy()


def config_of(family, folder):
    """That of a tiny model of theirs. RoBERTa's positions begin behind padding's; DistilBERT's pooler has a ReLU."""
    sizes = dict(vocab_size=len(VOCABULARY), max_position_embeddings=26, num_labels=2)
    if family == "xlm-roberta":
        layers = dict(num_hidden_layers=2, hidden_size=24, num_attention_heads=3, intermediate_size=16)
        return transformers.XLMRobertaConfig(pad_token_id=1, type_vocab_size=1, **layers, **sizes)
    if family == "distilbert":
        return transformers.DistilBertConfig(n_layers=2, dim=24, n_heads=3, hidden_dim=16, **sizes)
    write_cross_encoder(folder, made(family), VOCABULARY.pad_id)
    return transformers.AutoConfig.from_pretrained(folder, num_labels=2)


@pytest.mark.parametrize("family", [*CASES, "xlm-roberta", "distilbert"])
def test_a_folder_of_transformers_gives_the_same_logits(family, tmp_path):
    """Of two classes, with its parameters drawn anew: a fresh norm hides what is wrong with it."""
    config = config_of(family, tmp_path)
    torch.manual_seed(0)
    theirs = transformers.AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").float()
    for parameter in theirs.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path / "theirs")
    folder = EncoderFolder.open(tmp_path / "theirs")
    ours = load_cross_encoder(folder, TransformerConfig(**folder.sizes, dropout=0.0))(texts(), None)
    assert np.ptp(ours) > 0.01
    np.testing.assert_allclose(ours, logits(theirs, texts()), rtol=0, atol=1e-5)


def written(model, folder):
    """The model, with its tokenizer, as sentence-transformers has it."""
    types = model.encoder.config.type_vocab_size
    write_cross_encoder(folder, model, VOCABULARY.pad_id)
    VOCABULARY.export(folder, length=24, types=types, pair=VOCABULARY.pair_template)
    return sentence_transformers.CrossEncoder(str(folder), device="cpu")


@pytest.mark.parametrize(("family", "classes"), [("bert", 2), ("modernbert", 2), ("qwen3", 2), ("gte", 2)])
def test_sentence_transformers_gives_the_same_scores(family, classes, tmp_path):
    """By the tokenizer that is written beside the weights, which pads as it tells."""
    model = made(family, classes)
    theirs = written(model, tmp_path)
    ours = jax.device_get(model.scores(texts(with_types=family == "bert")))
    assert np.ptp(ours) > 0.01
    np.testing.assert_allclose(theirs.predict(PAIRS), ours, rtol=0, atol=1e-5)
    ranked = theirs.rank(PAIRS[0][0], [passage for _, passage in PAIRS[:2]])
    assert [result["corpus_id"] for result in ranked] == np.argsort(-ours[:2]).tolist()


@pytest.mark.parametrize("activation", ["Identity", "Sigmoid", "LogSigmoid", None])
@pytest.mark.parametrize("saved", [False, True], ids=["version 4", "version 5"])
def test_scores_are_what_the_library_makes_of_the_logit(activation, saved, tmp_path):
    """Version 4 writes into config.json what it makes of it, and version 5 into a file of its own."""
    written(made("bert"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": f"torch.nn.{activation}"} if activation else {}
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = sentence_transformers.CrossEncoder(str(tmp_path), device="cpu")
    if saved:
        theirs.save_pretrained(str(tmp_path / "saved"))
    folder = EncoderFolder.open(tmp_path / "saved" if saved else tmp_path)
    ours = load_cross_encoder(folder, TransformerConfig(**folder.sizes, dropout=0.0)).scores(texts())
    assert np.ptp(ours) > 0.01
    np.testing.assert_allclose(ours, theirs.predict(PAIRS), rtol=0, atol=1e-5)


def test_sentence_transformers_judges_alike(inputs, tmp_path):
    """By a chat template that puts the pair in the words of Qwen3-Reranker."""
    folder = tmp_path / "judge"
    judges.write(folder, tied=False)
    part = '{{{{ messages | selectattr("role", "eq", "{}") | map(attribute="content") | first }}}}'
    text = "".join(judges.TOLD).format(*map(part.format, ("query", "document")))
    text = text.rstrip("\n") + r'{{ "\n\n" }}'  # Jinja would drop the last end of line
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": text}))
    theirs = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    theirs.save_pretrained(str(tmp_path / "saved"))
    run = make_run("monobert", inputs, tmp_path / "run", **{"rerank.length": 1000})
    documents = [f"{each.title} {each.text}".lstrip() for each in judges.DOCUMENTS]
    wanted = theirs.predict(list(zip(judges.QUERIES, documents)))
    assert np.ptp(wanted) > 0.01
    for place in (folder, tmp_path / "saved"):
        ours = RERANKERS.open(run, str(place), "config.rerank.model").scores(judges.QUERIES, judges.DOCUMENTS)
        np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("lambda_loss", "LambdaLoss"), ("list_mle", "ListMLELoss"), ("ranknet", "RankNetLoss")]
)
def test_listwise_losses_are_those_of_sentence_transformers(ours, theirs):
    torch, losses = package("torch"), package("sentence_transformers.cross_encoder.losses")
    random = np.random.default_rng(0)
    scores, grades = random.normal(size=(3, 5)).astype(np.float32), random.permuted([[0, 1, 2, 3, 4]] * 3, axis=1)

    class Scores(torch.nn.Module):
        """In place of a cross-encoder: the scores of all pairs."""

        num_labels, device = 1, "cpu"

        def preprocess(self, pairs, **_):
            return {}

        def forward(self, _):
            return {"scores": torch.tensor(scores).reshape(-1)}

    options = {"respect_input_order": False} if ours == "list_mle" else {}
    loss = getattr(losses, theirs)(Scores(), mini_batch_size=-1, **options)
    expected = loss((["q"] * 3, [["d"] * 5] * 3), [torch.tensor(row).float() for row in grades])
    ids = np.arange(15, dtype=np.int32).reshape(3, 5)
    values, _ = LOSSES[ours]()(scores, {"document_id": ids, "teacher": grades.astype(np.float32)})
    unit = np.log(2) if ours == "ranknet" else 1.0  # theirs is in bits
    np.testing.assert_allclose(values.mean(), unit * expected.item(), rtol=1e-5)
