"""Runs notebooks in processes forked from this one, which has imported their modules but computed nothing.

It reads requests as lines of JSON, `{"cells": [source, …], "folder": …}`, and answers each with a line: the text output
of each cell. Kernels would each take seconds to import the same modules.
"""

import json
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path

import anywidget  # noqa: F401
import IPython.core.interactiveshell as interactive
import ipywidgets  # noqa: F401
import matplotlib

matplotlib.use("agg")
import jax
import jax.numpy  # noqa: F401
import matplotlib.pyplot
from IPython.utils.capture import capture_output

import jaxviz.features.explorer.widget
import jaxviz.teach.widget  # noqa: F401

sys.path.append(str(Path(__file__).parents[1]))
from shared_context import share_contexts

share_contexts()


def shown(cells: list[str], folder: str) -> list[str]:
    os.chdir(folder)
    shell = interactive.InteractiveShell.instance()
    texts = []
    for source in cells:
        with capture_output() as seen:
            result = shell.run_cell(source, store_history=True)
        plain = [str(output.data.get("text/plain", "")) for output in seen.outputs]
        if not result.success:
            error = result.error_before_exec or result.error_in_exec
            raise RuntimeError(f"{seen.stdout}\n{source}\n{type(error).__name__}: {error}")
        texts.append("".join([re.sub(r"^Out\[\d+\]: *\n?", "", seen.stdout, flags=re.MULTILINE), *plain]))
    return texts


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
            child = os.fork()
            if not child:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                try:
                    found = {"texts": shown(request["cells"], request["folder"])}
                except BaseException:
                    found = {"error": traceback.format_exc()}
                Path(answer.name).write_text(json.dumps(found))
                os._exit(0)
            os.waitpid(child, 0)
            print(answer.read() or json.dumps({"error": "the process ended"}), flush=True)


if __name__ == "__main__":
    main()
