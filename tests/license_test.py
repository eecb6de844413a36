"""The licence is there, and whatever describes the package names the same one."""

import re

from conftest import REPOSITORY


def test_the_licence_is_whole_and_is_named():
    text = (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License\n" in text and "Version 2.0, January 2004" in text
    assert [int(number) for number in re.findall(r"^   (\d)\. ", text, re.MULTILINE)] == list(range(1, 10))
    assert "END OF TERMS AND CONDITIONS" in text
    setup = (REPOSITORY / "setup.py").read_text(encoding="utf-8")
    assert 'license="Apache-2.0"' in setup and 'license_files=["LICENSE"]' in setup
    assert "[Apache License 2.0](LICENSE)" in (REPOSITORY / "README.md").read_text(encoding="utf-8")
