"""A vocabulary as the files of a Hugging Face tokenizer, which gives the same token ids for every text.

A pair is `[CLS] first [SEP] second [SEP]` with token types 0 and 1, where there are two. "[SEP]" in a text is no
special token, as with `Vocabulary`. What is too long is cut as `Vocabulary.pair` does it.
"""

from pathlib import Path

from retrieval import files
from retrieval.data.tokenizers.template import PairTemplate
from retrieval.data.tokenizers.vocab import Vocabulary


def write_tokenizer(
    folder: Path, vocabulary: Vocabulary, *, length: int, types: int, pair: PairTemplate | None = None
) -> None:
    """Writes `tokenizer.json` and its settings into a folder that is there.

    Word pieces that strip accents get a `vocab.txt` too: its readers strip them.

    Args:
      length: tokens that a text is cut to where truncation is asked for.
      types: token types of the model, 1 or 2; 0 where it takes none.
      pair: what stands around a cross-encoder's pair.
    """
    settings = vocabulary.settings() | {
        "model_input_names": ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"],
        "model_max_length": length,
    }
    vocabulary.save(folder / vocabulary.FILE)
    files.write_text(folder / "tokenizer.json", vocabulary.to_json(max(1, types), pair) + "\n")
    files.write_json(folder / "tokenizer_config.json", settings)
    names = {name: token for name, token in settings.items() if name.endswith("_token")}
    files.write_json(folder / "special_tokens_map.json", names)
