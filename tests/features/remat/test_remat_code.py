"""Plans as code: applied to the source, JAX does what the plan says."""

import importlib.util
import itertools
import linecache
import re
import sys
import types
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from applied import agree, patch
from code_programs import (
    BLOCK,
    CHECKPOINTED,
    CODE,
    HEAD,
    IN_LIBRARIES,
    LOOP,
    PLAIN,
    SMALL,
    SMALL_ARGS,
    W,
    X,
    arguments,
    bounded,
    opened,
)  # fmt: skip
from short_runs import short
from test_remat_plan import held_by_jax

import jaxviz
from jaxviz.derivation import derive
from jaxviz.features.remat import diff
from jaxviz.features.remat.diff import Writer
from jaxviz.features.remat.edits import around, edited
from jaxviz.features.remat.planning import best_of_all
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.source import Extent
from jaxviz.features.remat.ways import ways_of
from jaxviz.features.remat.written import Written, named_at

pytestmark = pytest.mark.slow

SHORT = lambda programs: short(list(programs), [name for name, program in programs.items() if program.is_short])
NEEDED = {"flax", "equinox", "haiku", "penzai"}


def planned(program, module):
    for library in NEEDED.intersection(
        re.findall(r"^ *(?:import|from) (\w+)", program.text + program.library, re.MULTILINE)
    ):
        pytest.importorskip(library)  # the newest JAX is tested without libraries
    own = module(program.text if program.text.startswith(("import", '"""')) else HEAD + program.text, program.library)
    return own, program.plan(own.loss, *program.args(own))


@pytest.mark.parametrize("name", [*SHORT(CODE), *SHORT(IN_LIBRARIES)])
def test_the_code_keeps_what_it_says(name, module, holds):
    program = (CODE | IN_LIBRARIES)[name]
    own, plan = planned(program, module)
    args = program.args(own)
    assert plan.regions
    assert plan.peak_nbytes <= plan.before.peak_nbytes
    if name in CODE:
        assert held_by_jax(plan.apply(own.loss), *args) == plan.nbytes + plan.offloaded
    code = holds(plan, own, program.args, program.offload).replace("\n+", "\n")
    code = code.replace(own.library.__name__, "library") if program.library else code
    policy = ", policy=SAVED" if "SAVED = " in code else ""
    assert all((line.format(policy) if "{}" in line else line) in code for line in program.lines), code
    assert plan.written.trade.peak_nbytes <= plan.before.peak_nbytes
    for elsewhere in ("site-packages", "Remove the checkpoint", "by hand"):
        assert elsewhere not in code
    if name.startswith("expressions"):  # in a branch, and in what is differentiated, a name would mean something else
        assert not re.search(r"checkpoint_name\((helper\(z|jnp.sin\(helper|jnp.tanh\(v|jnp.sin\(y\) @ w)", code)
    if "policy=SAVED if" in code:
        assert plan.written.trade.peak_nbytes <= plan.peak_nbytes * 1.02


@pytest.mark.parametrize("name", short(list(CHECKPOINTED), ["call", "assigned", "lambda", "decorator"]))
def test_checkpoints_that_a_plan_does_without_are_removed(name, module, holds):
    own = module(HEAD + CHECKPOINTED[name][0])
    plan = opened(own.loss, *arguments())
    code = holds(plan, own, lambda m: arguments())
    assert not any("checkpoint" in line for line in code.splitlines() if line.startswith("+") and "+++" not in line)
    there = {e.primitive.name for _, e in jaxviz.trace(plan.apply(own.loss))(*arguments()).walk()}
    assert there.isdisjoint(("checkpoint", "remat2"))


def test_a_checkpoint_that_is_not_found_is_to_be_removed_by_hand(module):
    around = "\naround = lambda f: jax.checkpoint(f)\n"
    # The gradient of all layers determines the peak, whatever the used layer saves.
    one = "def loss(params, x):\n    return jnp.sum(around(block)(jax.tree.map(lambda w: w[0], params), x))\n"
    code = jaxviz.plan_remat(module(f"{HEAD}{BLOCK}{around}\n{one}").loss, *arguments(layers=6)).code()
    assert re.search(
        r"# Remove the checkpoint of block, model_\d+\.py:\d+: without it the peak is no higher\.\n# The "
        r"figures are computed, not measured on the code,",
        code,
    )
    assert "as it is written" not in code
    loop = LOOP.replace("block(", "around(block)(").replace("range(3)", "range(6)")
    code = jaxviz.plan_remat(module(HEAD + BLOCK + around + loop).loss, *arguments(layers=6)).code()
    assert "The changes that could be written in your source would raise the peak." in code
    assert "---" not in code


# --- in a branch ------------------------------------------------------------------------------------------------------

compiled = lambda f, *args: jax.jit(jax.grad(f)).lower(*args).compile()


@pytest.mark.parametrize("name", short(["unrolled", "methods"], []))
def test_a_checkpoint_in_a_branch_is_not_undone(module, name):
    """With the diff applied, JAX saves what the plan does, and the three numbers that tell which branch is taken."""
    own = module(PLAIN[name])
    args = arguments(rows=256)
    plan = jaxviz.plan_remat(own.loss, *args, work="100%")
    want, said = jax.grad(own.loss)(*args), plan.written.trade
    patch(plan.code(in_branches=True))
    pasted = module(Path(own.__file__).read_text()).loss
    written = compiled(own.loss, *args).memory_analysis().temp_size_in_bytes
    for f, nbytes in ((plan.apply(own.loss, in_branches=True), plan.nbytes), (pasted, said.nbytes)):
        if jax.__version_info__ < (0, 12):  # it saves the operands of a branch twice, and keeps the checkpoint
            assert held_by_jax(f, *args) == nbytes + 3 * 4
        gradient = compiled(f, *args)
        assert gradient.memory_analysis().temp_size_in_bytes < 0.7 * written  # 97 % or more without the checkpoint
        agree(gradient(*args), want)


BRANCHED = {
    "a call": ("", "jax.checkpoint(block)", "+        x = in_a_branch(jax.checkpoint(block"),
    "a decorator": ("@jax.checkpoint\n", "block", "+@in_a_branch\n @jax.checkpoint\n def block("),
}


@pytest.mark.parametrize("place", short(list(BRANCHED), ["a decorator"]))
def test_a_checkpoint_that_is_there_gets_into_a_branch_if_that_holds(module, place):
    decorator, called, written = BRANCHED[place]
    block = f"\n{decorator}def block(w, x):\n    return x + jnp.tanh(jnp.sin(x @ w) @ w)\n"
    own = module(
        f"{HEAD}{block}\ndef loss(ws, x):\n    for w in ws:\n        x = {called}(w, x)\n    return jnp.sum(x)\n"
    )
    args = [jnp.ones((16, 16))] * 4, jnp.ones((512, 16))
    plan = jaxviz.plan_remat(own.loss, *args, memory="1TiB")
    trial = next(t for t in plan._search.under_policies if t.form.regions == tuple(plan._search.context.written))
    plan = replace(plan, trial=trial, after=trial.trade)
    assert "in_a_branch" not in plan.code()
    found = plan.verify()
    if found.holds_in_branches:  # with JAX 0.10, but not with 0.12
        assert plan.summary.split(": ")[0].endswith(
            "with each checkpoint in a branch, since XLA on cpu undoes it elsewhere"
        )
        code = plan.code()
        assert written in code
        patch(code)
        memory = compiled(module(Path(own.__file__).read_text()).loss, *args).memory_analysis()
        assert memory.temp_size_in_bytes < 0.8 * found.before.temporaries


# --- where and how it is written --------------------------------------------------------------------------------------


@pytest.mark.slow(sweep=True)
def test_names_are_words(module):
    names = re.findall(
        r'checkpoint_name\(.*, "(\w+)"\)',
        jaxviz.plan_remat(module(PLAIN["scanned"]).loss, *arguments(), work="5%").code(),
    )
    assert "attention_probs" in names or "block_h" in names or "block_x" in names
    assert not any(n.startswith("jaxviz") for n in names)


def test_a_file_that_has_changed_is_not_edited(module):
    own = module(PLAIN["scanned"])
    plan = jaxviz.plan_remat(own.loss, *arguments(), work="5%")
    with open(own.__file__, "a") as f:
        f.write("# one more line\n")
    assert re.fullmatch(
        r"# .*model_\d+\.py has changed since it was imported: import it again, and plan again\.", plan.code()
    )


def test_what_stands_in_a_library_is_said(module):
    own = module(PLAIN["scanned"])
    jaxviz.own_code(exclude=[own.__file__])
    assert "No checkpoint can be written around " in jaxviz.plan_remat(own.loss, *arguments(), work="5%").code()


def text_of(plan):
    """The text of the one file that a plan changes."""
    (text,) = plan.written.files.values()
    return text


def test_arguments_that_are_part_of_the_function_are_static(module):
    own = module(
        HEAD + SMALL.replace("(w, x):", "(w, x, mode, act):").replace("jnp.sin(z", 'act(z if mode == "deep" else 0 * z')
    )
    args = (*SMALL_ARGS, "deep", jnp.sin)
    plan = jaxviz.plan_remat(own.loss, *args, budget=0.6)
    assert "+@partial(jax.checkpoint, static_argnums=(2, 3), policy=SAVED)\n" in plan.code()
    g = module(text_of(plan)).loss
    assert held_by_jax(lambda w, x: g(w, x, *args[2:]), *SMALL_ARGS) == plan.written.trade.nbytes


def test_names_that_are_there_are_left_alone(module, holds):
    imported = HEAD + "from jax.ad_checkpoint import checkpoint_name\n"
    own = module(imported + SMALL.replace("y = x @ w", 'y = checkpoint_name(x @ w, "saved_0")'))
    code = holds(jaxviz.plan_remat(own.loss, *SMALL_ARGS, budget=0.6), own, lambda m: SMALL_ARGS)
    assert '"saved_0"' not in "".join(line for line in code.splitlines() if line.startswith("+SAVED"))


def test_only_functions_that_run_are_edited(module):
    own = module(
        HEAD
        + """
def act(x, w):
    return jnp.tanh(x @ w) * jnp.sin(x)

def loss(w, x):
    return jnp.sum(act(act(x, w), w))

def another(ws, x):
    return lax.map(partial(act, x), ws)
"""
    )
    search = Search(derive(own.loss, *SMALL_ARGS), False)
    (region,) = (r for r in search.regions if r.code is own.act.__code__)
    edited_lines = {e.start[0] for ways in ways_of(region, []) for way in ways for e in way.edits("")}
    assert edited_lines
    assert edited_lines.isdisjoint(range(own.another.__code__.co_firstlineno, 100))


def test_what_a_lambda_calls_gets_the_checkpoint(module):
    """If its only argument is the lambda's."""
    own = module(HEAD + SMALL.replace("(w, x):", "(x, mode, w):"))
    plan = jaxviz.plan_remat(lambda w, x, mode: own.loss(x, mode, w), *SMALL_ARGS, "deep", budget=0.6)
    assert "+@partial(jax.checkpoint, static_argnums=(1,), policy=SAVED)\n def loss(x, mode, w):" in plan.code()
    written = module(text_of(plan))
    assert held_by_jax(lambda w, x: written.loss(x, "deep", w), *SMALL_ARGS) == plan.written.trade.nbytes


def test_a_function_that_is_no_definitions_is_wrapped_by_hand(module):
    """A diff still names what it saves."""
    own = module(HEAD + SMALL)
    plan = jaxviz.plan_remat(lambda w, x: own.loss(w, x=x), *SMALL_ARGS, budget=0.6)
    policy = eval(
        re.search(r"^# Differentiate jax.checkpoint\(f, policy=(.*)\) instead of f:", plan.code(), re.MULTILINE)[1]
    )
    written = module(text_of(plan))
    f = jax.checkpoint(lambda w, x: written.loss(w, x=x), policy=policy)
    assert held_by_jax(f, *SMALL_ARGS) == plan.written.trade.nbytes
    keyword = module(HEAD + SMALL.replace("(w, x):", '(w, x, mode="deep"):'))
    code = jaxviz.plan_remat(keyword.loss, *SMALL_ARGS, mode="deep", budget=0.6).code()
    assert "# Differentiate jax.checkpoint(partial(loss, mode='deep')" in code
    assert "+@" not in code


def test_without_its_source_there_is_no_diff():
    space = {}
    exec(compile(HEAD + SMALL, "<nowhere>", "exec"), space)
    code = jaxviz.plan_remat(space["loss"], *SMALL_ARGS, budget=0.6).code()
    assert re.search(r"^# loss: peak .*recomputes", code)
    assert (
        "# Differentiate jax.checkpoint(loss) instead of loss: no line of your source can have the checkpoint." in code
    )
    assert "---" not in code


def test_a_cell_of_a_notebook_is_called_a_cell(monkeypatch):
    """With names that are defined in the cells before it."""
    # If other tests have run cells, the module has their notebooks' names.
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    space, file = {}, "/tmp/ipykernel_7/1259.py"
    for name, text in (("/tmp/ipykernel_7/1258.py", HEAD), (file, SMALL.lstrip())):
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), space)
    plan = jaxviz.plan_remat(space["loss"], *SMALL_ARGS, budget=0.6)
    code = plan.code()
    assert "--- a/cell\n+++ b/cell\n" in code
    assert "import jax\n" not in code
    assert "+from jax.ad_checkpoint import checkpoint_name\n" in code
    assert "ipykernel" not in code
    exec(compile(plan.written.files[file], file, "exec"), space)
    assert held_by_jax(space["loss"], *SMALL_ARGS) == plan.written.trade.nbytes


# --- bytes of files ---------------------------------------------------------------------------------------------------

TEXT = (
    "import jax.numpy as jnp\n\n\ndef loss(w, x):\n    for _ in range(2):\n        x = jnp.tanh(x @ w)\n"
    "    return jnp.sum(x**2)\n"
)
ACCENTED = f"# Modèle d'été\n\n{TEXT}\n\n# Fin d'été\n"
FORM_FEED = TEXT.replace("def loss", "\f\ndef loss").replace("    return", "    # \x1c\x85\n    return")
ODD_FILES = {
    "crlf": ("model.py", TEXT.replace("\n", "\r\n"), "utf-8"),
    "cr": ("model.py", TEXT.replace("\n", "\r"), "utf-8"),
    "mixed line ends": ("model.py", TEXT.replace("\n", "\r\n", 4), "utf-8"),
    "byte order mark": ("model.py", TEXT, "utf-8-sig"),
    "byte order mark and crlf": ("model.py", TEXT.replace("\n", "\r\n"), "utf-8-sig"),
    "no line end": ("model.py", TEXT.rstrip(), "utf-8"),
    "no line end, crlf": ("model.py", TEXT.rstrip().replace("\n", "\r\n"), "utf-8"),
    "form feed": ("model.py", FORM_FEED, "utf-8"),
    "utf-8": ("modèle.py", ACCENTED, "utf-8"),
    "latin-1": ("model.py", f"# -*- coding: latin-1 -*-\n{ACCENTED}", "latin-1"),
    # Such a diff cannot be in ASCII.
    "latin-1 beside an edit": (
        "model.py",
        "# -*- coding: latin-1 -*-\n" + TEXT.replace("@ w)", "@ w)  # été"),
        "iso-8859-1",
    ),
    "space": ("my model.py", TEXT, "utf-8"),
    "tab": ("my\tmodel.py", TEXT, "utf-8"),
    "line break": ("my\n+model.py", TEXT, "utf-8"),
    "quote": ('my"model\\.py', TEXT, "utf-8"),
}


@pytest.mark.parametrize("case", ODD_FILES)
def test_git_applies_the_diff_of_an_odd_file(case, folder):
    name, text, encoding = ODD_FILES[case]
    path = folder / name
    path.write_bytes(text.encode(encoding))
    w, x = jnp.ones((8, 8)), jnp.ones((64, 8))

    def imported():
        spec = importlib.util.spec_from_file_location("odd", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.loss

    before = held_by_jax(imported(), w, x)
    code = jaxviz.plan_remat(imported(), w, x, residuals="70%").code()
    assert all(line[:1] in ("#", "-", "+", " ", "@", "\\") for line in code.removesuffix("\n").split("\n"))
    how = re.search(r"encoding='(.*)', errors='replace', newline=''", code)
    assert (how is not None) == (case == "latin-1 beside an edit")
    patch(code, how[1] if how else "utf-8")
    now = path.read_bytes().decode(encoding)
    assert now != text
    ends = lambda text: {end[0] for end in re.finditer(r"\r\n?|\n", text)}
    assert ends(now) == ends(text)
    assert "checkpoint" in now
    assert ("été" in now) == ("été" in text)
    linecache.clearcache()
    assert held_by_jax(imported(), w, x) < before


# --- edits ------------------------------------------------------------------------------------------------------------

LINE = "y = f(x @ w) * g(z)\n"
PAIRS = {  # the columns of each, and the text around
    "one pair twice is one": ([(4, 5, "jax.checkpoint(", ")")] * 2, "y = jax.checkpoint(f)(x @ w) * g(z)"),
    "two that open alike are two": (
        [(4, 5, "select(", ").at(A)"), (4, 5, "select(", ").at(B)")], "y = select(select(f).at(A)).at(B)(x @ w) * g(z)",
    ),
    "the first is inside": (
        [(4, 12, "named(", ', "a")'), (4, 12, "jax.checkpoint(", ", policy=P)")],
        'y = jax.checkpoint(named(f(x @ w), "a"), policy=P) * g(z)',
    ),
}  # fmt: skip
NAMED = [(4, 19, "whole"), (4, 12, "left"), (15, 19, "right")]
NESTED = 'y = checkpoint_name(checkpoint_name(f(x @ w), "left") * checkpoint_name(g(z), "right"), "whole")'
PAIRS |= {
    f"names that end together, {k}": ([(a, b, "checkpoint_name(", f', "{name}")') for a, b, name in order], NESTED)
    for k, order in enumerate(itertools.permutations(NAMED))
}


@pytest.mark.parametrize("case", PAIRS)
def test_pairs_of_brackets_are_nested(case, folder):
    pairs, line = PAIRS[case]
    file = str(folder / "edits.py")
    Path(file).write_text(f"import jax\n{LINE}")
    linecache.checkcache(file)
    edits = [e for a, b, before, after in pairs for e in around(file, (2, a), (2, b), before, after)]
    (text,) = edited(edits, {}, [], [("select", "from lib import select")] * 2).values()
    compile(text, file, "exec")
    assert text.splitlines()[-1] == line
    assert text.count("from lib import select\n") == ("select" in line)


@pytest.mark.parametrize(
    ("line", "expression", "made"),
    [
        ("y = (x @ w).T", "x @ w", 'y = checkpoint_name(x @ w, "a").T'),
        ("y = -(é @ w)", "é @ w", 'y = -checkpoint_name(é @ w, "a")'),
        ("y = f(x @ w)", "x @ w", 'y = f(checkpoint_name(x @ w, "a"))'),
        ("y = f (x @ w)", "x @ w", 'y = f (checkpoint_name(x @ w, "a"))'),
        ("y = x if (x @ w) else w", "x @ w", 'y = x if checkpoint_name(x @ w, "a") else w'),
        ("y = (x @ w, 1)", "x @ w", 'y = (checkpoint_name(x @ w, "a"), 1)'),
    ],
)
def test_brackets_around_an_expression_become_those_of_its_name(tmp_path, line, expression, made):
    path = tmp_path / "brackets.py"
    path.write_text(f"{line}\n", encoding="utf-8")
    start = len(line[: line.index(expression)].encode())
    extent = Extent(str(path), 1, start, 1, start + len(expression.encode()))
    (text,) = edited(named_at(extent, "a"), {}, [(str(path), None)]).values()
    assert text == f"from jax.ad_checkpoint import checkpoint_name\n{made}\n"


# --- what is tried, and measured --------------------------------------------------------------------------------------


def test_a_function_that_no_way_is_left_for_is_said_not_to_be_written():
    search = Search(derive(lambda x: jnp.sum(jnp.sin(x)), jnp.ones(3)), False)
    said = Writer(search).why_not(search.root)
    assert said == "No checkpoint can be written around <lambda> in your source."


def test_of_the_code_that_was_tried_the_lowest_is_taken(monkeypatch):
    """Also if the checkpoints that can be written one by one as planned come to less."""
    search = Search(derive(lambda x: jnp.sum(jnp.sin(jnp.sin(x))), jnp.ones(3)), False)
    trial = best_of_all(search)
    at = lambda share: replace(search.written, peak_nbytes=int(share * search.written.peak_nbytes))
    written = lambda share, **more: Written((str(share),), at(share), ("---",), {"m.py": ""}, **more)
    tried = [written(0.2, is_as_planned=False), written(0.9)]
    monkeypatch.setattr(Writer, "closest", lambda *_: (tried.pop(0), trial))
    monkeypatch.setattr(Writer, "go_on", lambda *_: True)
    wanted = replace(trial, trade=replace(trial.trade, peak_nbytes=1))
    found = diff.write_plan(search, wanted)
    assert found.text.splitlines()[::2] == ["# 0.2", "---"]
    assert "plan.apply checkpoints something else" in found.text


def test_a_failure_is_not_told_of_changes_that_are_not_shown(module, monkeypatch):
    monkeypatch.setattr(diff, "DERIVED", 0)
    monkeypatch.setattr(diff, "ALTERNATIVES", 1)
    _, plan = planned(IN_LIBRARIES["arguments that are no arrays, for equinox"], module)
    assert not plan.written.files
    assert "the function fails" not in plan.written.text
    assert "No edit that was tried puts them there." in plan.written.text
    assert "More edits could be tried" in plan.written.text


MADE = IN_LIBRARIES["function in a function"].text
TRACED_AGAIN = {
    "the loss of a training step": (f"{MADE}\n@jax.jit\ndef step(w, x):\n    return w - jax.grad(loss)(w, x)\n", "step",
                                    "35%", "@"),
    "a jitted function": (
        "\n@jax.jit\ndef block(w, x):\n    h = jnp.tanh(x @ w)\n    return x + jnp.sin(h * h) * jnp.cos(h)\n"
        "\ndef loss(w, x):\n    for _ in range(6):\n        x = block(w, x)\n    return jnp.mean(x ** 2)\n", "loss",
        "10%", "checkpoint_name(",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TRACED_AGAIN)
def test_what_jax_has_traced_is_traced_again(module, case):
    source, name, work, line = TRACED_AGAIN[case]
    own = module(HEAD + source)
    jax.jit(jax.grad(own.loss))(W, X)
    plan = jaxviz.plan_remat(getattr(own, name), W, X, work=work)
    assert "by hand" not in plan.written.text
    assert line in text_of(plan)
    f = getattr(module(text_of(plan)), name)
    assert jaxviz.memory(f, W, X).peak_nbytes == plan.written.trade.peak_nbytes
    assert jaxviz.residuals(f, W, X).saved.nbytes == plan.written.trade.saved_nbytes


def test_measuring_leaves_everything_as_it_was(module):
    own, plan = planned(replace(IN_LIBRARIES["function of a library"], plan=bounded()), module)
    block, code, names = own.library.block, own.loss.__code__, set(vars(own))
    runs = []
    counted = jax.jit(lambda *args: runs.append(1) or own.loss(*args))
    counted(W, X)
    saved = jaxviz.residuals(own.loss, W, X).nbytes
    assert plan.written.trade.nbytes < saved
    assert (own.library.block, own.loss.__code__, set(vars(own))) == (block, code, names)
    counted(W, X)
    assert len(runs) == 1
    assert jaxviz.residuals(own.loss, W, X).nbytes == saved
