"""The collections of a run, their indexes, and what systems find in them."""
