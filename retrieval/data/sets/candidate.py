"""Something that can be retrieved: what collections consist of, and what towers embed."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Something that can be retrieved. ReQA's (sentence, passage) pairs are (title, text).

    `section` is the heading that the text stands under; it is shown, and no model reads it. No model reads `article`
    either, the name of the article that the text is from: it tells right articles from wrong ones. `url` is where it is
    on the web.
    """

    id: str
    title: str
    text: str
    section: str = ""
    article: str = ""
    url: str = ""
