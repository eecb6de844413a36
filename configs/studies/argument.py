"""What follows the colon of a study's config: --config=configs/studies/….py:local,nq."""

from collections.abc import Collection

from retrieval.errors import unknown_name


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
