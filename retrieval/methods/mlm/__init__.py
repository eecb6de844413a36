"""Masked language model, alone and with next-sentence prediction (Devlin et al. 2019)."""

NAMES = {"recipe": {"recipe": "mlm bert"}, "task": {"task": "mlm next_sentence"}}
