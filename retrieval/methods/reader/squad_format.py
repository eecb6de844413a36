"""SQuAD's questions as examples of question generation: of a paragraph and an answer, the question is to be written.

The answer stands where a passage has its title: `[CLS] answer [SEP] paragraph [SEP]` is the source (Xiong et al. 2020,
section 3.1).
"""

from collections.abc import Iterator
from pathlib import Path

from retrieval.data.labelled.grouping import Counts, Example
from retrieval.data.labelled.labelled_format import LabelledFormat, Settings, register
from retrieval.data.sets import reqa
from retrieval.data.sets.beir import Candidate


@register
class SquadAnswers(LabelledFormat):
    """SQuAD v1.1; the first answer of a question counts."""

    name = "squad_answers"
    what = "SQuAD v1.1, answers and paragraphs to questions"
    setting = "--config.pairs.files=train-v1.1.json --config.pairs.format=squad_answers"
    example = reqa.SquadFiles.example
    first = "{"

    def read(self, path: Path, counts: Counts, settings: Settings, folder: Path, pool: int) -> Iterator[Example]:
        for paragraph in reqa.paragraphs(path):
            for question, placed in paragraph.questions:
                if placed:
                    yield Example(question, (Candidate("", placed[0][1], paragraph.text),))
                else:
                    counts.leave_out("questions whose answer is not in its paragraph", f"{path}, '{question}'")
