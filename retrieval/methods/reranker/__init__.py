"""Cross-encoder rerankers, and what they teach two towers."""
