"""Plain text: a file is a document, its name the title. Empty lines end a paragraph."""

from retrieval.data.corpora.document_format import DocumentFormat, register


@register
class PlainText(DocumentFormat):
    """What has no headings is all lead."""

    name = "text"
    what = "plain text, a document each"
    suffixes = (".txt", ".text")
    example = "A paragraph. Another sentence."
