"""What follows the colon of a study's config, ….py:local,nq; and the run that most studies begin with."""

from collections.abc import Collection

from ml_collections import ConfigDict

from retrieval.common.errors import unknown_name


def read(argument: str, sizes: Collection[str], datasets: Collection[str]) -> tuple[str, str]:
    """The size and the dataset that 'local,nq' names; without a dataset the first one.

    Raises:
      UserError: one of the two is unknown.
    """
    size, _, dataset = argument.partition(",")
    dataset = dataset or next(iter(datasets))
    for kind, name, known in (("size of a study", size, sizes), ("dataset", dataset, datasets)):
        if name not in known:
            raise unknown_name(kind, name, known)
    return size, dataset


def prepared(config: ConfigDict, study: ConfigDict) -> ConfigDict:
    """The config of a run that prepares the corpus of a study, and holds nothing out."""
    config.stages = ("prepare",)
    config.corpus, config.vocab = study.get_ref("corpus"), study.get_ref("vocab")
    config.prepare.held_out = 0.0
    return config
