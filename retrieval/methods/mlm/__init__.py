"""Masked language model, alone and with next-sentence prediction (Devlin et al. 2019)."""
