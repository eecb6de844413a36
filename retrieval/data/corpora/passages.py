"""Articles cut into passages of whole sentences, as token ids."""

import bisect
import collections
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from retrieval.data.corpora import sentences
from retrieval.data.corpora.articles import Article, KnownItem, Link, Paragraph, Section
from retrieval.data.tokenizers.vocab import Vocabulary

# Characters of a token, at most: of a sentence that is longer still, no more is read than its tokens can take.
_LONGEST_TOKEN = 100
_START = operator.attrgetter("start")

# What `cut` counts.
SENTENCES, LONG_SENTENCES = "sentences", "sentences longer than a passage"
TOKENS, CUT_OFF = "tokens", "tokens lost: cut off sentences longer than a passage"
DROPPED = "tokens lost: too few for a passage"


class Sentences(NamedTuple):
    """Token ids of consecutive sentences; `lengths` are their sizes in tokens."""

    ids: tuple[int, ...]
    lengths: tuple[int, ...]


class Passage(NamedTuple):
    """A run of sentences of one section.

    Attributes:
      id: `ARTICLE:INDEX`, where INDEX counts the passages of the article.
      section: the heading that it begins under, '' in the lead.
      in_lead: whether the passage is part of the article's first section.
      targets: titles that the passage links to, each once.
    """

    id: str
    section: str
    text: str
    tokens: Sentences
    in_lead: bool
    targets: tuple[str, ...]


class Limits(NamedTuple):
    """How passages are cut, in tokens.

    None is longer than `longest`. A paragraph that ends before `shortest` is joined with the next one of its section.
    What is left shorter than `least` is dropped. `across_sections`: a passage goes on behind the heading that its
    section ends at. Encoders are pre-trained on such long texts.
    """

    longest: int = 256
    shortest: int = 96
    least: int = 16
    across_sections: bool = False


class _Sentence(NamedTuple):
    section: str
    text: str  # with the white space before it
    ids: tuple[int, ...]
    links: tuple[Link, ...]
    ends_paragraph: bool


def cut(
    article: Article, vocabulary: Vocabulary, limits: Limits, counts: collections.Counter | None = None
) -> tuple[Sentences, list[Passage]]:
    """The sentences of the article's lead, and all its passages in order.

    A passage grows by whole sentences. It is part of the lead if its first sentence is. A sentence of more than
    `limits.longest` tokens is cut off there.

    Args:
      counts: is told how many sentences and tokens there are, and how many tokens no passage has.
    """
    counts = collections.Counter() if counts is None else counts
    one_case = sentences.is_of_one_case("\n".join(p.text for section in article.sections for p in section.paragraphs))
    per_section = [list(_sentences(s, vocabulary, limits.longest, one_case, counts)) for s in article.sections]
    lead = per_section[0] if per_section else []
    runs = [list(itertools.chain(*per_section))] if limits.across_sections else per_section
    groups = [group for run in runs for group in _groups(run, limits)]
    in_lead = set(map(id, lead))  # themselves: another section may have an equal sentence
    passages = [_passage(f"{article.id}:{n}", group, id(group[0]) in in_lead) for n, group in enumerate(groups)]
    tokens = sum(len(sentence.ids) for sentence in itertools.chain(*per_section))
    counts[DROPPED] += tokens - sum(len(passage.tokens.ids) for passage in passages)
    return _join(lead), passages


def sentence_ids(item: KnownItem, vocabulary: Vocabulary, limits: Limits) -> list[tuple[int, ...]]:
    """The sentences of a known item as `cut` has those of articles."""
    one_case = sentences.is_of_one_case(f"{item.query}\n{item.body}")
    section = Section("", 1, (Paragraph(item.query), Paragraph(item.body)))
    return [s.ids for s in _sentences(section, vocabulary, limits.longest, one_case, collections.Counter())]


def _sentences(
    section: Section, vocabulary: Vocabulary, longest: int, one_case: bool, counts: collections.Counter
) -> Iterator[_Sentence]:
    most = _LONGEST_TOKEN * longest
    spans = [(p, start, end) for p in section.paragraphs for start, end in sentences.split(p.text, one_case)]
    tokens = vocabulary.encode_batch([p.text[start : min(end, start + most)] for p, start, end in spans])
    for i, ((paragraph, start, end), ids) in enumerate(zip(spans, tokens)):
        if ids:
            from_, to = (bisect.bisect_left(paragraph.links, at, key=_START) for at in (start, end))
            links = paragraph.links[from_:to]
            last = i + 1 == len(spans) or spans[i + 1][0] is not paragraph
            before, _, after = spans[i - 1] if i else (None, 0, 0)
            space = paragraph.text[after if before is paragraph else 0 : start]
            if not paragraph.text.startswith("\n"):  # of code all white space counts
                # Where nothing stands between sentences, as in Japanese, nothing is put there.
                is_behind_code = before and before.text.startswith("\n")
                space = "" if before is paragraph and not space else "\n" if is_behind_code else " "
            counts.update({SENTENCES: 1, TOKENS: len(ids), LONG_SENTENCES: int(len(ids) > longest)})
            counts[CUT_OFF] += max(0, len(ids) - longest)
            yield _Sentence(section.heading, space + paragraph.text[start:end], tuple(ids[:longest]), links, last)


def _groups(section: Sequence[_Sentence], limits: Limits) -> Iterator[list[_Sentence]]:
    group: list[_Sentence] = []
    size = 0
    for sentence in section:
        if size + len(sentence.ids) > limits.longest:
            yield from [group] if size >= limits.least else []
            group, size = [], 0
        group.append(sentence)
        size += len(sentence.ids)
        if sentence.ends_paragraph and size >= limits.shortest:
            yield group
            group, size = [], 0
    yield from [group] if size >= limits.least else []


def _passage(id: str, group: Sequence[_Sentence], in_lead: bool) -> Passage:
    targets = dict.fromkeys(link.target for sentence in group for link in sentence.links)
    text = "".join(sentence.text for sentence in group).removeprefix(" ").lstrip("\n")
    return Passage(id, group[0].section, text, _join(group), in_lead, tuple(targets))


def _join(group: Sequence[_Sentence]) -> Sentences:
    return Sentences(tuple(itertools.chain.from_iterable(s.ids for s in group)), tuple(len(s.ids) for s in group))
