"""What runs on every change to the repository, and what it says of itself."""

import re

import yaml
from conftest import REPOSITORY

import retrieval


def test_the_workflow_has_every_python_that_setup_allows():
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    first, beyond = re.search(r'python_requires=">=3\.(\d+),<3\.(\d+)"', (REPOSITORY / "setup.py").read_text()).groups()
    versions = workflow["jobs"]["ci"]["strategy"]["matrix"]["python"]
    assert versions == [f"3.{minor}" for minor in range(int(first), int(beyond))]
    assert {"run": "./.ci/run", "env": {"PYTHON": "python"}} in workflow["jobs"]["ci"]["steps"]


def test_the_citation_has_the_version():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == retrieval.__version__
