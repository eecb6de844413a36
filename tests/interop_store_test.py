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
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield
    process.stop()


class Bucket:
    """With boto3."""

    url, _folder = "s3://bucket/runs/one", "runs/one/"

    def __init__(self):
        import boto3

        self._client = boto3.client("s3")
        self._client.create_bucket(Bucket="bucket")

    def put(self, key, content):
        self._client.put_object(Bucket="bucket", Key=posixpath.normpath(self._folder + key), Body=content)

    def names(self):
        listed = self._client.list_objects_v2(Bucket="bucket", Prefix=self._folder).get("Contents", [])
        return [item["Key"].removeprefix(self._folder) for item in listed]

    def remove(self):
        for item in self._client.list_objects_v2(Bucket="bucket").get("Contents", []):
            self._client.delete_object(Bucket="bucket", Key=item["Key"])
        self._client.delete_bucket(Bucket="bucket")


@pytest.fixture
def bucket(moto):
    made = Bucket()
    yield made
    made.remove()
