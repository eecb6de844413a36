"""Articles to passages of token ids by `datasets.map` and a fast tokeniser; MB of text a second.

As Hugging Face's guides have it: a section is tokenised and cut after so many tokens in the library's Rust. Sentences,
leads and links, which ours finds too, are not looked for, and the texts lie ready in an Arrow table.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import articles, worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: articles (files), vocabulary, longest (tokens of a passage), processes."""
    import datasets
    from transformers import BertTokenizerFast

    datasets.disable_progress_bars()
    paths = [Path(path) for path in settings["articles"]]
    megabytes = articles.megabytes(paths)
    tokenizer = BertTokenizerFast(vocab_file=settings["vocabulary"], do_lower_case=True)
    texts = datasets.Dataset.from_dict({"text": ["\n".join(paragraphs) for paragraphs in articles.sections(paths)]})

    def cut(rows: Mapping[str, list[str]]) -> dict[str, list[list[int]]]:
        encoded = tokenizer(
            rows["text"],
            add_special_tokens=False,
            truncation=True,
            max_length=settings["longest"],
            return_overflowing_tokens=True,
            return_token_type_ids=False,
            return_attention_mask=False,
        )
        return {"ids": encoded["input_ids"]}

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            texts.map(
                cut,
                batched=True,
                num_proc=settings["processes"],
                remove_columns=["text"],
                cache_file_name=str(Path(folder) / "ids.arrow"),
                load_from_cache_file=False,
            )

    return lambda: {"MB/s": megabytes / timed(work)[1]}


if __name__ == "__main__":
    worker.serve(prepare)
