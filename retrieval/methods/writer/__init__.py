"""A sequence-to-sequence writer of questions: question generation and doc2query."""

NAMES = {
    "recipe": {"recipe": "seq2seq"},
    "stage": {"stage": "generate"},
    "task": {"examples": "doc2query"},
    "format": {"examples": "generated squad_answers"},
    "index": {"expanded_index": "doc2query"},
}
