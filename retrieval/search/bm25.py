"""BM25 over words: every (word, passage) weight is computed once, and a sparse matrix product adds them up per query.

The variant is Lucene's: idf = ln(1 + (N - n + 0.5) / (n + 0.5)), times tf / (tf + k1 (1 - b + b length / mean length)).
`search/words.py` says what a word is. The kinds of index 'bm25' and 'bm25_also' are over a passage's title and text. A
kind of one's own that indexes other words of a passage inherits from `Bm25Kind`.

The package bm25s has the same weights, and is the tests' oracle. It is no replacement: it takes lists of words (190
bytes a distinct word, ours 69; MS MARCO has 250 million), in which DeepCT's weight of 100 is a hundred words, and of
equal scores it returns any.
"""

import array
import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from retrieval.common.errors import UserError
from retrieval.common.files import atomic, read_arrays, read_json, verify_manifest, write_json, write_manifest
from retrieval.search.index_kind import IndexKind, Options, Texts, register
from retrieval.search.sparse import SparseIndex
from retrieval.search.words import ENGLISH, Words

if TYPE_CHECKING:
    from retrieval.data.sets.candidate import Candidate

WORDS = ("index.bm25_stop_words", "index.bm25_stemmer")  # the fields that say what a word is
MOST = (1 << 31) - 1  # times that a word of a passage can count
_PART = 65_536  # passages whose weights are computed at a time
_WEIGHTS, _VOCABULARY, _PARAMETERS = "weights.npz", "vocabulary.json", "parameters.json"
_REMEDY = "--stage=index makes it again"


@dataclasses.dataclass(frozen=True)
class Parameters:
    """What an index was made with.

    Attributes:
      document: what the texts are made of, in words for the report, such as 'title + text'.
      k1: how soon more occurrences of a word stop to matter.
      b: how much longer texts are discounted, 0 to 1.
      words: what counts as a word, in the texts and in the queries.
    """

    document: str
    k1: float = 1.5
    b: float = 0.75
    words: Words = ENGLISH

    def __post_init__(self):
        if self.k1 < 0 or not 0 <= self.b <= 1:
            raise UserError(f"BM25: k1 is {self.k1} and b is {self.b}; k1 must be 0 or more and b between 0 and 1")


class Bm25Index:
    """A [words, passages] matrix of BM25 weights and the words of its rows."""

    def __init__(self, weights_VN: scipy.sparse.csr_array, vocabulary: dict[str, int], parameters: Parameters):
        self._index, self._vocabulary, self.parameters = SparseIndex(weights_VN), vocabulary, parameters

    @classmethod
    def build(
        cls, texts: Iterable[str], document: str, k1: float = 1.5, b: float = 0.75, words: Words = ENGLISH
    ) -> "Bm25Index":
        """Indexes `texts`, one per candidate, as `Parameters` say; 100,000 of 120 words take about 10 s."""
        return cls._of_counts(map(Counter, words.of(texts)), Parameters(document, k1, b, words))

    @classmethod
    def from_frequencies(cls, frequencies: Iterable[Mapping[str, int]], *parameters: Any) -> "Bm25Index":
        """Indexes passages by how often each of their words counts, as if it stood there so many times.

        Args:
          frequencies: one per candidate: word -> 1 or more. A word goes through `words` as one of a text does: forms of
            one stem are added up, stop words are left out.
          parameters: those of `Parameters`, in their order.

        Raises:
          UserError: a frequency is no whole number of 1 or more, or forms of a stem count more than `MOST` times.
        """
        passages, same = itertools.tee(frequencies)
        options = Parameters(*parameters)
        terms = options.words.of(word for passage in same for word in passage)
        counted = (_added_up(number, passage, terms) for number, passage in enumerate(passages))
        return cls._of_counts(counted, options)

    @classmethod
    def _of_counts(cls, passages: Iterable[Mapping[str, int]], parameters: Parameters) -> "Bm25Index":
        """The index of passages, each a word -> how often it is there."""
        vocabulary: defaultdict[str, int] = defaultdict()
        vocabulary.default_factory = vocabulary.__len__  # a new word gets the next number
        # 8 bytes for every word of a passage, however often it is there. MS MARCO has some 250 million.
        numbers, counts, ends = array.array("i"), array.array("i"), array.array("q", [0])
        for passage in passages:
            numbers.extend(map(vocabulary.__getitem__, passage))
            counts.extend(passage.values())
            ends.append(len(numbers))
        if not vocabulary:
            raise UserError(f"BM25: none of the {len(ends) - 1} texts has a word to search for")
        # The arrays are the memory of these, not copies of it.
        arrays = np.asarray(numbers), np.asarray(counts), np.asarray(ends)
        return cls(_weights(*arrays, len(vocabulary), parameters.k1, parameters.b), dict(vocabulary), parameters)

    def save(self, folder: Path) -> None:
        """Writes the index and the checksums of its files, whole or not at all."""
        with atomic(folder) as temporary:
            temporary.mkdir()
            scipy.sparse.save_npz(temporary / _WEIGHTS, self._index.weights, compressed=False)
            write_json(temporary / _VOCABULARY, self._vocabulary)
            write_json(temporary / _PARAMETERS, dataclasses.asdict(self.parameters))
            write_manifest(temporary)

    @classmethod
    def load(cls, folder: Path) -> "Bm25Index":
        """Loads what `save` wrote."""
        folder = Path(folder)
        verify_manifest(folder, _REMEDY)
        arrays, path = read_arrays(folder / _WEIGHTS, _REMEDY), folder / _WEIGHTS
        try:
            shape, parts = tuple(arrays["shape"].tolist()), [arrays[name] for name in ("data", "indices", "indptr")]
            weights_VN = scipy.sparse.csr_array(tuple(parts), shape=shape)
            weights_VN.check_format(full_check=True)  # SciPy's products follow an index out of the matrix
            if weights_VN.dtype != np.float32 or not np.isfinite([weights_VN.min(), weights_VN.max()]).all():
                raise ValueError("weights that are no finite numbers of 32 bits")
            path = folder / _VOCABULARY
            vocabulary = read_json(path)
            if not all(type(row) is int and 0 <= row < shape[0] for row in vocabulary.values()):
                raise ValueError("words without a row")
            path = folder / _PARAMETERS
            values = read_json(path)
            return cls(weights_VN, vocabulary, Parameters(**values | {"words": Words(**values["words"])}))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, UserError) as error:
            raise UserError(f"{path}: not the {path.stem} of an index ({error}); {_REMEDY}") from error

    def __len__(self) -> int:
        return len(self._index)

    @property
    def description(self) -> str:
        """What was indexed and how, in words for a report."""
        parameters, size = self.parameters, f"{len(self):,} documents"
        numbers = f"k1 {parameters.k1:g}, b {parameters.b:g}; {parameters.words.description}"
        return f"BM25 (Lucene's variant, {numbers}), document = {parameters.document}, {size}"

    def search(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """The `k` best passages for each query, ties to the smaller row; only passages that share a word with it.

        97,888 questions over 100,000 passages take 20 s on 2 CPU cores.
        """
        known, texts = self._vocabulary, self.parameters.words.of(queries)
        words = [[known[word] for word in query if word in known] for query in texts]
        columns, ends = np.array(list(itertools.chain(*words)), np.int32), np.cumsum([0, *map(len, words)])
        values = np.ones(len(columns), np.float32), columns, ends
        counts_QV = scipy.sparse.csr_array(values, shape=(len(words), len(known)))
        return self._index.search(counts_QV, k)


class Bm25Kind(IndexKind):
    """A kind whose indexes are `Bm25Index`.

    Attributes:
      document: what is indexed of a passage, in words for a report.
    """

    of_words = True
    options = ("index.bm25_k1", "index.bm25_b", *WORDS)
    document = "title + text"

    def text(self, passage: "Candidate") -> str:
        """What is indexed (of ReQA: sentence and passage; the sentence alone flatters the rest)."""
        return f"{passage.title} {passage.text}".strip()

    def parameters(self, options: Options) -> tuple[float, float]:
        """k1 and b."""
        return options["index.bm25_k1"], options["index.bm25_b"]

    def build(self, contents: Texts, options: Options) -> Bm25Index:
        parameters = self.document, *self.parameters(options), words_of(contents, options)
        try:
            return Bm25Index.build(map(self.text, contents.passages()), *parameters)
        except UserError as error:
            raise UserError(f"the collection '{contents.name}': {error}") from error

    def load(self, folder: Path) -> Bm25Index:
        return Bm25Index.load(folder)


def words_of(contents: Texts, options: Options) -> Words:
    """What counts as a word. With a vocabulary accents are folded as the towers do, or BM25 would be the weaker."""
    return Words(options["index.bm25_stop_words"], options["index.bm25_stemmer"], contents.folds_accents())


@register
class Bm25(Bm25Kind):
    """The usual baseline."""

    name, title, system = "bm25", "BM25", "bm25"
    options = (*Bm25Kind.options, "index.bm25_also")

    def beside(self, options: Options) -> tuple[str, ...]:
        return (Bm25Also.name,) if options["index.bm25_also"] else ()


@register
class Bm25Also(Bm25Kind):
    """BM25 with a k1 and b of its own."""

    name, title, system = "bm25_also", "second BM25", "bm25 (k1, b)"
    options = ("index.bm25_also", *WORDS)

    def check(self, options: Options) -> None:
        if not (also := options["index.bm25_also"]) or also[1] > 1:
            raise UserError(f"config.index.bm25_also={tuple(also)}: give k1 and b, which is at most 1, such as 0.9,0.4")

    def parameters(self, options: Options) -> tuple[float, float]:
        return options["index.bm25_also"]

    def system_of(self, index: Bm25Index) -> str:
        return f"bm25 ({index.parameters.k1:g}, {index.parameters.b:g})"


def _added_up(number: int, frequencies: Mapping[str, int], terms: Iterator[Iterable[str]]) -> Counter[str]:
    """The frequencies of a passage's terms; `terms` gives those of each of its words, in their order."""
    counts: Counter[str] = Counter()
    for word, count in frequencies.items():
        if type(count) is not int or count < 1:
            raise UserError(f"BM25: word '{word}' of passage {number} counts {count!r} times; take 1 or more")
        for term in next(terms):
            counts[term] += count
    if max(counts.values(), default=0) > MOST:
        word, most = counts.most_common(1)[0]
        raise UserError(f"BM25: forms of '{word}' in passage {number} count {most} times; {MOST} is the most")
    return counts


def _weights(
    words: np.ndarray, counts: np.ndarray, ends: np.ndarray, vocabulary: int, k1: float, b: float
) -> scipy.sparse.csr_array:
    """Lucene's weights, a sparse matrix float32 [words, passages].

    Args:
      words, counts: the numbers of all passages' words, and how often each is there; what has 64 bits is of some
        passages at a time.
      ends: where the words of each passage end, behind a 0.
    """
    passages = len(ends) - 1
    parts = [slice(first, min(first + _PART, passages)) for first in range(0, passages, _PART)]
    containing_V, length_N = np.zeros(vocabulary, np.int64), np.zeros(passages, np.int64)
    for part in parts:
        inner = slice(ends[part.start], ends[part.stop])
        containing_V += np.bincount(words[inner], minlength=vocabulary)
        up_to = np.cumsum(np.append(0, counts[inner]))
        length_N[part] = np.diff(up_to[ends[part.start : part.stop + 1] - ends[part.start]])
    idf_V = np.log(1 + (passages - containing_V + 0.5) / (containing_V + 0.5)).astype(np.float32)
    normalizer_N = k1 * (1 - b + b * length_N / length_N.mean())
    weights = np.empty(len(words), np.float32)
    for part in parts:
        inner = slice(ends[part.start], ends[part.stop])
        normalizer = np.repeat(normalizer_N[part], np.diff(ends[part.start : part.stop + 1]))
        weights[inner] = idf_V[words[inner]] * (counts[inner] / (normalizer + counts[inner]))
    if len(words) < np.iinfo(np.int32).max:
        ends = ends.astype(np.int32)  # otherwise SciPy takes 64 bits for the numbers of words and passages, too
    weights_NV: Any = scipy.sparse.csr_array((weights, words, ends), shape=(passages, vocabulary))
    return weights_NV.T.tocsr()
