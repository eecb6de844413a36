"""How long the features of an example are, which tasks and feature converters take."""

from retrieval.data.examples import masking


def pair_lengths(
    query: int, document: int, negatives: int = 0, positives: int = 0, teacher: bool = False
) -> dict[str, int]:
    """The lengths that tasks of pairs and their converter take; a query has a positive and so many hard negatives.

    Args:
      positives: ids of known positives that an example has room for; 0: it has none of them.
      teacher: whether an example has a teacher's scores.
    """
    lengths = {"query": query, "document": document, "document_id": 1 + negatives, "log_q": 1 + negatives}
    lengths |= {"positive_ids": positives} if positives else {}
    return lengths | ({"teacher": 1 + negatives} if teacher else {})


def mlm_lengths(text: int) -> dict[str, int]:
    """The lengths that the MLM task and its converter take: as many positions as a full row has masked tokens."""
    masked = max(1, masking.share(text - 2, masking.MASKED))
    return {"text": text, "positions": masked, "labels": masked}


def next_sentence_lengths(text: int) -> dict[str, int]:
    """As `mlm_lengths`, with a place for whether the second text is a random one."""
    return {**mlm_lengths(text), "is_random": 1}


def generation_lengths(source: int, target: int) -> dict[str, int]:
    """The lengths that tasks of generation and their converter take."""
    return {"source": source, "target": target}


def terms_lengths(text: int) -> dict[str, int]:
    """The lengths that tasks of weighed words and their converter take."""
    return dict.fromkeys(("text", "targets", "counts"), text)


def span_lengths(
    row: int, paragraphs: int, spans: int, retrieved: int, question: int = 0, candidates: int = 0
) -> dict[str, int]:
    """The lengths that tasks of readers and their converter take.

    Args:
      retrieved: scores of the retriever.
      question: tokens of a question as its tower takes it, where that is trained too.
      candidates: that this tower is trained with; 0: it is not.
    """
    lengths = {"pair": row, "paragraph": paragraphs, "spans": spans, "retrieved": retrieved}
    return lengths | ({"question": question, "candidates": candidates, "holds": candidates} if candidates else {})
