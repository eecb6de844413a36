"""Trained models as files of others: folders of sentence-transformers with their card, ONNX."""
