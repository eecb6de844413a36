"""PyTorch's files: tensors come out of them, and nothing else, and nothing is run."""

import os
import pickle
import struct
import zipfile

import numpy as np
import pytest

from retrieval.errors import UserError
from retrieval.models.torch_file import read_tensors

VALUES = np.arange(24, dtype=np.float32)


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def numbers(values):
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(kind="FloatStorage", key="0", size=24):
    return b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + number(size) + b"tQ"


def tensor(shape, strides, offset=0, **given):
    """What torch writes for a tensor."""
    view = number(offset) + numbers(shape) + numbers(strides)
    hooks = b"ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage(**given) + view + b"\x89" + hooks + b"tR"


def program(**tensors):
    return b"\x80\x02}(" + b"".join(text(name) + value for name, value in tensors.items()) + b"u."


def write(path, program, compression=zipfile.ZIP_STORED, **storages):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", program)
        for key, value in (storages or {"0": VALUES}).items():
            archive.writestr(f"archive/data/{key}", value.tobytes())
    return path


def test_views_of_a_storage(tmp_path):
    found = read_tensors(
        write(
            tmp_path / "x.bin",
            program(
                whole=tensor((4, 6), (6, 1)),
                turned=tensor((6, 4), (1, 6)),
                part=tensor((2, 2), (6, 1), offset=8),
                scalar=tensor((), (), offset=3),
                empty=tensor((0, 6), (6, 1)),
            ),
        )
    )
    whole = VALUES.reshape(4, 6)
    for name, value in dict(whole=whole, turned=whole.T, part=whole[1:3, 2:4], scalar=3.0, empty=whole[:0]).items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == np.float32


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(shape=(4, 7), strides=(6, 1)), "more values than its storage"),
        (dict(shape=(4, 6), strides=(6, 1), offset=1), "more values than its storage"),
        (dict(shape=(2,), strides=(-1,), offset=3), "shape or strides are none"),
        (dict(shape=(2,), strides=(1,), offset=-1), "shape or strides are none"),
        (dict(shape=(2**30, 2**30), strides=(0, 0)), "more values than its storage"),
        (dict(shape=(4, 6), strides=(6,)), "shape or strides are none"),
        (dict(shape=(4, 6), strides=(6, 1), size=2**30), "storage 0 has 24 values|larger than what is in it"),
        (dict(shape=(4, 6), strides=(6, 1), key="1"), "damaged"),
        (dict(shape=(4, 6), strides=(6, 1), kind="QInt8Storage"), "asks for 'torch.QInt8Storage'"),
    ],
)
def test_a_view_that_leads_out_of_its_storage_is_refused(tmp_path, given, message):
    path = write(tmp_path / "x.bin", program(bad=tensor(**given)))
    with pytest.raises(UserError, match=message):
        read_tensors(path)


def test_one_storage_many_times_is_refused(tmp_path):
    many = {f"t{number}": tensor((24,), (1,)) for number in range(1000)}
    with pytest.raises(UserError, match="larger than what is in it"):
        read_tensors(write(tmp_path / "x.bin", program(**many)))


class Payload:
    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("wrap", [lambda payload: payload, lambda payload: {"a": payload}, lambda payload: [payload]])
def test_a_program_that_calls_is_refused_and_not_run(tmp_path, protocol, wrap):
    value = pickle.dumps(wrap(Payload(tmp_path / "marker")), protocol)
    with pytest.raises(UserError, match=r"asks for|damaged"):
        read_tensors(write(tmp_path / "x.bin", value))
    assert not (tmp_path / "marker").exists()
    pickle.loads(value)
    assert (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"cos\nmkdir\n(" + text("marker") + b"tR.", "asks for 'os.mkdir'"),
        (b"(ios\nmkdir\n" + text("marker") + b".", "pickle instruction INST"),
        (b"\x80\x02]" + b"q\x00" + b".", "no dict of tensors"),
        (b"\x80\x02}" + text("a") + b"K\x01s.", "'a' is no tensor"),
        (b"\x80\x02}(K\x01K\x02u.", "no dict of tensors"),
        (b"\x80\x02R.", "damaged"),
        (b"\x80\x02}", "damaged"),
        (b"", "damaged"),
        (b"ctorch\nFloatStorage\n)R.", "calls 'torch FloatStorage'"),
    ],
)
def test_other_programs_are_refused(tmp_path, value, message):
    with pytest.raises(UserError, match=message) as caught:
        read_tensors(write(tmp_path / "x.bin", value))
    assert len(str(caught.value).splitlines()) == 1


def test_other_files_are_refused(tmp_path):
    (tmp_path / "old.bin").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    with pytest.raises(UserError, match=r"written by a torch older than 1\.6"):
        read_tensors(tmp_path / "old.bin")
    with pytest.raises(UserError, match="compressed"):
        read_tensors(write(tmp_path / "x.bin", program(), zipfile.ZIP_DEFLATED))
    with pytest.raises(UserError, match="cannot be read"):
        read_tensors(tmp_path / "none.bin")
    with zipfile.ZipFile(tmp_path / "empty.bin", "w"):
        pass
    with pytest.raises(UserError, match="there are 0"):
        read_tensors(tmp_path / "empty.bin")


def test_flipped_bytes_of_a_storage_are_noticed(tmp_path):
    path = write(tmp_path / "x.bin", program(whole=tensor((24,), (1,))))
    content = bytearray(path.read_bytes())
    content[content.index(VALUES.tobytes()) + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        read_tensors(path)
