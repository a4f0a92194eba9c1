"""The magics, in a shell of their own: what they display, and how they report mistakes."""

import linecache

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import jaxviz
from jaxviz.notebook.magics import JaxvizMagics

SETUP = """
import jax
import jax.numpy as jnp

def f(x, y=1.0):
    return jnp.sin(x) * 2.0 + y

class Model:
    def loss(self, x):
        return jnp.sum(x**2)

def broken(x):
    raise ValueError("no such layer")

def mismatched(x):
    return x @ jnp.ones((4, 4))

def loops(x):
    return jax.lax.while_loop(lambda c: c < 9.0, lambda c: c * x, x)

model = Model()
x = jnp.ones(3)
"""


@pytest.fixture(scope="module")
def shell():
    shell = InteractiveShell.instance()
    shell.run_cell(SETUP).raise_error()
    shell.run_line_magic("load_ext", "jaxviz")
    yield shell
    InteractiveShell.clear_instance()


@pytest.fixture
def run(shell, capsys):
    """Runs a cell; returns its result and what it printed to stderr."""

    def run_cell(text):
        capsys.readouterr()
        result = shell.run_cell(text)
        result.raise_error()
        return result.result, capsys.readouterr().err

    return run_cell


def test_jaxpr(run):
    shown, err = run("%jaxpr f(1.0)")
    assert "b:f32[] = sin a" in repr(shown)
    assert err == ""


def test_the_jaxpr_of_a_stage_and_of_a_call_with_a_flag(run):
    shown, err = run("%jaxpr --stage backward f(x)")
    assert (str(shown), err) == (str(run("%vjp f(x)")[0].programs[1][1]), "")
    shown, err = run("%jaxpr (lambda x, double: 2 * x if double else x)(x, True)")
    assert ("mul" in str(shown), err) == (True, "")
    assert "--stage must be primal, jvp" in run("%jaxpr --stage last f(x)")[1]


def test_memory(run, shell, capsys):
    shown, err = run("%memory model.loss(x)")
    assert str(shown).startswith("memory of the gradient of `loss` in `x`: modelled peak")
    assert err == ""
    shell.run_cell("%memory --xla --argnums 0 model.loss(x)").raise_error()
    assert "XLA on cpu takes" in capsys.readouterr().out


def test_remat(run):
    run(
        "def deep(w, x):\n    for _ in range(3):\n        x = jnp.sin(x @ w)\n    return x.sum()\nw = jnp.ones((4, 4))\nxs = jnp.ones((64, 4))"
    )
    plan, err = run("%remat --budget 0.7 deep(w, xs)")
    assert str(plan).startswith("plan for the gradient of `deep` in `w`, residuals, with arguments, within ")
    assert err == ""
    assert run("%remat -w 0% deep(w, xs)")[0].flops == 0
    assert "--work: work must be a share, such as 0.1 or '10%'; got 'much'" in run("%remat --work much deep(w, xs)")[1]
    assert "--memory and --work exclude each other" in run("%remat -w 5% -m 1GiB deep(w, xs)")[1]
    plan, err = run("%remat -c -b 0.001 deep(w, xs)")
    assert plan is None
    assert "cannot be met for deep: the minimum is" in err
    assert "--budget: a budget must be a size such as" in run("%remat --budget much deep(w, xs)")[1]
    assert run("%remat --memory 1GiB deep(w, xs)")[0].bound == "peak within 1.0 GiB"
    assert run("%remat --memory device deep(w, xs)")[0].saved is None


DEEP = """
from jax.ad_checkpoint import checkpoint_name

def block(w, x):
    return jnp.sin(checkpoint_name(jnp.tanh(x @ w), "h h"))

def blocks(w, x):
    for _ in range(3):
        x = jax.checkpoint(block)(w, x)
    return x.sum()

w = jnp.ones((4, 4))
xs = jnp.ones((64, 4))
mine = jax.checkpoint_policies.save_only_these_names("h h")
"""


@pytest.fixture
def blocks(run):
    run(DEEP)


@pytest.mark.parametrize(
    "policy",
    [
        "mine",
        """save_only_these_names("h h")""",
        """jax.checkpoint_policies.save_only_these_names('h h', "other")""",
        """'save_only_these_names("h h")'""",
        """"jax.checkpoint_policies.save_only_these_names( 'h h' )\"""",
    ],
)
@pytest.mark.parametrize("option", ["--policy ", "--policy=", "-p "])
def test_residuals_under_a_policy(run, blocks, policy, option, capsys):
    found, err = run(f"%residuals {option}{policy} --argnums 0 blocks(w, xs)")
    assert err == ""
    assert [r.expression for r in found].count("checkpoint_name 'h h'") == 3


def test_residuals_under_a_policy_by_name_and_without_any(run, blocks, shell, capsys):
    found, err = run("%residuals --policy dots_saveable blocks(w, xs)")
    assert [r.expression for r in found if r.kind == "intermediate"].count("x @ w") == 3
    assert err == ""
    shell.run_cell("%residuals --policy dots_saveable blocks(w, xs)").raise_error()
    assert capsys.readouterr().out.startswith("with dots_saveable on its checkpoints, 3 of block (In[")
    everything, _ = run("%residuals --policy everything blocks(w, xs)")
    own, _ = run("%residuals blocks(w, xs)")
    as_it_is, _ = run("%residuals --policy 'as it is' blocks(w, xs)")
    assert everything.nbytes > own.nbytes == as_it_is.nbytes


def test_residuals_side_by_side(run, blocks):
    found, err = run(
        """%residuals --compare 'as it is',dots_saveable,save_only_these_names("h h", "k") blocks(w, xs)"""
    )
    assert err == ""
    assert [o.name for o in found.outcomes] == ["as it is", "dots_saveable", "save_only_these_names('h h', 'k')"]
    own, _ = run("%residuals blocks(w, xs)")
    assert found["as it is"].nbytes == own.nbytes


def test_memory_under_policies(run, blocks, shell, capsys):
    timeline, err = run("%memory --policy everything blocks(w, xs)")
    assert err == ""
    shown, err = run("%memory --compare everything,nothing_saveable blocks(w, xs)")
    assert err == ""
    assert shown.policies["everything"].peak_nbytes == timeline.peak_nbytes
    assert "difference" in str(shown)
    shown, _ = run("%memory -x --compare everything,nothing_saveable blocks(w, xs)")
    assert "compiled by XLA for cpu" in " ".join(str(shown).split())


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("5kB", 5000), ("5KiB", 5120), ("0.005MB", 5000), ("5120", 5120), ("4000B", 4000), ("0.000005GB", 5000)],
)
def test_remat_within_a_size(run, blocks, text, nbytes):
    plan, err = run(f"%remat --budget {text} blocks(w, xs)")
    assert err == ""
    assert plan.budget == nbytes


def test_remat_needs_no_bound(run, blocks):
    plan, _ = run("%remat blocks(w, xs)")
    assert plan.bound == ""
    assert plan.peak_nbytes <= plan.before.peak_nbytes


@pytest.mark.large
def test_remat_at_the_bytes_of_policies(run, blocks, shell, capsys):
    compared, _ = run("%residuals --argnums 0 --compare mine,nothing_saveable blocks(w, xs)")
    plan, err = run("%remat --policy mine blocks(w, xs)")
    assert err == ""
    assert plan.budget == compared.outcomes[0].nbytes
    shell.run_cell("%remat --policy mine blocks(w, xs)").raise_error()
    assert "save_only_these_names('h h') saves " in capsys.readouterr().out
    shown, err = run("%remat --compare mine,nothing_saveable blocks(w, xs)")
    assert err == ""
    assert [o.nbytes for o in shown.policies.outcomes] == [o.nbytes for o in compared.outcomes]
    assert str(shown).startswith("plans for the gradient of `blocks` in `w` at the bytes of 2 policies")


@pytest.mark.large
def test_the_explorer_of_a_policy_and_of_a_plan(run, blocks, monkeypatch):
    shown = []
    monkeypatch.setattr(JaxvizMagics, "_explored", lambda self, what: shown.append(what))
    run("%residuals --policy everything_saveable --explore blocks(w, xs)")
    run("%memory --policy everything_saveable -e blocks(w, xs)")
    run("%remat --budget 0.6 -e blocks(w, xs)")
    plan, _ = run("%remat --budget 0.6 blocks(w, xs)")
    first, second, planned = (sum(r.nbytes for r in d.residuals) for d in shown)
    assert first == second
    assert planned == plan.nbytes


def test_the_options_are_explained(run, shell, capsys):
    for magic in ("residuals", "memory", "remat"):
        shell.run_cell(f"%{magic}?")
        text = " ".join(capsys.readouterr().out.split())
        assert "--policy" in text
        assert "--compare" in text
        assert "a name in jax.checkpoint_policies, or an expression such as" in text


def test_collectives(run):
    run(
        "mesh = jax.make_mesh((8,), ('i',))\nlaid = lambda x, *spec: jax.device_put(x, jax.NamedSharding(mesh, jax.P(*spec)))"
    )
    run("def error(w, x):\n    return jnp.sum(jnp.tanh(x @ w))")
    report, err = run("%collectives error(laid(jnp.ones((4, 4))), laid(jnp.ones((8, 4)), 'i'))")
    assert err == ""
    assert "`w` is replicated over `i`, `x` is split over it: `w`'s cotangent is summed" in [
        c.cause for c in report.compiled
    ]


def test_lint(run, shell, capsys):
    run("def wide(w, x):\n    return jnp.sum(jax.nn.gelu(x @ w) @ w)\nsquare = jnp.ones((64, 64))")
    report, err = run("%lint wide(square, square)")
    assert [a.rule for a in report] == ["cheap-recompute"]
    assert report[0].text.startswith("64.0 KiB in ")
    assert err == ""
    assert len(run("%lint --argnums 0,1 wide(square, square)")[0]) == 1
    shell.run_cell("%lint --explain wide(square, square)").raise_error()
    assert "cheap-recompute: values are saved that a few cheap operations" in capsys.readouterr().out
    assert "no suggestions" in str(run("%lint loops(2.0)")[0])


def test_nan(run, shell, capsys):
    run("def rooted(x):\n    return jnp.sum(jnp.sqrt(x))")
    report, err = run("%nan rooted(jnp.zeros(2))")
    assert report.born.cause.id == "slope-of-sqrt"
    assert err == ""
    shell.run_cell("%nan rooted(jnp.ones(2))").raise_error()
    assert "rooted(jnp.ones(2)): every result is finite" in capsys.readouterr().out


@pytest.mark.parametrize(
    "call", ["f(x, y=x)", "f(*[x])", "f(**{'x': x})", "model.loss(x)", "jax.jit(f)(x)", "f(x,\n  x)"]
)
def test_any_kind_of_call(run, call):
    shown, err = run(f"%%jaxpr\n{call}")
    assert "f32[3]" in repr(shown)
    assert err == ""


def test_a_cell_runs_what_stands_before_the_call(run):
    shown, _ = run("%%jaxpr\nz = 3.0\nf(z)")
    assert "sin a" in repr(shown)


def test_residuals(run):
    found, _ = run("%residuals f(x)")
    assert [r.kind for r in found] == ["intermediate", "literal"]
    assert "why it is saved" in found._repr_html_()


def test_residuals_in_some_arguments(run):
    found, _ = run("%residuals --argnums 1 (lambda x, y: x * y)(x, x)")
    assert [r.expression for r in found] == ["x"]


def test_linearize_and_vjp(run):
    shown, _ = run("%linearize f(1.0)")
    assert [name for name, _ in shown.programs] == ["forward", "linear"]
    shown, _ = run("%vjp f(1.0)")
    assert [name for name, _ in shown.programs] == ["forward", "backward"]


def test_memory_as_compiled(run, blocks):
    found, _ = run("%memory --compiled --argnums 0 blocks(w, xs)")
    assert found.summary.startswith("compiled gradient of `blocks` in `w`")
    assert str(run("%compiled_memory blocks(w, xs)")[0]) == str(found)
    _, err = run("%memory --compiled --compare everything,nothing_saveable blocks(w, xs)")
    assert "--compiled and --compare exclude each other" in err


def test_memory_is_kept_and_compared(run, blocks, shell, capsys, tmp_path):
    path = tmp_path / "a.json"
    shell.run_cell(f"%memory --compiled --save {path} blocks(w, xs)").raise_error()
    assert f"wrote {path}" in capsys.readouterr().out
    found, _ = run("%memory --compiled blocks(w, xs)")
    assert jaxviz.CompiledMemory.load(path).peak_nbytes == found.peak_nbytes
    changed, _ = run(f"%memory --compiled --policy nothing_saveable --against {path} blocks(w, xs)")
    other, _ = run("%memory --compiled --policy nothing_saveable blocks(w, xs)")
    assert (changed.before.peak_nbytes, changed.after.peak_nbytes) == (found.peak_nbytes, other.peak_nbytes)
    _, err = run(f"%memory --against {path} blocks(w, xs)")
    assert "add --compiled" in err
    _, err = run(f"%memory --compiled --against {tmp_path / 'none.json'} blocks(w, xs)")
    assert "--against: " in err
    beside, _ = run("%memory --beside blocks(w, xs)")
    assert beside.compiled.peak_nbytes == found.peak_nbytes


def test_what_compiling_takes(run):
    found, _ = run("%compile_cost model.loss(x)")
    assert found.summary.startswith("compiling the gradient of `loss` in `x` takes ")
    assert found.times == 1


def test_compare(run, shell, capsys, monkeypatch):
    found, _ = run("%compare f(x), f(2 * x)")
    assert "the same program" in found.summary
    found, _ = run("%%compare --argnums 0\nother = lambda x: jnp.cos(x)\nf(x), other(x)")
    assert [d.what for d in found.differences() if d.is_added] == ["cos"]
    shown = []
    monkeypatch.setattr("jaxviz.notebook.magics.display", shown.append)
    run("%compare --explore f(x), jax.checkpoint(f)(x)")
    assert shown[0].compared
    _, printed = run("%compare f(x)")
    assert "expected 2 calls, such as f(x), g(x); got: f(x)" in printed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("%residuals --argnums 0,1 product(x, x)", "%residuals product(x, x) --argnums 0,1"),
        ("%residuals -a all product(x, x)", "%residuals product(x, x) -a all  # of all, --explore"),
        ("%residuals --argnums=0,1 product(x, -x)", "%residuals product(x, -x) --argnums=0,1"),
        ("%remat --budget '100%' product(x, x)", "%remat product(x, x) -b 100%"),
        ("%compare --argnums 1 f(x, x), f(x, x * 2)", "%compare f(x, x), f(x, x * 2) --argnums 1"),
        ("%%residuals --argnums 1\nproduct(x, x)", "%%residuals product(x, x) --argnums 1\n# that is all"),
    ],
)
def test_options_may_stand_after_the_call(run, before, after):
    run("def product(x, y):\n    return jnp.sum(jnp.sin(x) * y)")
    (first, err), (second, _) = run(before), run(after)
    assert err == ""
    assert str(first) == str(second)
    assert str(first) != ""


@pytest.mark.parametrize(
    ("text", "at", "offered"),
    [
        ("%residuals --", None, {"--argnums", "--policy", "--compare", "--explore"}),
        ("r = %residuals f(x) --ex", None, {"--explore"}),
        ("%residuals --explore f(x) --ex", None, set()),
        ("%%remat --co\nf(x)", len("%%remat --co"), {"--code", "--compare"}),
        ("%jaxpr --", None, {"--argnums", "--explore", "--stage"}),
        ("%compiled_memory --a", None, {"--against", "--argnums"}),
        ("%timeit --", None, set()),
    ],
)
def test_options_are_completed(shell, text, at, offered):
    with provisionalcompleter():
        found = {c.text for c in shell.Completer.completions(text, len(text) if at is None else at)}
    assert {name for name in found if name.startswith("--")} == offered
    assert found == offered or not offered  # nothing else gets in the way


def test_the_line_of_a_magic_is_the_line_of_what_has_no_other(run, shell, capsys):
    report, _ = run("y = 1\n\n%nan jnp.log(jnp.array([-1.0]))")
    assert (report.born.location.line, report.born.location.function) == (3, "%nan")
    report, _ = run("%%nan\n\nroot = lambda x: jnp.sqrt(x)\n\njnp.log(jnp.array([-1.0]))")
    assert (report.born.location.line, report.born.location.function) == (5, "%%nan")
    report, _ = run("%%nan\n\nroot = lambda x: jnp.sqrt(x)\n\nroot(jnp.array([-1.0]))")
    assert report.born.location.line == 3
    assert linecache.getline(report.born.location.file, 3) == "root = lambda x: jnp.sqrt(x)\n"
    found, _ = run("y = 1\nfound = %residuals (lambda x: jnp.sin(x))(x)\nfound")
    assert found[0].location.line == 2
    _, err = run("y = 1\n%residuals (lambda x: x @ jnp.ones((4, 4)))(x)")
    assert "at In[1]:2: (lambda x: x @ jnp.ones((4, 4)))(x)\n" in err
    found, _ = run("y = 1\n%residuals jnp.tanh(x) -a 0")
    assert "jnp.tanh(x)" in found.groups[0].label
    found, _ = run("%%residuals --argnums 0\nroot = lambda x: jnp.tanh(x)\nroot(x)")
    assert "jnp.tanh(x)" in found.groups[0].label


def test_stages_are_explored_side_by_side(monkeypatch, run):
    shown = []
    monkeypatch.setattr("jaxviz.notebook.magics.display", shown.append)
    for magic in ("jaxpr", "linearize", "vjp"):
        run(f"%{magic} f(x) --explore")
    assert [(e.stage, e.beside) for e in shown] == [("primal", ""), ("forward", "linear"), ("forward", "backward")]


def test_help(run, capsys, shell):
    shell.run_cell("%jaxpr?")
    assert "Show the jaxpr of a call" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%jaxpr f(1.0", "%jaxpr: not valid Python: '(' was never closed"),
        ("%jaxpr", "%jaxpr: expected a call, such as f(x); got nothing"),
        ("%jaxpr 3 + 4", "%jaxpr: expected a call, such as f(x); got: 3 + 4"),
        ("%jaxpr g(1.0)", "NameError while reading g(1.0): name 'g' is not defined"),
        (
            "%jaxpr f('a')",
            "TypeError while tracing f('a'): Argument 'a' of type <class 'str'> is not a valid JAX type.",
        ),
        ("%jaxpr broken(1.0)", "ValueError while tracing broken(1.0): no such layer"),
        ("%jaxpr mismatched(x)", "TypeError while tracing mismatched(x): dot_general requires contracting dimensions"),
        ("%residuals mismatched(x)", "The function is mismatched at In["),
        (
            "%vjp loops(2.0)",
            "ReverseModeError while transposing loops(2.0): Reverse-mode differentiation does not work for lax.while_loop",
        ),
        ("%residuals --argnums one f(x)", "%residuals: --argnums takes numbers such as 0 or 0,1, or all; got: one"),
        ("%residuals --policy dots_savable f(x)", "did you mean 'dots_saveable' or"),
        ("%residuals --policy save_only_these_names f(x)", "returns a policy and is not one itself"),
        ("%residuals --policy nosuch(1) f(x)", "nosuch(1) is not a policy: NameError: name 'nosuch' is not defined"),
        ("%residuals --policy (1 f(x)", "%residuals: expected a call, such as f(x); got nothing"),
        ("%residuals --policy x f(x)", "a policy must be a name in jax.checkpoint_policies or a function; got Array("),
        (
            "%memory --policy dots_saveable --compare a,b f(x)",
            "--policy and --compare exclude each other; give only one of them",
        ),
        (
            "%memory --compare dots_saveable,nothing_saveable -e f(x)",
            "--explore and --compare exclude each other",
        ),
        ("%memory --compiled --explore f(x)", "--explore and --compiled exclude each other"),
        ("%residuals --compare , f(x)", "--compare takes policies, separated by commas; got none"),
        ("%remat --budget 1.0 --policy dots_saveable f(x)", "--budget and --policy exclude each other"),
        ("%remat --code --compare dots_saveable f(x)", "--code and --compare exclude each other"),
        ("%remat --budget 12XB f(x)", "a share such as 0.5 or '50%'; got '12XB'"),
        ("%residuals --argnums 7 f(x)", "TypeError while deriving f(x): differentiating with respect to argnums=7"),
    ],
)
def test_a_mistake_is_answered_in_a_few_lines(run, cell, message):
    result, err = run(cell)
    assert result is None
    assert message in err
    assert len(err.strip().splitlines()) <= 5
    assert "site-packages" not in err


def test_the_users_own_line_is_shown(run):
    _, err = run("%jaxpr broken(1.0)")
    assert 'raise ValueError("no such layer")' in err


def test_the_whole_traceback_is_kept_for_tb(run, shell, capsys):
    run("%jaxpr broken(1.0)")
    shell.run_line_magic("tb", "")
    assert "no such layer" in capsys.readouterr().out


@pytest.fixture
def watched(nothing_from_disk):
    yield jaxviz.watch_compilations()
    jaxviz.watch_compilations(False)


def test_recompile_tells_of_a_function_and_of_a_cell(run, watched):
    run("g = jax.jit(lambda x: x * 2.5)\ng(jnp.ones(3))\ng(jnp.ones(4))")
    shown, _ = run("%recompile g")
    assert "x: f32[3] → f32[4]" in str(shown)
    shown, _ = run("%%recompile\ng(jnp.ones(5))")
    assert [f.count for f in shown] == [1]
    assert shown[0].compiled[0].number == 3
    shown, _ = run("%recompile")
    assert shown.count >= 3
    _, err = run("%recompile no_such_function")
    assert "no_such_function" in err


@pytest.mark.values
def test_profile_runs_a_call(run, nothing_from_disk):
    shown, err = run("%profile --repeat 3 jax.jit(f)(x)")
    assert err == ""
    assert shown.repeats == 3
    assert shown["compilation"] > 0
    _, err = run("%profile broken(x)")
    assert "no such layer" in err


@pytest.mark.values
def test_step_gives_the_stepper_and_runs_to_where_it_is_told(run):
    stepper, err = run("%step --primitive mul f(1.0)")
    assert err == ""
    assert stepper.following.primitive.name == "mul"
    assert stepper.stages == ("forward", "backward")
    stepper, _ = run("%%step -a 1\ny = x * 2\nmodel.loss(y) * 1.0 if False else f(y[0], y[1])")
    assert stepper is None
    stepper, _ = run("%%step -a 1\ny = x * 2\nf(y[0], y[1])")
    assert stepper.run().gradient[0] == 1.0
    assert run("s = %step f(1.0)\ns.is_done")[0] is False


def test_step_says_why_it_cannot(run):
    shown, err = run("%step --primitive conv f(1.0)")
    assert shown is None
    assert "there is no `conv`, only" in err
    assert "Usage: %step f(x)" in run("%step f")[1]
    assert "no such layer" in run("%step broken(x)")[1]
