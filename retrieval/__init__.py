"""Embedding-based retrieval: pre-training, fine-tuning, search and evaluation."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
