"""FAISS and pyserini: a flat index of inner products, and its ids, a line each in the order of the rows.

The index is written as `faiss.write_index` writes an `IndexFlatIP`, so nothing needs to be installed.
"""

import struct

from retrieval.errors import UserError
from retrieval.handover.target import Place, Target, register
from retrieval.handover.vectors import Vectors

_ONCE_USED = 1 << 20  # two fields of FAISS's header that mean nothing now
_INNER_PRODUCT = 0


@register
class FaissFolder(Target):
    """pyserini counts rows, so there is no `IndexIDMap`."""

    name, title = "faiss", "a flat index of FAISS"
    instead = "take float32, and compress it with faiss.index_factory"
    load = """    index = faiss.read_index("index")
    ids = [line.rstrip("\\n") for line in open("docid", encoding="utf-8")]

pyserini takes this folder in place of the name of an index: `FaissSearcher(".", encoder)`.
"""

    def check_id(self, id: str) -> None:
        super().check_id(id)
        if not id or id != id.strip() or "\n" in id or "\r" in id:
            raise UserError(
                f"config.handover.to={self.name}: the id {id!r} is empty, has a line break, or white space at an end, "
                "and pyserini reads ids as lines: give that document another id"
            )

    def write(self, place: Place, vectors: Vectors, queries: Vectors | None) -> dict[str, int]:
        size, rows = vectors.dimension, vectors.rows
        head = struct.pack("<4siqqqBi", b"IxFI", size, rows, _ONCE_USED, _ONCE_USED, True, _INNER_PRODUCT)
        with (place.folder / "index").open("wb") as index, (place.folder / "docid").open("w", encoding="utf-8") as ids:
            index.write(head + struct.pack("<Q", rows * size))
            for block in self.blocks(vectors):
                index.write(block.vectors.tobytes())
                ids.writelines(f"{id}\n" for id in block.ids)
        return {"index": rows, "docid": rows}
