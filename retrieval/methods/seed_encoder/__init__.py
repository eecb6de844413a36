"""SEED-Encoder: an autoencoder with a weak decoder (Lu et al. 2021)."""

NAMES = {"recipe": {"recipe": "autoencoder"}}
