"""The maker of answers 'spacy': named entities and dates (Xiong et al. 2020, section 3.1), by a model of spaCy."""

import functools
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from retrieval import extras
from retrieval.errors import UserError, first_line
from retrieval.methods.writer.answer_maker import MAKERS, AnswerMaker, Span

MODEL = "en_core_web_sm"


class Entities(AnswerMaker):
    """spaCy's named entities."""

    name = "spacy"
    what = f"named entities and dates, by spaCy's model {MODEL}"

    def check(self) -> None:
        """As `AnswerMaker.check`."""
        self._model()

    def spans(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        """As `AnswerMaker.spans`."""
        for document in self._model().pipe(texts):
            yield [Span(entity.start_char, entity.end_char) for entity in document.ents]

    @functools.cache  # noqa: B019 - the table has one maker
    def _model(self) -> Any:
        try:
            spacy = importlib.import_module("spacy")
        except ImportError as error:
            raise extras.missing("config.generate.answers=spacy", "spacy", "spacy") from error
        try:
            return spacy.load(MODEL, exclude=["lemmatizer", "attribute_ruler"])
        except OSError as error:
            raise UserError(
                f"config.generate.answers=spacy: its model {MODEL} is not installed ({first_line(error)}): "
                f"python -m spacy download {MODEL}, or take config.generate.answers=rules"
            ) from error


MAKERS.register(Entities.name, Entities())
