"""A published model as it is: nothing is trained. It is a folder that `sentence-transformers` loads.

    python -m retrieval.main --config=published:hf:sentence-transformers/all-MiniLM-L6-v2 --workdir=runs/minilm \\
        --config.sets.beir=DATA/nfcorpus

The argument is a folder, or a model of Hugging Face's hub. Sizes, lengths, prompts and all modules are the model's own;
fields can be changed. A title and its text are one text, as BEIR's benchmark has them: `data.titles=pair` is for models
that read pairs, such as the exports of this program.

To search your own documents with it, and serve them, prepare them first:

    python -m retrieval.main --config=published:hf:sentence-transformers/all-MiniLM-L6-v2 --workdir=runs/docs \\
        --config.corpus=DATA/docs --config.stages="('prepare','adopt','encode','index')" --config.encode.corpus=True
    python -m retrieval.main --workdir=runs/docs --stage=search --query="how do I read a zip archive"
"""

from pathlib import Path

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults


def get_config(model: str = "", name: str = "published") -> ConfigDict:
    """The stages that evaluate a model.

    Args:
      model: a folder of sentence-transformers or of transformers, or hf:NAME@REVISION.
      name: of the experiment, for errors.

    Raises:
      UserError: it is none, or a part of it is not understood here.
    """
    config = defaults()
    config.stages = ("sets", "adopt", "encode", "index", "evaluate", "report")
    config.data.rates.pairs = 1.0
    config.data.update(held_out=0.0, lanes=8, titles="joined")
    config.prepare.update(shards=8, held_out=0.0)
    config.encode.update(untrained=False, corpus=False, batch_tokens=16_384)
    if model:
        start_from(model, config, f"--config={name}:{model}")
    return config


def start_from(model: str, config: ConfigDict, flag: str) -> None:
    """Gives a config a model's weights and vocabulary, with sizes, modules, prompts and lengths that are its own.

    Args:
      flag: what names it, for errors.

    Raises:
      UserError: it is no model, or a part of it is not understood here.
    """
    from retrieval.runs.weights import exported_towers

    exported_towers.set_sizes(_folder(model, flag), config)
    config.vocab = config.train.init_from = model
    config.model.token_types = "texts"


def start_from_encoder(config: ConfigDict) -> Path | None:
    """Gives a config the encoder and the vocabulary of the published model that `train.init_from` names.

    Returns:
      Its folder; None where that is a run's, or empty.

    Raises:
      UserError: a part of it is not understood here.
    """
    from retrieval.common.runtime import hub
    from retrieval.models.encoder_folder import EncoderFolder
    from retrieval.models.encoders.family import is_encoder
    from retrieval.runs.weights import module_fields

    model = config.train.init_from
    if not model or "," in model or not (hub.is_name(model) or is_encoder(Path(model))):
        return None
    encoder = EncoderFolder.open(folder := _folder(model, f"config.train.init_from={model}"))
    config.model.update(module_fields.encoder_fields(encoder), positions=encoder.sizes["max_length"])
    for name in ("query_length", "document_length"):
        config.data[name] = min(config.data[name], encoder.sizes["max_length"])
    config.vocab = model
    return folder


def _folder(model: str, flag: str) -> Path:
    """Where a published model is, for a flag that names it."""
    from retrieval.common.errors import UserError, hub_hint
    from retrieval.common.runtime import hub
    from retrieval.models.encoders.family import is_encoder

    folder: Path = hub.path(model)
    if not folder.exists():
        raise UserError(f"{flag}: no such folder{hub_hint(model)}")
    if not is_encoder(folder):
        raise UserError(
            f"{flag}: no model there: neither a modules.json nor the config.json of an encoder; name a folder that "
            "sentence-transformers or transformers saved, or hf:NAME"
        )
    return folder
