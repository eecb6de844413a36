"""Links by name, `[[Note]]` and `[[Note|label]]`, as Obsidian writes them: notes are found anywhere in the corpus."""

import collections
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

# With a heading, `[[Note#Heading]]`, or as what is shown in place, `![[picture.png]]`.
LINK = re.compile(r"(!?)\[\[([^\[\]|\n]+)(?:\|([^\[\]\n]*))?\]\]")

_ENDINGS = (".md", ".markdown")


class Notes:
    """The files of a corpus by their names, without folder and ending, in any case."""

    def __init__(self, ids: Iterable[str]):
        """Args:
        ids: the paths of the notes below the corpus.
        """
        self._by_name: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
        for id in ids:
            path = _without_ending(id)
            self._by_name[PurePosixPath(path).name].append((f"/{path}", id))

    def named_in(self, text: str) -> Mapping[str, str]:
        """What the links of a text name -> the note; what names none, or several, is left out."""
        targets = {match[2].removesuffix("\\") for match in LINK.finditer(text)}  # in a table it is `\|`
        found = {target: self._find(target) for target in sorted(targets)}
        return {target: id for target, id in found.items() if id}

    def _find(self, target: str) -> str | None:
        """The one note of a name, which folders may stand before."""
        path = _without_ending(target.partition("#")[0].strip().strip("/"))
        same = self._by_name.get(PurePosixPath(path).name, ())
        ids = [id for place, id in same if place.endswith(f"/{path}")]
        return ids[0] if len(ids) == 1 else None


def label(target: str) -> str:
    """What a link without a label of its own shows: `Note > Heading`."""
    return " > ".join(part.strip() for part in target.split("#") if part.strip())


def _without_ending(path: str) -> str:
    path = path.lower().removesuffix(".gz")
    return next((path.removesuffix(ending) for ending in _ENDINGS if path.endswith(ending)), path)
