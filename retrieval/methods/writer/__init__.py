"""A sequence-to-sequence writer of questions: question generation and doc2query."""
