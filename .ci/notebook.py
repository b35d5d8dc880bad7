#!/usr/bin/env python3
"""The notebook of a script with `# %%` cells, run once: code, text, what was printed, and the figure.

    python .ci/notebook.py crates/softly-py/examples/darcy_torch.py crates/softly-py/examples/darcy_torch.ipynb

Runs in the working folder with the interpreter that runs this; needs nothing but what the script needs.
"""

import base64
import contextlib
import io
import json
import pathlib
import re
import sys


def cells(text):
    """Kind and text of every cell."""
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            yield "markdown", "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines())
        else:
            yield "code", body.strip()


def main(script, notebook):
    names = {"__name__": "__main__"}
    listed = []
    for number, (kind, text) in enumerate(cells(pathlib.Path(script).read_text())):
        lines = text.splitlines(keepends=True)
        if kind == "markdown":
            listed.append({"cell_type": "markdown", "id": f"c{number}", "metadata": {}, "source": lines})
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(text, script, "exec"), names)
        outputs = []
        if said.getvalue():
            outputs.append({"output_type": "stream", "name": "stdout", "text": said.getvalue().splitlines(keepends=True)})
        for figure in re.findall(r'savefig\("(.*?)"', text):
            if pathlib.Path(figure).exists():
                picture = base64.b64encode(pathlib.Path(figure).read_bytes()).decode()
                outputs.append({"output_type": "display_data", "metadata": {}, "data": {"image/png": picture}})
        code = {"cell_type": "code", "id": f"c{number}", "metadata": {}, "execution_count": number + 1}
        listed.append({**code, "outputs": outputs, "source": lines})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    document = {"cells": listed, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    pathlib.Path(notebook).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
