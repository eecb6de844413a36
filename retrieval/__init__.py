"""Embedding-based retrieval: pre-training, fine-tuning, search and evaluation."""
