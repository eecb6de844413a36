"""The format of evaluation sets 'qa_dev': of training questions with answers, those that ORQA validates on."""

from collections.abc import Iterator
from pathlib import Path

from retrieval.data.corpora import source_paths
from retrieval.data.sets import orqa_split, qa
from retrieval.data.sets.beir import RetrievalSet
from retrieval.data.sets.set_format import Given, register
from retrieval.errors import UserError


@register
class HeldOut(qa.OpenDomain):
    """The format 'qa_dev': of files of training questions those that ORQA validates on, together one set.

    The stage `spans` trains on the others, where `spans.questions` names the same files.
    """

    name = "qa_dev"
    what = "the tenth of open-domain training questions that ORQA validates on (the set qa-dev)"
    setting = "--config.sets.qa_dev=psgs_w100.tsv,QUESTIONS,… or corpus,QUESTIONS,…"

    def read(self, value: str, given: Given) -> Iterator[RetrievalSet]:
        paths = [Path(path) for path in source_paths.split(value)[1:]]
        queries, answers = qa.read_questions(paths, given.options["sets.qa_patterns"])
        held_out = [id for id, is_dev in zip(queries, orqa_split.is_held_out(list(queries.values()))) if is_dev]
        if not held_out:
            raise UserError(
                f"config.sets.{self.name}={value}: ORQA holds out none of these {len(queries)} questions; it takes "
                "about a tenth: name files with more of them, or leave the set out"
            )
        (name,) = self.names(value)
        of_dev = {id: queries[id] for id in held_out}, {id: answers[id] for id in held_out}
        yield qa.set_of(name, qa.passages_of(self.name, value, given), *of_dev)

    def names(self, value: str) -> list[str]:
        return ["qa-dev"]
