"""How often an address that was written down still means the same value after an edit of the source.

`python -m benchmarks.addresses [--quick] [--model NAME] [--edit NAME]`. Of ten models, each edit of `benchmarks.edits`
is written to a file and traced; both programs run on the same numbers, and every value of them is kept. A value is the
same if its array is: so are two values that are always equal. One whose numbers are nowhere in the edited program is
gone, and its address has to say so.
"""

from __future__ import annotations

import ast
import gc
import importlib.util
import inspect
import itertools
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import jax
import numpy as np

from benchmarks import look_alikes  # noqa: F401  enters its edits into the table
from benchmarks.editing import EDITS, Edit, Model, sliced
from benchmarks.edits import rename_locals
from jaxviz.analysis.addressed import AddressedValue, addressed_values
from jaxviz.analysis.addresses import AddressError, Meant, resolve
from jaxviz.analysis.written import address_of
from jaxviz.higher_order.observing import Observer, observed_program
from jaxviz.ir.syntax import Program
from jaxviz.ir.trace import trace_call
from jaxviz.runtime.evaluate import evaluate

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
MOST = 50
"""Addresses of a model."""
LIBRARIES = ("flax.linen.linear", "flax.linen.normalization", "flax.nnx.nn.linear", "flax.nnx.nn.normalization",
             "haiku._src.basic", "haiku._src.nets.vqvae", "equinox.nn._linear", "equinox.nn._normalisation",
             "equinox.nn._attention")  # fmt: skip
"""Modules whose newer version an edit imitates."""
OTHER_VERSION = "another version of the library"


def _case(name: str) -> Model:
    made = f"({name}, LIBRARY_CASES[{name!r}].args)"
    return Model(name.replace("_", " "), str(TESTS / "library_programs.py"), made, name)


def _model(name: str, made: str, entry: str) -> Model:
    return Model(name, str(HERE / "models.py"), made, entry)


def _program(name: str, made: str) -> Model:
    return Model(
        name, str(HERE / "remat_programs.py"), f"(lambda case: (case.make(no_wrap), case.args))({made})", "loss"
    )


MODELS: tuple[Model, ...] = (
    _model("MLP", "mlp(3)", "mlp_loss"),
    _model("transformer, unrolled", "transformer(3)", "transformer_loss"),
    _model("transformer, scanned", "scan_transformer(3)", "scan_transformer_loss"),
    _model("LSTM", "lstm(2, 8, 6)", "lstm_loss"),
    _program("MoE transformer", "mixture_of_experts(2, False, 64, 64, length=16, words=20)"),
    _program("GNN", "graph_network(3, 20, 50, 8)"),
    _program("neural ODE", "neural_ode(3, 4, 8, 8)"),
    _case("linen_decoder_with_named_policy"),
    _case("nnx_batch_norm_and_dropout_state"),
    _case("equinox_layers_scanned_and_checkpointed"),
    _case("haiku_vector_quantizer"),
    _case("kalman_filter"),
)
OUTCOMES = ("same", "stale", "ambiguous", "another", "gone")
_FILES = itertools.count()


@dataclass(frozen=True)
class Silent:
    """An address that meant another value, and did not say so."""

    model: str
    edit: str
    address: str
    old: str
    new: str


@dataclass
class Counts:
    """What became of addresses.

    Args:
      by_edit: how many were the same and so on, by edit; 'gone' are errors that are right.
      silent: those that meant something else.
      failed: the edits that a model does not run with, with the reason.
    """

    by_edit: dict[str, Counter[str]] = field(default_factory=dict)
    silent: list[Silent] = field(default_factory=list)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    missed: list[tuple[str, str, str, str]] = field(default_factory=list)

    @property
    def total(self) -> Counter[str]:
        return sum(self.by_edit.values(), Counter())

    @property
    def share_same(self) -> float:
        """Of the addresses of values that are still there."""
        n = self.total
        return n["same"] / max(1, sum(n[k] for k in OUTCOMES[:-1]))


@dataclass(frozen=True, eq=False)
class Ran:
    """A program, and its values on some numbers."""

    program: Program
    arrays: Mapping[AddressedValue, np.ndarray]

    def holds(self, array: np.ndarray) -> bool:
        """Whether one of its values, or the rows of one, are these numbers."""
        arrays = self.arrays.values()
        return (
            any(_equal(a, array) for a in arrays)
            or any(a.shape[1:] == array.shape and any(_equal(row, array) for row in a) for a in arrays if a.ndim)
            or (array.ndim > 0 and all(any(_equal(a, row) for a in arrays) for row in array))
        )


def imported(source: str, folder: Path) -> dict[str, Any]:
    """The names of a source, run as a module."""
    name = f"edited_{next(_FILES)}"
    for s in ast.parse(source).body:
        if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "SECOND_MODULE":
            _import(f"{name}_second", str(ast.literal_eval(s.value)), folder)
            source = source.replace("from second_module import", f"from {name}_second import")
    return _import(name, source, folder)


def _import(name: str, source: str, folder: Path) -> dict[str, Any]:
    file = folder / f"{name}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return vars(module)


def numbers(args: Any) -> Any:
    """Arguments with numbers that are all different, so that no two values are equal by chance; the same for each
    edited source, whatever it creates."""
    rng = np.random.default_rng(0)

    def leaf(x: Any) -> Any:
        if not hasattr(x, "dtype") or jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
            return x
        if not jax.numpy.issubdtype(x.dtype, np.floating):
            return jax.device_put(rng.integers(0, 8, x.shape).astype(x.dtype))
        return jax.device_put(rng.uniform(0.05, 0.6, x.shape).astype(np.float32) * rng.choice([1, 1, 1, -1], x.shape))

    return jax.tree.map(leaf, args)


def run(source: str, model: Model, folder: Path, edit: Edit | None = None) -> Ran:
    """Traces a source, and runs it."""
    fun, args = eval(model.made, imported(source, folder))
    args = numbers(tuple(args))
    if edit is not None:
        args = edit.arguments(args)
    program = trace_call(fun, args, {}).program
    values = {v.place: v for v in addressed_values(program)}
    kept, places = observed_program(
        program, Observer(values.__contains__, lambda builder, place, e, passed: (place[1], place[1]))
    )
    outs = evaluate(kept, [*jax.tree.leaves(args), np.zeros(1, np.int32)])
    arrays = [np.asarray(x) for x in outs[len(program.outvars) :]]
    return Ran(program, {values[p]: a for p, a in zip(places, arrays, strict=True)})


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same numbers, but for rounding: a compiled loop rounds otherwise."""
    if a.shape != b.shape:
        return False
    if a.dtype.kind not in "fc":
        return bool(np.array_equal(a, b))
    there = np.abs(b[np.isfinite(b) & (b != 0)])
    size = float(np.median(there)) if there.size else 0.0
    return bool(np.allclose(a, b, rtol=1e-5, atol=1e-4 * size, equal_nan=True))


def _means_same(old: np.ndarray, meant: Meant, new: Ran) -> bool:
    rows = []
    for v in meant.values:
        a, inner = new.arrays[v], new.arrays[v].ndim - len(v.aval.shape)
        rows.append(a if meant.iteration is None else np.take(a, meant.iteration, inner - 1))
    if len(rows) == 1:
        return _equal(rows[0], old)
    if len({r.shape for r in rows}) > 1:
        return False
    flat = np.concatenate([r.reshape(-1, *v.aval.shape) for r, v in zip(rows, meant.values, strict=True)])
    return flat.size == old.size and _equal(flat, old.reshape(flat.shape))


def count(model: Model, edit: Edit, before: Ran, middle: Ran, after: Ran, most: int, counts: Counts) -> None:
    """Resolves addresses of the values before in the program after; `middle` has the same values as `before`, with the
    numbers of `after`."""
    values = addressed_values(before.program)
    expected = {v: middle.arrays[w] for v, w in zip(values, addressed_values(middle.program), strict=True)}
    found = counts.by_edit.setdefault(edit.name, Counter())
    for v in random.Random(0).sample(values, min(most, len(values))):
        written = address_of(before.program, v)
        try:
            meant = resolve(after.program, written)
        except AddressError as error:
            is_there = after.holds(expected[v])
            outcome = "ambiguous" if "may mean one of" in str(error) else "stale"
            found[outcome if is_there else "gone"] += 1
            if is_there:
                counts.missed.append((model.name, edit.name, _shown(v), str(error)))
            continue
        is_same = _means_same(expected[v], meant, after)
        found["same" if is_same else "another"] += 1
        if not is_same:
            new = "; ".join(map(_shown, meant.values[:3]))
            new += f", iteration {meant.iteration}" if meant.iteration is not None else ""
            counts.silent.append(Silent(model.name, edit.name, str(written), _shown(v), new))


def _shown(v: AddressedValue) -> str:
    return f"{v.name} at {v.line} in {v.module or v.function}"


@contextmanager
def other_version(folder: Path) -> Iterator[list[Any]]:
    """Libraries as another version might be: with other lines and other names of locals."""
    replaced: list[tuple[FunctionType, CodeType]] = []
    files: dict[str, dict[str, CodeType]] = {}
    for name in LIBRARIES:
        if name in sys.modules:
            module = sys.modules[name]
            tree = ast.parse(inspect.getsource(module))
            rename_locals(tree, Model(name, "", "", ""))
            path = (
                folder
                / "site-packages"
                / f"{next(_FILES)}"
                / Path(str(module.__file__)).relative_to(
                    Path(str(sys.modules[name.split(".")[0]].__file__)).parent.parent
                )
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            text = "\n\n# another version\n" + ast.unparse(ast.fix_missing_locations(tree))
            path.write_text(text)
            files[str(module.__file__)] = dict(_codes(compile(text, str(path), "exec")))
    try:
        for f in gc.get_objects():
            if isinstance(f, FunctionType) and f.__code__.co_filename in files:
                code = files[f.__code__.co_filename].get(f.__code__.co_qualname)
                if code is not None and len(code.co_freevars) == len(f.__code__.co_freevars):
                    replaced.append((f, f.__code__))
                    f.__code__ = code
        yield replaced
    finally:
        for f, code in replaced:
            f.__code__ = code


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for c in code.co_consts:
        if isinstance(c, CodeType):
            yield c.co_qualname, c
            yield from _codes(c)


def measure(models: Sequence[Model], edits: Sequence[str], most: int = MOST, seen: Any = None) -> Counts:
    """Counts what becomes of addresses of these models after these edits."""
    counts = Counts()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if any(str(TESTS) in m.file for m in models) and str(TESTS) not in sys.path:
            sys.path.insert(0, str(TESTS))
        sys.path.insert(0, folder)
        for model in models:
            runs = _Runs(model, Path(folder))
            for edit in map(EDITS.__getitem__, edits):
                try:
                    programs = runs.around(edit)
                    if programs is not None:
                        count(model, edit, *programs, most, counts)
                except Exception as error:  # an edit that this model does not survive
                    text = str(error).splitlines() or [""]
                    counts.failed[model.name, edit.name] = f"{type(error).__name__}: {text[0][:150]}"
            if seen is not None:
                seen(model, counts)
        sys.path.remove(folder)
    return counts


class _Runs:
    """A model's sources, edited and run, each once."""

    def __init__(self, model: Model, folder: Path):
        self.model, self.folder = model, folder
        self.source = sliced(Path(model.file).read_text(), model.made)
        self._done: dict[Any, Ran] = {}

    def around(self, edit: Edit) -> tuple[Ran, Ran, Ran] | None:
        """The programs before an edit, before it with the numbers after it, and after it; None if nothing changes."""
        if edit.name == OTHER_VERSION:
            with other_version(self.folder) as n:
                new = run(self.source, self.model, self.folder)
            return (self._ran(self.source), self._ran(self.source), new) if n and _has_library(new) else None
        changed = edit.first(self.source, self.model)
        edited, both = (edit.run(text, self.model) if text else None for text in (self.source, changed))
        if changed is None or edited is None or both is None or self.source == both:
            return None
        if edit.is_undone:
            return self._ran(edited, edit), self._ran(both, edit), self._ran(changed)
        return self._ran(self.source), self._ran(changed), self._ran(both, edit)

    def _ran(self, text: str, edit: Edit | None = None) -> Ran:
        key = text, edit.arguments if edit is not None else None
        if key not in self._done:
            self._done[key] = run(text, self.model, self.folder, edit)
        return self._done[key]


def _has_library(ran: Ran) -> bool:
    return any("site-packages" in v.location.file for v in ran.arrays if v.location is not None) or any(
        v.module for v in ran.arrays
    )


EDITS[OTHER_VERSION] = Edit(OTHER_VERSION, lambda source, model: source)


def main(quick: bool, only: str = "", only_edit: str = "") -> None:
    """Prints a table of edits, the totals and what was silently another value."""
    models = [m for m in MODELS if only in m.name][: 1 if quick else None]
    progress = lambda model, counts: print(f"  {model.name}: {dict(counts.total)}", flush=True)
    counts = measure(models, [e for e in EDITS if only_edit in e], MOST, progress)
    print(f"\nAddresses after an edit of {len(models)} models{'':18}" + "".join(f"{k:>10}" for k in OUTCOMES))
    for name, found in sorted(counts.by_edit.items(), key=lambda item: list(EDITS).index(item[0])):
        mark = " *" if EDITS[name].adds_look_alikes else ""
        print(f"  {name + mark:58}" + "".join(f"{found[k] or '':>10}" for k in OUTCOMES))
    print(f"  {'total':58}" + "".join(f"{counts.total[k]:>10}" for k in OUTCOMES))
    print(f"  * adds or deletes look-alikes. Same, of those that are still there: {counts.share_same:.2%}")
    for s in counts.silent:
        print(f"  silent: {s.model}, {s.edit}: {s.address!r}: {s.old} became {s.new}")
    if "--failed" in sys.argv:
        for at, reason in counts.failed.items():
            print("  failed:", *at, reason)
    if "--missed" in sys.argv:
        for model, name, old, error in counts.missed:
            print(f"  missed: {model}, {name}: {old}\n    " + error.replace("\n", "\n    "))


if __name__ == "__main__":
    given = dict(zip(sys.argv, sys.argv[1:], strict=False))
    main("--quick" in sys.argv, given.get("--model", ""), given.get("--edit", ""))
