"""Where retrieval goes wrong: at the article, or at the passage within it.

A system may find the topic of a question and miss the passage, or the other way round. Two rules tell these apart.
'Article' takes every passage of a right passage's article as right. 'Within the article' ranks the passages of that
article alone.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from retrieval.evaluation.metrics import Qrels, cutoff


class Questions:
    """The questions whose right passages have known articles.

    Attributes:
      queries: their ids.
      numbers: the place of each among all queries of the set.
      golds: rows of each one's right passages.
      articles_N: the number of each candidate's article; -1 where it is not known.
    """

    def __init__(self, query_ids: Iterable[str], candidate_ids: Sequence[str], articles: Sequence[str], qrels: Qrels):
        """Args:
        articles: of each candidate; '' where it is not known.
        """
        names = {name: number for number, name in enumerate(dict.fromkeys(filter(None, articles)))}
        self.articles_N = np.array([names.get(name, -1) for name in articles])
        row_of = {id: row for row, id in enumerate(candidate_ids)}
        self.queries, self.numbers, self.golds = list[str](), list[int](), list[np.ndarray]()
        for number, query in enumerate(query_ids):
            rows = np.array([row_of[id] for id, grade in qrels.get(query, {}).items() if grade > 0], int)
            rows = rows[self.articles_N[rows] >= 0]
            if len(rows):
                self.queries.append(query)
                self.numbers.append(number)
                self.golds.append(rows)

    def some(self, most: int) -> np.ndarray:
        """Places in `queries` at equal distances, `most` at most."""
        count = min(most, len(self.queries))
        return np.arange(count) * len(self.queries) // max(count, 1)

    def anywhere(self, rows_QK: np.ndarray, metrics: Sequence[str]) -> dict[str, np.ndarray]:
        """Success and RR by article, of all these questions.

        Args:
          rows_QK: the results of all queries of the set; -1 where there is none.
        """
        articles_QK = np.where(rows_QK >= 0, self.articles_N[rows_QK], -1)
        right = [np.isin(articles_QK[number], self.articles_N[gold]) for number, gold in zip(self.numbers, self.golds)]
        ranks_Q = np.array([hits.argmax() + 1 if hits.any() else 0 for hits in right])
        return _values(ranks_Q, metrics)

    def within(
        self, among: Callable[[int, np.ndarray], np.ndarray], most: int, metrics: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Success and RR among the passages of the right article, of the questions that `some` gives.

        Args:
          among: scores [K] of rows [K] for the query of a number.
        """
        order = np.argsort(self.articles_N, kind="stable")
        sorted_N = self.articles_N[order]
        ranks = []
        for place in self.some(most):
            gold = self.golds[place]
            articles = np.unique(self.articles_N[gold])
            starts, ends = np.searchsorted(sorted_N, articles), np.searchsorted(sorted_N, articles, side="right")
            rows = np.sort(np.concatenate([order[start:end] for start, end in zip(starts, ends)]))
            scores = among(self.numbers[place], rows)
            best = np.lexsort((rows, -scores))
            ranks.append(np.isin(rows[best], gold).argmax() + 1)
        return _values(np.array(ranks), metrics)


def _values(ranks_Q: np.ndarray, metrics: Sequence[str]) -> dict[str, np.ndarray]:
    """The metrics of each question by the rank of its first right result, 0 where there is none."""
    rr_Q = np.where(ranks_Q > 0, 1 / np.maximum(ranks_Q, 1), 0.0)
    return {name: rr_Q if name == "RR" else (rr_Q >= 1 / cutoff(name)).astype(float) for name in metrics}
