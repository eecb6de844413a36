"""What clusters take of `launch/`, and `Dockerfile`, by schemas of theirs: neither a cluster nor a daemon is asked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import REPOSITORY
from support.packages import package

jsonschema, kubernetes_validate = package("jsonschema"), package("kubernetes_validate")


def documents(name):
    return list(yaml.safe_load_all((REPOSITORY / "launch" / name).read_text(encoding="utf-8")))


def check_job_set(job_set):
    jsonschema.validate(job_set, json.loads((REPOSITORY / "tests" / "golden" / "jobset_schema.json").read_text()))
    for replicated in job_set["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **replicated["template"]}
        kubernetes_validate.validate(job, "1.37", strict=True)


def test_a_job_set_and_a_deployment():
    (job_set,) = documents("jobset.yaml")
    check_job_set(job_set)
    job_set["spec"]["failurePolicy"]["maxRestart"] = job_set["spec"]["failurePolicy"].pop("maxRestarts")
    with pytest.raises(jsonschema.ValidationError, match="'maxRestart' was unexpected"):
        check_job_set(job_set)
    for document in documents("serve_deployment.yaml"):
        kubernetes_validate.validate(document, "1.37", strict=True)


def test_an_image():
    hadolint = Path(sys.executable).with_name("hadolint")
    assert not subprocess.run([hadolint, REPOSITORY / "Dockerfile"], capture_output=True, text=True).stdout
