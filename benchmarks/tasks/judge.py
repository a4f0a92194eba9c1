"""`python -m benchmarks.tasks.judge NAME FOLDER VERDICT`: runs a checker, and writes what is wrong as JSON.

A process of its own, which the solver's code may stop or block.
"""

import json
import sys
import traceback
from pathlib import Path

from benchmarks.tasks.harness import checker
from benchmarks.tasks.judging import WrongError


def judge(name: str, folder: Path) -> list[str]:
    try:
        wrong: list[str] = checker(name).check(folder)
    except WrongError as e:
        return [str(e)]
    except Exception as e:  # of the solver's program
        frames = [f for f in traceback.extract_tb(e.__traceback__) if Path(f.filename).parent == folder]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
        return [f"{where}{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"]
    return wrong


if __name__ == "__main__":
    wrong = judge(sys.argv[1], Path(sys.argv[2]))
    Path(sys.argv[3]).write_text(json.dumps(wrong), encoding="utf-8")
