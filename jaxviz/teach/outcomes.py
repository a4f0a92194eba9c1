"""What was answered in a session, as data: for the learner, and for a teacher who collects it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxviz.report.files import no_such_file, write_file
from jaxviz.report.report import Part, Report, Table
from jaxviz.report.tables import counted, shortened
from jaxviz.teach import sessions
from jaxviz.teach.exercise import raised
from jaxviz.teach.sessions import Answered
from jaxviz.teach.source import run

_HEADS = ("exercise", "tries", "hints", "revealed", "")


@dataclass(frozen=True, eq=False, repr=False)
class Results(Report, schema="teach.results"):
    """The answers given in a session.

    >>> teach.results().save("results.json")

    Args:
      answered: the exercises, in the order in which they were first answered.
      seed: the text given to `teach.seed`; '' for none.
      versions: of jaxviz and JAX, with which the answers were checked.
      problems: of a file that was read: what is wrong with it.
      again: of a file that was read: how many answers were checked again.
    """

    answered: tuple[Answered, ...]
    seed: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    again: int = 0

    _data = ("answered", "seed", "versions", "checksum")

    @property
    def n_right(self) -> int:
        """How many exercises have a right answer."""
        return sum(a.is_right for a in self.answered)

    @property
    def checksum(self) -> str:
        """The SHA-256 of the other data. It shows that a file was edited or cut, and proves nothing more: whoever edits
        the file can compute it again."""
        whole = {"answered": [a.to_dict() for a in self.answered], "seed": self.seed, "versions": self.versions}
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    @property
    def summary(self) -> str:
        """`5 exercises: 4 right, 1 with hints, 1 revealed`."""
        notes = [f"{self.n_right} right"]
        with_hints, revealed = sum(a.hints > 0 for a in self.answered), sum(a.is_revealed for a in self.answered)
        notes += [f"{with_hints} with hints"] * (with_hints > 0) + [f"{revealed} revealed"] * (revealed > 0)
        notes += [f"{self.again} checked again"] * (self.again > 0)
        return f"{counted(len(self.answered), 'exercise')}: {', '.join(notes)}"

    def _parts(self) -> list[Part]:
        rows = [
            (
                shortened(a.question, 70), str(a.tries), str(a.hints), "yes" if a.is_revealed else "",
                "right" if a.is_right else "not yet" if a.tries else "",
            )
            for a in self.answered
        ]  # fmt: skip
        return [*self.problems, Table(_HEADS, rows, "<>><<", shown=None)]

    def save(self, path: str | Path) -> Path:
        """Writes the results to a JSON file, which `teach.read_results` reads.

        >>> teach.results().save("results.json")

        Args:
          path: the file.
        """
        return write_file(path, json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n")


def results() -> Results:
    """All answers given in this session, right or wrong, with the tries, the hints, and whether the answer was
    revealed.

    >>> size.answer(11)
    Not yet. 11 is too small.
    >>> size.answer(12)
    Right. 12.
    >>> teach.results().save("results.json")
    """
    versions = {name: version(name) for name in ("jaxviz-lab", "jax")}
    return Results(tuple(sessions.progress.values()), sessions.student, versions)


def read_results(path: str | Path) -> Results:
    """Reads a file of results, and checks it: its checksum, and its right answers once more.

    >>> submitted = teach.read_results(teach.results().save("results.json"))
    >>> submitted.problems
    ()

    Answers to puzzles are checked in any session, and those to other exercises in one that has created the exercise:
    run the notebook first. For answers in code this runs their source, so read files of people you trust, or in a
    container.

    Args:
      path: the file.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it has no results.
    """
    if not Path(path).exists():
        raise no_such_file(path, "`teach.results().save(path)` writes one")
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        answered = tuple(Answered(**entry) for entry in data["answered"])
        read = Results(answered, data["seed"], data["versions"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} has no results of exercises; `teach.results().save(path)` writes them") from None
    is_whole = data.get("checksum") == read.checksum
    problems = [] if is_whole else ["The checksum does not fit: the file was edited, or is not complete."]
    checked = {a: _again(a) for a in answered if a.is_right}
    known = {a: problem for a, problem in checked.items() if problem is not None}
    problems += [f"'{shortened(a.question, 60)}' does not count: {problem}" for a, problem in known.items() if problem]
    return Results(answered, read.seed, read.versions, tuple(problems), len(known))


def _again(a: Answered) -> str | None:
    """What is wrong with an answer that was right, '' if nothing is; None if it cannot be checked in this session."""
    if a.kind == "code" and not a.source:
        return "its source was not found."
    if a.puzzle:
        from jaxviz.teach.puzzles.game import again

        return again(a.puzzle, a.source)[0]
    exercise = sessions.asking(a.question)
    if exercise is None:
        return None
    with exercise.as_created() as names:
        try:
            verdict = exercise.check(_run(a.source, names) if a.kind == "code" else sessions.from_json(a.answer))
        except Exception as error:
            return raised(error)
    if verdict:
        return ""
    return verdict.reason if a.kind == "code" else verdict.headline


def _run(source: str, names: dict[str, Any]) -> Any:
    """The answer that a program assigns, which may use what the notebook defines."""
    # A cell of a notebook has these names; importing jaxviz here would import a higher layer.
    modules = {"jax": "jax", "jnp": "jax.numpy", "np": "numpy", "jaxviz": "jaxviz", "teach": "jaxviz.teach"}
    for name, module in modules.items():
        names.setdefault(name, import_module(module))
    names.pop("answer", None)
    run(source, f"<answer {hash(source):x}>", names)
    return names["answer"]
