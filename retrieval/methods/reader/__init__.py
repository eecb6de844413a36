"""ProQA's and ORQA's extractive reader: answers as spans of paragraphs."""
