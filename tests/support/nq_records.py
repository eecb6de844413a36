"""Records of Natural Questions in both official forms, made by hand."""

import copy
import gzip
import json
import re

# A token, or (token, its HTML) where they differ. An attribute with a blank, entities, a mark of reference without
# tokens, and letters of two and three bytes stand before and in the paragraph.
HTML = (
    '<html><H1>Köln – „Colonia“</H1>\n<P>\u00a0<b>Köln</b> (<i>Cologne</i>)<sup class="reference">[1]</sup> is a city '
    'of "saints" &amp; <a title="a b">bridges</a>, isn\'t it? It has 1&nbsp;076&#160;000 people<sup>[2]</sup>. '
    'Dr. Who lived<br/> there. </P>\n<Table><Tr><Td colspan="2">Mayor</Td><Td>Ann</Td></Tr></Table>'
    "<Ul><Li>Bob</Li></Ul></html>"
)
TOKENS = [
    *("<H1>", "Köln", "–", ("``", "„"), "Colonia", ("''", "“"), "</H1>"),
    *("<P>", "Köln", "(", "Cologne", ")", "is", "a", "city", "of", ("``", '"'), "saints", ("''", '"'), ("&", "&amp;")),
    *("bridges", ",", "is", "n't", "it", "?", "It", "has", "1", "076", "000", "people", ".", "Dr.", "Who", "lived"),
    *("there", ".", "</P>", "<Table>", "<Tr>", '<Td colspan="2">', "Mayor", "</Td>", "<Td>", "Ann", "</Td>", "</Tr>"),
    *("</Table>", "<Ul>", "<Li>", "Bob", "</Li>", "</Ul>"),
]
TEXT = 'Köln (Cologne) is a city of "saints" & bridges, isn\'t it? It has 1 076 000 people. Dr. Who lived there.'
PLAIN = [token if isinstance(token, str) else token[0] for token in TOKENS]
PARAGRAPH = (PLAIN.index("<P>"), PLAIN.index("</P>") + 1)


def full_record(page, tokens, annotations, id=-797803103760793766, question="how many people"):
    """The full form; the place of a token is the next place of its HTML."""
    data, place, placed = page.encode(), 0, []
    for token in tokens:
        token, written = (token, token) if isinstance(token, str) else token
        start = data.index(written.encode(), place)
        place = start + len(written.encode())
        is_html = bool(re.fullmatch("</?[A-Z].*>", token))
        placed.append({"token": token, "start_byte": start, "end_byte": place, "html_token": is_html})
    return {
        "example_id": id,
        "question_text": question,
        "document_title": "Köln",
        "document_url": "https://example.org/K%C3%B6ln",
        "document_html": page,
        "document_tokens": placed,
        "annotations": [with_bytes(annotation, placed) for annotation in annotations],
    }


def with_bytes(annotation, placed):
    def span(start, end):
        if start < 0:
            return {"start_token": -1, "end_token": -1, "start_byte": -1, "end_byte": -1}
        first, last = placed[start], placed[end - 1]
        return {"start_token": start, "end_token": end, "start_byte": first["start_byte"], "end_byte": last["end_byte"]}

    long_answer, short_answers, yes_no = annotation
    return {
        "annotation_id": 1,
        "long_answer": span(*long_answer) | {"candidate_index": 0},
        "short_answers": [span(*short) for short in short_answers],
        "yes_no_answer": yes_no,
    }


def simplified(record):
    """The simplified form of a full record: blanks within a token become underscores, and bytes go."""
    record = copy.deepcopy(record)
    record["document_text"] = " ".join(token["token"].replace(" ", "_") for token in record.pop("document_tokens"))
    del record["document_html"]
    for annotation in record["annotations"]:
        for span in (annotation["long_answer"], *annotation["short_answers"]):
            del span["start_byte"], span["end_byte"]
    return record


def words(*found, after=0):
    """The tokens of an answer, by its words."""
    start = next(i for i in range(after, len(PLAIN)) if PLAIN[i : i + len(found)] == list(found))
    return (start, start + len(found))


def city(*annotations, **kwargs):
    return full_record(HTML, TOKENS, annotations, **kwargs)


PEOPLE = (PARAGRAPH, [words("1", "076", "000")], "NONE")


def write(path, *records):
    data = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def judged(value, rule="pair"):
    """question -> {(sentence, paragraph)}"""
    by_id = {c.id: (c.title, c.text) for c in value.candidates}
    assert all(grade == 1 for grades in value.qrels[rule].values() for grade in grades.values())
    return {value.queries[q]: {by_id[id] for id in grades} for q, grades in value.qrels[rule].items()}


# Blanks in tags, in a token and in text without tokens, dashes with a space on none, both or one side, list items.
HARD_HTML = (
    '<P>In 1998–99 <a title="x y">H</a><sub class="x y">2</sub>O<sup>[a b]</sup>ran.\nA<b> "b"</b>c — 3 ½l —e '
    "&lt;f&gt;<Li>g</Li>h</P>"
)
HARD_TOKENS = [
    *("<P>", "In", "1998", ("--", "–"), "99", "H", "2", "O", "ran", ".", "A", ("``", '"'), "b", ("''", '"'), "c"),
    *(("--", "—"), "3 ½", "l", ("--", "—"), "e", ("<", "&lt;"), "f", (">", "&gt;"), "<Li>", "g", "</Li>", "h", "</P>"),
]
HARD_SECOND = 'A "b"c -- 3 ½l --e <f> g h'
HARD_TEXT = f"In 1998--99 H2O ran. {HARD_SECOND}"


def hard():
    return full_record(HARD_HTML, HARD_TOKENS, [((0, len(HARD_TOKENS)), [(10, 11)], "NONE")], question="hard")


TABLE = (PLAIN.index("<Table>"), PLAIN.index("</Table>") + 1)
LEFT_OUT = {
    "no long answer": ((-1, -1), [], "NONE"),
    "no short answer": (PARAGRAPH, [], "NONE"),
    "answered by yes or no": (PARAGRAPH, [], "YES"),
    "several short answers": (PARAGRAPH, [words("1"), words("Dr.")], "NONE"),
    "the long answer is not a paragraph": (TABLE, [words("Ann")], "NONE"),
    "the short answer is outside of its paragraph": (PARAGRAPH, [words("Ann")], "NONE"),
    "no word in the short answer": (PARAGRAPH, [words("</P>")], "NONE"),
}
