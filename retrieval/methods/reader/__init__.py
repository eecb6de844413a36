"""ProQA's and ORQA's extractive reader: answers as spans of paragraphs."""

NAMES = {
    "recipe": {"recipe": "reader"},
    "stage": {"spans_stage": "spans", "answer_stage": "answer"},
    "loss": {"model_and_loss": "span_likelihood dpr_reader orqa_reader"},
    "task": {"task": "spans"},
    "trained": {"trained": "reader"},
}
