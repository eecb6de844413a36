"""The corpus 'tfds:wikipedia/…': a Wikipedia of TensorFlow Datasets."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.data.corpora import tfds_source
from retrieval.data.corpora.corpus_kind import CorpusKind, Options, register
from retrieval.errors import UserError


@register
class TfdsWikipedia(CorpusKind):
    """Plain text without links. Its name and version say all about it, so it has no input files."""

    name = "tfds"
    what = "a Wikipedia of TensorFlow Datasets"
    setting = "--config.corpus=tfds:wikipedia/CONFIG"

    def takes(self, part: str) -> bool:
        """What begins with 'tfds:'."""
        return tfds_source.is_source(part)

    def check(self, parts: Sequence[str], options: Options) -> None:
        """It stands alone, and is a Wikipedia."""
        if len(parts) > 1:
            raise UserError(
                f"config.corpus={','.join(parts)}: a corpus of TFDS stands alone, and here another is beside it; "
                "prepare one of them"
            )
        tfds_source.check_source(parts[0], "wikipedia")

    def read(self, parts: Sequence[str], options: Options, lock: Path) -> Iterator[Any]:
        """Its articles."""
        return tfds_source.read_pages(parts[0])

    def parse(self, page: Any, options: Options) -> Sequence[Any]:
        """An article of one page."""
        return tfds_source.parse_page(page)
