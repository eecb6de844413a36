"""A small made-up corpus with sections, links and redirects, for the tests of everything behind the readers."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

from retrieval.data.corpora.articles import Article, Broken, Dropped, Link, Paragraph, Redirect, Section
from retrieval.data.corpora.corpus_kind import Source
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate, RetrievalSet

COLOURS = ("red", "green", "blue", "white", "black", "brown", "yellow", "orange")
ANIMALS = ("fox", "dog", "cat", "owl", "hen", "ox", "ant", "bee", "cow", "pig", "rat", "elk", "emu", "yak", "ape")


@dataclasses.dataclass(frozen=True)
class Page:
    """An article number; `size` makes the local runner cut the corpus into several tasks."""

    number: int
    size: int = 1 << 20


def title(number: int) -> str:
    """'Red fox', 'Green dog' ...: every number below 120 has another title."""
    return f"{COLOURS[number % 8].capitalize()} {ANIMALS[number % 15]}"


def article(number: int) -> Article:
    """Article i links to i + 1 by its title, to i + 2 by a redirect, to a page that is missing, and to itself."""
    name = title(number)
    lead = f"The {name} is an animal number {number}. It lives in the {COLOURS[number % 5]} forest. It is small."
    links = [title((number + 1) % 120), f"Alias of {title((number + 2) % 120)}", "No such page", name]
    text, spans = f"A {name} often meets other animals of the forest. It knows ", []
    for target in links:
        spans.append(Link(target, len(text), len(text) + len(target)))
        text += f"{target}, "
    text += "and more. Every winter it sleeps for many weeks under the snow."
    body = (Paragraph(text, tuple(spans)), Paragraph(f"The {name} eats grass and leaves. Nobody knows why it does so."))
    return Article(str(number), name, (Section("", 1, (Paragraph(lead),)), Section("Life", 2, body)))


def read() -> Iterator[Page | Redirect | Dropped | Broken]:
    """120 articles, a redirect to each, one dropped page and one break."""
    for number in range(120):
        yield Page(number)
        yield Redirect(f"Alias of {title(number)}", title(number))
    yield Dropped("Talk:Red fox", "other namespace")
    yield Broken("toy.xml: cut off after 'Yellow ape'")


def parse(page: Page) -> list[Article]:
    """The parser that goes with `read`."""
    return [article(page.number)]


def source() -> Source:
    """The toy corpus as `prepare` takes it."""
    return Source(read, parse)


def write_dump(path) -> None:
    """The toy articles and their redirects as a MediaWiki export."""
    pages = []
    for number in range(120):
        item = article(number)
        text = []
        for section in item.sections:
            text += [f"== {section.heading} =="] if section.heading else []
            for paragraph in section.paragraphs:
                wikitext = paragraph.text
                for link in reversed(paragraph.links):
                    wikitext = f"{wikitext[: link.start]}[[{link.target}]]{wikitext[link.end :]}"
                text.append(wikitext)
        body = "\n\n".join(text)
        pages.append(_page(number + 1, item.title, body))
        pages.append(_page(number + 1001, f"Alias of {item.title}", f"#REDIRECT [[{item.title}]]"))
    site = '<siteinfo><namespaces><namespace key="0" case="first-letter" /></namespaces></siteinfo>'
    root = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="en">'
    path.write_text(f"{root}{site}{''.join(pages)}</mediawiki>")


def _page(number: int, name: str, text: str) -> str:
    target = re.match(r"#REDIRECT \[\[(.*)\]\]", text)
    redirect = f'<redirect title="{target[1]}" />' if target else ""
    return (
        f"<page><title>{name}</title><ns>0</ns><id>{number}</id>{redirect}"
        f"<revision><id>1</id><text>{text}</text></revision></page>"
    )


def write_inputs(folder: Path) -> Path:
    """The dump and the questions on it: `dump.xml` and `squad.json`, in an existing folder, which is returned."""
    write_dump(folder / "dump.xml")
    write_squad(folder / "squad.json")
    return folder


def write_squad(path, articles: int = 12) -> None:
    """A SQuAD file: two questions on the body of each of the first toy articles."""
    data = []
    for number in range(articles):
        name, text = title(number), article(number).sections[1].paragraphs[1].text
        questions = [
            {
                "id": f"{number}-0",
                "question": f"What does the {name} eat?",
                "answers": [_answer(text, "grass and leaves")],
            },
            {
                "id": f"{number}-1",
                "question": f"Who knows why the {name} does so?",
                "answers": [_answer(text, "Nobody")],
            },
        ]
        data.append({"title": name, "paragraphs": [{"context": text, "qas": questions}]})
    path.write_text(json.dumps({"version": "1.1", "data": data}))


def write_set(folder: Path, passages: dict[str, str], queries: dict[str, str], answers: dict[str, str]) -> Path:
    """A BEIR folder of texts by their ids; one passage answers each of the queries that have one."""
    candidates = [Candidate(id, "", text) for id, text in passages.items()]
    qrels = {query: {id: 1} for query, id in answers.items()}
    beir.write_folder(folder, RetrievalSet(folder.name, queries, candidates, {"test": qrels}))
    return folder


def _answer(text: str, answer: str) -> dict:
    return {"answer_start": text.index(answer), "text": answer}
