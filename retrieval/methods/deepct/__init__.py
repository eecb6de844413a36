"""DeepCT: weights of terms for BM25 (Dai & Callan 2019)."""
