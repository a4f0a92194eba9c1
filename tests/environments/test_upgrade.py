"""What differs between facts, which of it is worse, and what the first line says."""

import json
import sys
from dataclasses import replace

import jax
import jsonschema
import numpy as np
import pytest
from facts_of_programs import facts, upgrade_of

import jaxviz
from jaxviz.analysis.checkpoints import NoEffect
from jaxviz.environments.changes import leaf_changes
from jaxviz.environments.elsewhere import Interpreter
from jaxviz.environments.facts import (
    Environment,
    LeafValues,
    LineWork,
    ModelledPeak,
    NotKnown,
    PolicyDecisions,
    SavedRow,
)
from jaxviz.environments.report import Upgrade
from jaxviz.environments.start import printed_only_by
from jaxviz.ir.origin import Location
from jaxviz.xla.collectives.report import Collective
from jaxviz.xla.compile_cost.stages import Phases, Seconds

AT = Location("/old/lib/model.py", 41, "loss")
NOW = Location("/new/lib/model.py", 41, "loss")
OLD, NEW = Environment("3.11.7", "0.10.2", "0.10.2"), Environment("3.12.1", "0.12.0", "0.12.0", {"flax": "0.13"})


def compared(change_before=lambda f: f, change_after=lambda f: f, arrays=None):
    """The report of two facts that are the same but for these changes."""
    found, _ = facts("loss")
    a, b = change_before(found), change_after(found)
    leaves = leaf_changes(a, b, arrays) if arrays else ()
    return Upgrade("model.py:loss", "w, x", (OLD, NEW), (a, b), leaves=leaves)


def of_program(**changes):
    return lambda found: replace(found, program=replace(found.program, **changes))


def of_compiled(**changes):
    return lambda found: replace(found, compiled=replace(found.compiled, **changes))


HEAD = "the gradient of `loss` in `w` from JAX 0.10.2 to 0.12.0: "


def row(nbytes, label="silu(gate)", type="f32[8]", count=1, at=AT):
    return SavedRow(label, type, count, nbytes, "needed again in line 42's gradient", "", at)


def test_nothing_is_worse():
    report = compared()
    assert report.summary.startswith(f"{HEAD}nothing got worse; ")
    assert (report.worse, report.better) == ((), ())
    assert all(f.change == 0 for f in report.figures)


SAVED = [
    ((), (row(64),), "+64 B", "it is saved now; needed again in line 42's gradient"),
    ((row(64),), (), "-64 B", "it is no longer saved"),
    ((row(32),), (row(64, type="f32[16]", at=NOW),), "+32 B", "f32[16] now, f32[8] before"),
    ((row(64, count=2),), (row(96, count=3, at=NOW),), "+32 B", "3 now, 2 before"),
]


@pytest.mark.parametrize(("before", "after", "change", "why"), SAVED)
def test_saved_values_that_differ_are_a_row(before, after, change, why):
    report = compared(of_program(saved=before), of_program(saved=after))
    (found,) = report.residuals
    assert found.cells[0] == change
    assert found.why == why
    if change.startswith("+"):
        assert f"; most of it {change} for `silu(gate)` (model.py:41)".replace("; ", ", ") in report.summary
        assert report.summary.startswith(f"{HEAD}worse: saved bytes")
    else:
        assert "nothing got worse; better: saved bytes" in report.summary


def test_lines_of_a_library_may_move_and_other_words_are_no_difference():
    before = (row(32), row(64, "exp(y)", at=Location("/old/lib/model.py", 50, "loss")), row(16, "mul in silu(x)"))
    after = (row(32, at=NOW), row(64, "exp(y)", at=Location("/new/lib/model.py", 55, "loss")), row(16, "silu(x)"))
    report = compared(of_program(saved=before), of_program(saved=after))
    assert report.residuals == ()


def work(forward, backward, recomputed=0, **operations):
    return LineWork("h = x @ w", AT, forward, backward, recomputed, operations)


def test_work_that_moves_between_passes_is_shown_and_not_worse():
    report = compared(of_program(work=(work(100, 300),)), of_program(work=(work(150, 250),)))
    (found,) = report.work
    assert (found.change, found.why) == (0, "forward +50 FLOP, backward -50 FLOP")
    assert report.worse == ()
    more = compared(of_program(work=(work(100, 300),)), of_program(work=(work(100, 400, 100),)))
    assert more.worse == (
        "FLOPs 400 FLOP → 500 FLOP, +100 FLOP (+25%), most of it +100 FLOP for `h = x @ w` (model.py:41)",
    )
    assert more.work[0].why == "backward +100 FLOP, recomputed +100 FLOP"


def test_the_operation_that_computes_more_is_named():
    before, after = work(100, 0, lgamma=60, mul=40), work(200, 0, lgamma=155, mul=45)
    (found,) = compared(of_program(work=(before,)), of_program(work=(after,))).work
    assert (found.what, found.change) == ("`lgamma` in `h = x @ w`", 100)
    swapped = work(200, 0, tanh_rule=160, mul=40)
    (found,) = compared(of_program(work=(before,)), of_program(work=(swapped,))).work
    assert found.what == "`h = x @ w`"


def test_a_higher_peak_is_worse_and_has_its_line():
    peak = ModelledPeak(1000, "a * b", AT)
    report = compared(of_program(peak=peak), of_program(peak=replace(peak, nbytes=1200, what="b * c")))
    assert report.worse == ("modelled peak 1000 B → 1.2 KiB, +200 B (+20%), at `b * c` (model.py:41)",)
    assert compared(of_program(peak=peak), of_program(peak=replace(peak, nbytes=800))).better == ("modelled peak -20%",)
    assert "modelled peak" not in str(compared(of_program(peak=None), of_program(peak=peak)))


def test_a_figure_that_hardly_grows_is_no_headline():
    peak = ModelledPeak(1000, "a * b", AT)
    report = compared(of_program(peak=peak), of_program(peak=replace(peak, nbytes=1004)))
    assert report.worse == ()
    assert "nothing got worse by half a percent or more" in report.summary


def exchange(kind="all-reduce", sent=64, count=1):
    return Collective(
        kind, ("data",), 2, "f32[16]", sent, sent, count, 1, "backward", "x @ w", "dot_general", AT, "w is replicated",
        "sum", "", (),
    )  # fmt: skip


def test_collectives_that_send_more_are_worse():
    report = compared(of_compiled(collectives=(exchange(),)), of_compiled(collectives=(exchange(count=3),)))
    assert report.worse == (
        "sent by each device 64 B → 192 B, +128 B (+200%), most of it +128 B for `x @ w` (model.py:41)",
    )
    (found,) = report.collectives
    assert (found.kind, found.why) == ("all-reduce over data", "3 now, 1 before")
    new = compared(of_compiled(collectives=()), of_compiled(collectives=(exchange(),)))
    assert new.collectives[0].why == "w is replicated"
    gone = compared(of_compiled(collectives=(exchange(),)), of_compiled(collectives=()))
    assert (gone.collectives[0].why, gone.better) == ("it is no longer there", ("sent by each device -100%",))
    kind = compared(of_compiled(collectives=(exchange(),)), of_compiled(collectives=(exchange("all-gather", 32),)))
    assert kind.collectives[0].why == "all-gather now, all-reduce before"


def test_policies_that_decide_differently_are_a_row():
    decided = PolicyDecisions("block", "dots_saveable", AT, 2, 0, 5)
    report = compared(
        of_program(decisions=(decided,)), of_program(decisions=(replace(decided, saved=0, recomputed=7),))
    )
    (found,) = report.decisions
    assert found.what == "the policy dots_saveable of the checkpoint of `block`"
    assert found.why == "0 saved now, 2 before, 7 recomputed now, 5 before"


def test_what_has_no_effect_now_is_worse():
    idle = NoEffect("checkpoint-without-effect", "It saves 12 B.", "the checkpoint of `f` saves 12 B", "remove it", AT)
    less = replace(idle, text="It saves 8 B.", short="the checkpoint of `f` saves 8 B", location=NOW)
    of = lambda *found: of_program(without_effect=found)
    assert compared(of(), of(idle)).worse == ("without effect now: the checkpoint of `f` saves 12 B",)
    assert compared(of(idle), of()).better == ("no longer: the checkpoint of `f` saves 12 B",)
    assert compared(of(idle), of(less)).without_effect == ()


def phases(*seconds):
    second = lambda s: Seconds(s, s)
    return of_compiled(compilations=tuple(Phases(second(0.1), second(0.1), second(s)) for s in seconds))


COMPILED = {
    "longer": ((1.0, 1.1, 1.2), (2.0, 2.1, 2.4), ("compile time 1.30 s → 2.30 s, +1.00 s (+77%), most of it in XLA",)),
    "one is not longer": ((1.0, 1.1, 3.0), (2.0, 2.1, 2.4), ()),
    "hardly longer": ((1.0, 1.1, 1.2), (1.3, 1.4, 1.5), ()),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiling_is_slower_only_beyond_its_noise(name):
    before, after, worse = COMPILED[name]
    assert compared(phases(*before), phases(*after)).worse == worse
    faster = compared(phases(*after), phases(*before)).better
    assert faster == (("compile time -43%",) if worse else ())


def leaf(norm=1.0, noise=1e-6, nans=0, infinities=0, name="w"):
    return LeafValues("gradient", name, "f32[2]", norm, noise, nans, infinities)


def of_values(*leaves, replaced=(), constants=""):
    return lambda found: replace(
        found, values=replace(found.values, leaves=leaves, replaced=replaced, constants=constants)
    )


ONE = np.array([1.0, 0.0])
VALUES = {
    "the same": ((leaf(), leaf()), (ONE, ONE), "the values are the same"),
    "within the noise": ((leaf(), leaf()), (ONE, ONE + 5e-6), "the values agree within their noise"),
    "beyond it": (
        (leaf(), leaf()), (ONE, np.array([1.001, 0.0])),
        "the gradient in `w` differs by 0.1% of its norm, 1,000 times its noise",
    ),
    "no longer finite": (
        (leaf(), leaf(nans=1)), (ONE, np.array([1.0, np.nan])), "the gradient in `w` has 1 NaN elements, 0 before",
    ),
    "finite now": (
        (leaf(infinities=1), leaf()), (np.array([1.0, np.inf]), ONE),
        "the gradient in `w` has 0 infinite elements, 1 before",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values_are_compared_with_their_noise(name):
    (before, after), arrays, said = VALUES[name]
    report = compared(of_values(before), of_values(after), [[x] for x in arrays])
    assert report.values == said
    assert said in report.summary
    assert bool(report.worse) == (name == "no longer finite")
    if name in ("beyond it", "no longer finite", "finite now"):
        assert report.summary.startswith(f"{HEAD}{said}")
        assert "arrays that differ by more than their noise" in str(report)


def test_values_of_other_shapes_are_not_compared():
    (a, _), (b, _) = facts("loss"), facts("loss")
    assert leaf_changes(a, b, ([ONE, ONE], [ONE, ONE[:1]])) == "w has the type f32[4,3] now, f32[4,3] before"
    fewer = replace(b, values=replace(b.values, leaves=b.values.leaves[:1]))
    assert leaf_changes(a, fewer, ([ONE, ONE], [ONE])) == "2 arrays are computed before, and 1 now"


def test_notes_say_what_was_not_looked_at():
    unknown = lambda found: replace(
        found, compiled=replace(found.compiled, memory=None), not_known=(NotKnown("compiled memory", "no such thing"),)
    )
    report = compared(change_after=unknown)
    assert "nothing that could be compared got worse" in report.summary
    assert "Not known with JAX 0.12.0: compiled memory. no such thing" in report.notes
    given = compared(of_values(leaf()), of_values(leaf(), replaced=("w",), constants="a"), [[ONE], [ONE]])
    text = " ".join(given.notes)
    assert "The arguments themselves differ, in `w`: both are computed with those of JAX 0.10.2." in text
    assert "The function closes over arrays that differ" in text
    assert "JAX 0.10.2 → 0.12.0" in text


def test_a_side_that_fails_has_its_error_and_the_other_side_its_figures():
    found, _ = facts("loss")
    report = Upgrade("model.py:loss", "w, x", (OLD, NEW), (found, None), ("", "TypeError while …\n  at model.py:3"))
    assert report.summary == "the gradient of `loss` in `w` fails with JAX 0.12.0: TypeError while …"
    text = str(report)
    assert "  at model.py:3" in text
    assert "saved bytes" in text
    jsonschema.validate(report.to_dict(), jaxviz.schema("upgrade"))


def test_a_warning_of_both_is_not_repeated_for_its_place():
    before = ("/old/lib/jax/sums.py:235: UserWarning: no float64", "  return sum(x)")
    after = (
        "/new/lib/jax/sums.py:301: UserWarning: no float64",
        "  return sum(x)",
        "/new/a.py:3: other",
        "more",
        "more",
    )
    assert printed_only_by(after, before) == ("/new/a.py:3: other", "more")


def test_versions_name_the_sides():
    titles = lambda a, b: Upgrade("m:f", "", (a, b), (None, None), ("no", "no")).titles
    assert titles(OLD, replace(OLD, python="3.12.1")) == ("Python 3.11.7", "Python 3.12.1")
    of_flax = lambda version: replace(OLD, libraries={"flax": version})
    assert titles(of_flax("0.12"), of_flax("0.13")) == ("flax 0.12", "flax 0.13")
    assert titles(OLD, OLD) == ("before", "after")
    found, _ = facts("loss")
    both = replace(OLD, libraries={"flax": "0.12"}), replace(NEW, libraries={"flax": "0.13"})
    report = Upgrade("m:f", "", both, (found, found))
    assert " from JAX 0.10.2 to 0.12.0, with other versions of flax: nothing got worse" in report.summary


def test_two_programs_as_one_in_two_environments():
    report = upgrade_of("loss", "checkpointed")
    assert report.residuals
    assert report.decisions
    plain = report.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    jsonschema.validate(plain, jaxviz.schema("upgrade"))
    assert "<table" in report._repr_html_()


# --- processes --------------------------------------------------------------------------------------------------------

MODEL = """
import sys
import jax
import jax.numpy as jnp

w = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
x = jnp.ones((2, 4))

def loss(w, x):
    h = jnp.tanh(x @ w)
    if jax.config.jax_default_matmul_precision == "high":
        print("a warning", file=sys.stderr)
        h = jnp.sin(h)
    return jnp.sum(h)

def fails(w, x):
    if jax.config.jax_default_matmul_precision == "high":
        raise AttributeError("jax.tree_map was removed")
    return loss(w, x)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model and an environment: this Python, with another flag of JAX."""
    (tmp_path / "model.py").write_text(MODEL)
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nJAX_DEFAULT_MATMUL_PRECISION=high exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the environment of the test is a script for a shell")
def test_the_command_compares_two_environments(folder, capsys):
    assert main_of("upgrade", "model.py:loss", "--args", "w, x", "--to", "env", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, jaxviz.schema("upgrade"))
    assert any(text.startswith("saved bytes") and "(model.py:13)" in text for text in found["worse"])
    assert {leaf["after"]["name"]: leaf["agrees"] for leaf in found["leaves"]}["w"] is False
    assert any("jax_default_matmul_precision None → high" in note for note in found["notes"])
    assert "a warning" in found["notes"]
    assert main_of("upgrade", "model.py:fails", "--args", "w, x", "--to", "env") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "fails with after: AttributeError while gathering facts of model.py:fails: jax.tree_map was removed" in shown


@pytest.mark.slow(sweep=True)
def test_a_mistake_in_the_command_is_said_once(folder, capsys):
    assert main_of("upgrade", "model.py:lost", "--args", "w, x", "--to", sys.executable) == 2
    assert capsys.readouterr().err == "jaxviz upgrade: model.py has no 'lost'; it has loss, fails\n"


def main_of(*words):
    from jaxviz.cli import main

    return main(words)


def test_an_environment_without_a_python_is_refused(tmp_path):
    with pytest.raises(ValueError, match="give the other environment as before or after"):
        jaxviz.upgrade("model.py:loss")
    with pytest.raises(ValueError, match="is no environment: it has no bin/python"):
        Interpreter.of(tmp_path)
    with pytest.raises(ValueError, match="there is no Python at nowhere; give an interpreter"):
        Interpreter.of("nowhere")
    (tmp_path / "python").write_text("no program")
    with pytest.raises(ValueError, match="is not a Python that runs"):
        Interpreter.of(tmp_path / "python")


def test_an_environment_without_packages_says_what_to_install(monkeypatch):
    monkeypatch.setattr("jaxviz.environments.elsewhere._PROBE", 'print(\'["3.12.1", "", "", ["jax", "protobuf"]]\')')
    with pytest.raises(ValueError, match=r"has no jax and no protobuf; install .*\n .* -m pip install jax protobuf"):
        Interpreter.of(sys.executable)


def test_this_python_is_an_environment():
    assert Interpreter.of(sys.executable).environment.jax == jax.__version__
