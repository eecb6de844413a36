"""The fields of a run as such: its seed, its stages, and where its corpus, vocabulary and other outputs come from."""

from retrieval.config.fields import PATHS, SEED, TEXTS, Field, declare

declare(
    "",
    seed=Field(0, SEED, "seed of everything random"),
    stages=Field((), TEXTS, "stages of the run"),
    corpus=Field(
        "",
        PATHS,
        "pydocs, MediaWiki exports, tfds:wikipedia/CONFIG, or documents: files, folders and patterns, with commas",
    ),
    base=Field("", PATHS, "work directory of a run whose outputs serve for the stages that are not listed"),
    vocab=Field(
        "",
        PATHS,
        "BERT's vocab.txt, a tokenizer.json, or a folder with either; '': one is trained on the corpus",
    ),
    plugins=Field(
        (), TEXTS, "modules to import first, which add losses, formats, fields, such as ('my_package.losses',)"
    ),
)
