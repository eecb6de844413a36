"""Work directories on S3, as moto's server has it; skipped where moto or s3fs is not installed.

Nothing outside this machine is reached.
"""

import posixpath

import pytest
from support.packages import package
from support.store_cases import *  # noqa: F403 (the tests)

package("s3fs")
server = package("moto.server")


@pytest.fixture(scope="module")
def moto():
    """A server, and what tells processes where it is."""
    process = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    process.start()
    host, port = process.get_host_and_port()
    variables = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "key"}
    variables |= {"AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield
    process.stop()


class Bucket:
    """With boto3."""

    _folder, _number = "runs/one/", 0

    def __init__(self):
        import boto3

        Bucket._number += 1
        self._client, self._name = boto3.client("s3"), f"bucket-{self._number}"
        self._client.create_bucket(Bucket=self._name)
        self.url = f"s3://{self._name}/runs/one"

    def put(self, key, content):
        self._client.put_object(Bucket=self._name, Key=posixpath.normpath(self._folder + key), Body=content)

    def names(self):
        listed = self._client.list_objects_v2(Bucket=self._name, Prefix=self._folder).get("Contents", [])
        return [item["Key"].removeprefix(self._folder) for item in listed]


@pytest.fixture
def bucket(moto):
    return Bucket()
