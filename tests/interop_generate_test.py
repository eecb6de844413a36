"""Published encoder-decoders of transformers as what the stage `generate` writes with."""

import pytest
from support.packages import package

from retrieval.data.sets.beir import Candidate
from retrieval.methods.writer.decoding import BEAM, GREEDY, SAMPLE, Decoding
from retrieval.methods.writer.stage import PublishedWriter

torch, transformers = package("torch"), package("transformers")
WORDS = "<pad> </s> <unk> where do zebras live they graze on grassland in africa and lions sleep there".split()
PASSAGES = [
    Candidate("a", "Zebras", "they graze on grassland in africa"),
    Candidate("b", "", "lions sleep"),
    Candidate("c", "", "there and there and there and there"),
]


def tokeniser():
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.normalizer, core.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = dict(pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, **special)


def t5():
    sizes = dict(d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=len(WORDS), decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **sizes)
    )


def bart():
    sides = ("encoder", "decoder")
    sizes = {f"{side}_{name}": size for side in sides for name, size in dict(layers=1, ffn_dim=24).items()}
    heads = {f"{side}_attention_heads": 2 for side in sides}
    ids = dict(pad_token_id=0, bos_token_id=0, eos_token_id=1, decoder_start_token_id=1, forced_eos_token_id=None)
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(vocab_size=len(WORDS), d_model=16, max_position_embeddings=20, **sizes, **heads, **ids)
    )


@pytest.fixture(scope="module", params=[t5, bart], ids=["t5", "bart"])
def folder(request, tmp_path_factory):
    torch.manual_seed(3)
    model, folder = request.param(), tmp_path_factory.mktemp("published")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    tokeniser().save_pretrained(folder)
    return folder


def write(folder, passages=PASSAGES, **changes):
    decoding = Decoding(**(dict(way=GREEDY, texts=1, tokens=8) | changes))
    return PublishedWriter(folder, decoding, 16).write(passages)


def test_greedy_texts_equal_a_loops(folder):
    model, words = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), tokeniser()
    for passage, (written,) in zip(PASSAGES, write(folder)):
        source = words(f"{passage.title} {passage.text}".strip(), return_tensors="pt").input_ids
        ids = [model.config.decoder_start_token_id]
        while len(ids) < 9 and (len(ids) == 1 or ids[-1] != 1):
            with torch.no_grad():
                logits = model(input_ids=source, decoder_input_ids=torch.tensor([ids])).logits[0, -1]
            ids.append(int(logits.argmax()))
        assert written.text == words.decode(ids[1:], skip_special_tokens=True).strip()
        assert written.log_probability is None and written.is_cut == (ids[-1] != 1)


@pytest.mark.parametrize("changes", [dict(way=SAMPLE, texts=4, seed=1), dict(way=BEAM, texts=2)])
def test_a_passages_texts_do_not_depend_on_others(folder, changes):
    together = write(folder, **changes)
    assert together == [write(folder, [passage], **changes)[0] for passage in PASSAGES]
    assert all(len(texts) == changes["texts"] for texts in together)
