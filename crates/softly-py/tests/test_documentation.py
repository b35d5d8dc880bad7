"""The Python code of the README and of the book works, cut down to seconds."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGES = ["README.md", "book/src/python.md", "crates/softly-py/README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOFTLY_REDUCED", "1")
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks, "a page without code"
    names: dict = {}
    for block in blocks:
        if block.startswith("# needs torch"):
            pytest.importorskip("torch")
        exec(compile(block, page, "exec"), names)
