"""Trained towers with all that they need outside of a run, and their folder for sentence-transformers."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.common.errors import UserError, unknown_name
from retrieval.data.tokenizers import prompts
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.models import export_files as folders
from retrieval.models.two_tower import TwoTower
from retrieval.recipes.towers import truncated
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import module_fields, prompted
from retrieval.runs.weights.trained_run import load_towers, of_towers


@dataclasses.dataclass(frozen=True)
class TrainedTowers:
    """Towers that leave a run.

    Attributes:
      config: that they were trained with; their embeddings have the dimensions that the run keeps.
      prompts: all by name; of the two sides those that there are.
    """

    config: ConfigDict
    towers: TwoTower
    vocabulary: Vocabulary
    prompts: Mapping[str, str]

    @classmethod
    def of(cls, run: Run) -> "TrainedTowers":
        """Those of a run's best step. Every host of a pod calls this, as checkpoints are read.

        Raises:
          UserError: other libraries would not give the same embeddings.
        """
        vocabulary, trained = run.load_vocabulary(), run.owner("train").config
        towers = load_towers(run, len(vocabulary))
        config = truncated(trained, run.owner("encode").config.encode.truncate)
        _check_towers(towers, config.recipe)
        table = prompted.table(of_towers(run))
        named = {name: text for name, text in table.items() if text or name not in prompts.USUAL}
        return cls(config, towers, vocabulary, named)

    def write(self, folder: Path, instead: Callable[[str, Path], None] | None = None) -> None:
        """Writes tied towers as one model, others as one each in `query/` and `document/`, with a router above.

        Args:
          folder: one that is there.
          instead: writes the parameters of a tower of a name otherwise.

        Raises:
          UserError: the pooling, or the prompt of texts of no side, is none that those libraries have.
        """
        data, towers = self.config.data, self.towers
        use = folders.Use(
            normalize=towers.normalize,
            truncate_dim=self.config.model.truncate_dim,
            prompts=self.prompts,
            include_prompt=includes_prompts(self.config, self.vocabulary),
            titles=data.titles,
        )
        default = default_prompt(self.config, self.prompts)

        def write(name: str, place: Path, tower: Any, length: int, **options: Any) -> None:
            place.mkdir(exist_ok=True)
            folders.write_tower(place, tower, use=use, pad_id=self.vocabulary.pad_id, length=length, **options)
            config = tower.encoder.config  # of BERT's kind: the stage's check lets no other pass
            types = config.type_vocab_size if config.architecture.token_types else 0
            self.vocabulary.export(place, length=length, types=types)
            if instead:
                instead(f"{name}_tower", place)

        query_tower, lengths = towers.query_tower, {"query_length": data.query_length}
        if not hasattr(towers, "document_tower"):  # they are tied
            write(folders.QUERY, folder, query_tower, data.document_length, **lengths, default_prompt=default)
            return
        for name, tower in ((folders.QUERY, query_tower), (folders.DOCUMENT, towers.document_tower)):
            write(name, folder / name, tower, data[f"{name}_length"], default_prompt=name)
        folders.write_router(folder, use, default)


def default_prompt(config: ConfigDict, named: Mapping[str, str]) -> str:
    """The name of the prompt of a text of which nobody says what it is; '' for none.

    Raises:
      UserError: there is no such prompt.
    """
    name = config.data.default_prompt
    if name and name not in (*named, *prompts.USUAL):
        raise unknown_name("prompt in config.data.default_prompt", name, (*named, *prompts.USUAL))
    return name


def includes_prompts(config: ConfigDict, vocabulary: Vocabulary) -> bool:
    """Whether the pooling takes the tokens of prefixes.

    Raises:
      UserError: it begins at places that those libraries do not have.
    """
    places = tuple(config.model.pool_from)
    if any(places) and places != (behind := module_fields.behind_prefixes(config, vocabulary)):
        raise UserError(
            f"stage 'export': config.model.pool_from={places}: those libraries pool everything, or what stands behind "
            f"the prefixes, {behind} here: train with one of these"
        )
    return not any(places)


def _check_towers(towers: TwoTower, recipe: str) -> None:
    if type(towers) is not TwoTower:
        raise UserError(f"stage 'export': towers of config.recipe={recipe} have parts that those libraries lack")
    if towers.token_types == "sides":
        raise UserError("stage 'export': config.model.token_types=sides: documents have type 1, in those libraries 0")
