"""What runs on every change to the repository, and its site: links lead to its pages, and folders become pages."""

import re

import pytest
import yaml
from conftest import REPOSITORY

import retrieval
from launch import docs_hook


def test_the_workflow_has_every_python_that_setup_allows():
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    first, beyond = re.search(r'python_requires=">=3\.(\d+),<3\.(\d+)"', (REPOSITORY / "setup.py").read_text()).groups()
    versions = workflow["jobs"]["ci"]["strategy"]["matrix"]["python"]
    assert versions == [f"3.{minor}" for minor in range(int(first), int(beyond))]
    assert {"run": "./.ci/run", "env": {"PYTHON": "python"}} in workflow["jobs"]["ci"]["steps"]


def test_the_citation_has_the_version():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == retrieval.__version__


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[a](SECURITY.md), [b](benchmarks/README.md)", "[a](security.md), [b](benchmarks.md)"),
        ("guides/launch.md", "[`pod_test.py`](../../tests/pod_test.py)", "`pod_test.py`"),
        ("scale.md", "`x[0](a.md)`\n```\n[a](b.md)\n```", "`x[0](a.md)`\n```\n[a](b.md)\n```"),
    ],
)
def test_links_lead_to_pages_of_the_site(page, text, expected):
    assert docs_hook.with_links_of_the_site(text, page) == expected


def test_a_folder_of_the_nav_stands_for_its_pages():
    pages = ["a/z.md", "a/index.md", "a/b.md", "c/d.md", "e.md"]
    assert docs_hook.with_folders([{"T": ["e.md", "c/"]}, {"A": "a/"}], pages) == [
        {"T": ["e.md", "c/d.md"]},
        {"A": ["a/index.md", "a/b.md", "a/z.md"]},
    ]


def test_every_module_is_on_a_page():
    listed = "\n".join(docs_hook.api_pages().values())
    for path in (REPOSITORY / "retrieval").rglob("*.py"):
        name = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        assert path.name == "__init__.py" or f"::: {name}\n" in listed, name
