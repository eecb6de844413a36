"""PyTorch's own files: tensors come out of them, and nothing that they say is run.

`interop_test` reads every type of numbers, and every form of a folder.
"""

import pickle
import random
import shutil

import numpy as np
import pytest
from conftest import REPOSITORY
from support.packages import package
from support.payload import Payload

from retrieval.common.errors import UserError
from retrieval.models import tensor_files

torch = package("torch")

GOLDEN = REPOSITORY / "tests" / "golden" / "bert_old_names"


@pytest.fixture
def folder(tmp_path):
    """A folder of BERT's weights in PyTorch's format."""
    shutil.copy(GOLDEN / "config.json", tmp_path)
    tensors = {name: torch.from_numpy(tensor) for name, tensor in tensor_files.read(GOLDEN).items()}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    return tmp_path


def saved(folder, value, **settings):
    torch.save(value, folder / "pytorch_model.bin", **settings)
    return folder


@pytest.mark.parametrize("wrap", [lambda payload: payload, lambda payload: {"a": payload}, lambda payload: [payload]])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_program_that_calls_is_refused_and_not_run(tmp_path, wrap, zipped):
    value = wrap(Payload(tmp_path / "marker"))
    saved(tmp_path, value, _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError, match=r"not of tensors alone|of a torch older"):
        tensor_files.read(tmp_path)
    assert not (tmp_path / "marker").exists()
    pickle.loads(pickle.dumps(value))
    assert (tmp_path / "marker").exists()


def test_an_old_torch_is_refused(folder, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(UserError, match=r"torch 2\.5\.1\+cpu may run what a file says"):
        tensor_files.read(folder)


def test_flipped_bits_and_cuts_are_noticed(folder):
    """The sum of each part is compared: a flipped bit of a weight is no other model."""
    path, rng = folder / "pytorch_model.bin", random.Random(0)
    content, noticed = path.read_bytes(), 0
    for _ in range(200):
        place = rng.randrange(len(content))
        flipped = content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
        path.write_bytes(content[:place] if rng.random() < 0.1 else flipped)
        try:
            found = tensor_files.read(folder)
        except UserError as error:
            assert str(path) in str(error)
            noticed += 1
        else:  # of the bytes between the parts
            for name, tensor in tensor_files.read(GOLDEN).items():
                np.testing.assert_array_equal(found[name], tensor)
    assert noticed > 100
