"""Settings with which tests prepare a small corpus."""

from retrieval.data.corpora.passages import Limits
from retrieval.data.shards import prepared_corpus

SETTINGS = prepared_corpus.Settings(
    vocabulary=None, vocab_size=300, num_shards=4, limits=Limits(longest=60, shortest=10, least=5), chunk_bytes=30 << 20
)
