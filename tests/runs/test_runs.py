"""`jaxviz run`: a script runs as without it, and what it leaves behind says what the script did."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from short_runs import short

import jaxviz
from jaxviz.runs.programs import read_explorer
from jaxviz.runs.watch import _cpu_seconds

TRAINER = r"""
import jax, jax.numpy as jnp, os

n_traces = 0

def layer(x, w):
    return jnp.tanh(x @ w), None

def loss(params, batch):
    x, _ = jax.lax.scan(layer, batch, params["w"])
    return jnp.mean(x**2)

def train_step(params, batch):
    global n_traces
    n_traces += 1
    print("tracing", end=" ")
    os.write(2, b"tracing\n")
    value, gradient = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

step = jax.jit(train_step)
params = {"w": jnp.ones((3, 8, 8)) / 8, "unused": jnp.ones(5)}
for n in (4, 4, 2):
  with jax.profiler.StepTraceAnnotation("train", step_num=n):
    params, value = step(params, jnp.ones((n, 8)))
    print(float(value).hex())
print(n_traces, __name__, __file__, jax.grad(loss)(params, jnp.ones((1, 8)))["w"].sum())
"""


def run(folder, source, *words, command=("-m", "jaxviz", "run"), script=(), status=0, **env):
    """What a script prints, in a process of its own; its file is `train.py` in the folder. It is buffered, whatever is
    set here."""
    (folder / "train.py").write_text(source)
    others = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, *command, *words, "train.py", *script], cwd=folder, capture_output=True, text=True,
        env={**others, **env},
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done


def recorded(folder, source, *words, **kwargs):
    """A run and its report. By default it may analyse for 30 s, which a machine with other work takes."""
    if "--budget" not in words and "command" not in kwargs:
        words = ("--budget", "300s", *words)
    done = run(folder, source, *words, **kwargs)
    return done, jaxviz.show(folder / "jaxviz-run")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return folder, *recorded(folder, TRAINER)


@pytest.mark.slow
def test_a_script_prints_what_it_prints_without_it(trained):
    folder, done, _ = trained
    plain = run(folder, TRAINER, command=())
    assert done.stdout == plain.stdout
    assert done.stderr == f"{plain.stderr}jaxviz: wrote jaxviz-run/index.html\n"


@pytest.mark.slow
def test_the_step_and_its_gradient_are_named(trained):
    _, _, found = trained
    step, alone = found.functions
    assert (step.name, step.gradient, step.count) == ("train_step", "gradient of `loss` in `params`", 2)
    assert (alone.name, alone.gradient) == ("loss", "gradient of `loss` in `params`")
    assert step.location.line == TRAINER.splitlines().index("def train_step(params, batch):") + 1
    assert found.summary.partition(";")[0].endswith(f"saves {step.nbytes} B") or "KiB" in found.summary


@pytest.mark.slow
def test_its_figures_are_those_of_the_reports(trained):
    folder, _, found = trained
    code = """
import jax, jaxviz, train
x = jax.ShapeDtypeStruct((4, 8), "float32")
timeline = jaxviz.memory(train.step, train.params, x)
print(timeline.peak_nbytes, jaxviz.residuals(train.step, train.params, x).saved.nbytes)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    peak, saved = map(int, done.stdout.split()[-2:])
    assert (found.functions[0].peak, found.functions[0].nbytes) == (peak, saved)


@pytest.mark.slow
def test_marked_steps_are_counted(trained):
    _, _, found = trained
    assert found.first.process.steps.count == 3
    assert found.first.process.steps.median > 0
    assert "; 3 steps of " in found.summary


@pytest.mark.slow
def test_findings_say_what_to_do(trained):
    _, _, found = trained
    texts = [f.text for f in found.findings]
    assert any("`params['unused']` is zero" in t for t in texts), texts
    assert any("`train_step` was compiled twice" in t and "shape" in t for t in texts), texts
    assert any("donates none of its arguments" in t and "`params`" in t for t in texts), texts
    assert [f.share for f in found.findings] == sorted((f.share for f in found.findings), reverse=True)


DONATING = """
import functools, jax, jax.numpy as jnp

def loss(w, batch):
    return jnp.mean((jnp.tanh(batch["x"] @ w) - batch["y"]) ** 2)

@functools.partial(jax.jit, donate_argnums=(0, 1))
def step(w, batch):
    return w - jax.grad(loss)(w, batch)

@functools.partial(jax.jit, donate_argnames="x")
def narrow(x):
    return x.astype(jnp.bfloat16)

step(jnp.ones((8, 8)), {"x": jnp.ones((999, 8)), "y": jnp.ones((999, 8))})
narrow(jnp.ones(1000))
"""


@pytest.mark.slow
def test_donations_without_effect_are_said_once_with_what_xla_decided(tmp_path):
    _, found = recorded(tmp_path, DONATING)
    first, second = sorted((f for f in found.findings if "donat" in f.kind), key=lambda f: f.function)
    why = "no result has its type f32[1000]; result 0, bf16[1000], has the same number of elements, but XLA did not"
    assert first.text == f"`narrow` donates without effect `x`: {why} reuse its memory for it"
    why = "no result has its type f32[999,8] (31.2 KiB)"
    assert second.text == f"`step` donates without effect `batch['x']`, `batch['y']`: {why}"
    assert (second.at_stake, second.location.line) == ("62.4 KiB", DONATING.splitlines().index("def step(w, batch):"))
    assert "`step` donates 3 arrays; results reuse the memory of 1, 256 B." in found.notes
    executed = {c.function: c.memory.reused for c in found.first.compilations if c.memory is not None}
    assert (executed["step"], executed["narrow"]) == (256, 0)


TOO_LARGE = """
import jax, jax.numpy as jnp

def loss(w, x):
    h = jnp.tanh(x @ w)
    large = jnp.broadcast_to(h.sum(), (1 << 20, 1 << 20)) * h[0, 0]
    return jnp.sum(large**3), large

@jax.jit
def small(w):
    return w * 2

@jax.jit
def step(w, x):
    gradient, large = jax.grad(loss, has_aux=True)(w, x)
    return w - gradient, large

w, large = step(small(jnp.ones((8, 8))), jnp.ones((4, 8)))
print(w.sum())
"""


@pytest.mark.slow
@pytest.mark.parametrize("one_line", short([False, True], [False]))
def test_a_run_that_ended_out_of_memory_says_of_what(tmp_path, one_line):
    source = f"import jaxviz.auto\n{TOO_LARGE}" if one_line else TOO_LARGE
    _, found = recorded(tmp_path, source, status=1, **({"command": ()} if one_line else {}))
    error, first = found.out_of_memory, found.findings[0]
    compiled = next(c for c in found.first.compilations if c.function == "step")
    assert (error.function, error.asked) == ("step", 4 << 40)
    assert error.needs == compiled.memory.total > error.asked
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "large = jnp" in text)
    assert (error.rows[0].type, error.rows[0].location.line) == ("f32[1048576,1048576]", line)
    assert error.is_modelled
    assert (first.kind, first.function, first.program) == ("out-of-memory", "step", compiled.program)
    assert "out of memory: `step`" in str(found)
    assert "what the gradient saves:" in (tmp_path / "jaxviz-run" / "index.html").read_text()
    jsonschema.validate(found.to_dict(), jaxviz.schema("show"))


ENDED = r"""
import jax, jax.numpy as jnp

@jax.jit
def first(x): return jax.grad(lambda x: jnp.sum(jnp.sin(x)))(x)

@jax.jit
def second(x): return jnp.cos(x)

second(first(jnp.ones(3)))
text = (
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1717986918 bytes.\nPeak buffers:\n"
    "\tBuffer 1:\n\t\tSize: 1.50GiB\n\t\tOperator: op_name=\"jit(first)/jvp()/sin\" "
    "source_file=\"train.py\" source_line=5\n\t\tShape: f32[3]\n\t\t==========\n"
)
try:
    raise RuntimeError(text)
except RuntimeError as error:
    raise {raised} from {cause}
"""


@pytest.mark.slow
def test_the_program_that_an_error_names_is_the_one(tmp_path):
    _, found = recorded(tmp_path, ENDED.format(raised="ValueError('no step')", cause="error"), status=1)
    assert found.out_of_memory.function == "first"
    assert found.first.programs[found.findings[0].program].function == "first"
    _, other = recorded(tmp_path, ENDED.format(raised="SystemExit(2)", cause="None"), status=2)
    assert other.out_of_memory is None


@pytest.mark.slow(sweep=True)
def test_a_program_that_is_compiled_again_for_a_committed_array_is_analysed_once(tmp_path):
    source = """
import jax, jax.numpy as jnp

@jax.jit
def step(w):
    return w - jax.grad(lambda w: jnp.sum(jnp.sin(w)))(w)

for n in (3, 4):
    step(jnp.ones(n))
    step(jax.device_put(jnp.ones(n), jax.devices()[0]))
"""
    _, found = recorded(tmp_path, source, XLA_FLAGS="")
    compiled = [c for c in found.first.compilations if c.function == "step"]
    assert [[x.kind for x in c.changes] for c in compiled] == [[], ["place"], ["shape"], ["place"]]
    assert [c.program for c in compiled] == [1, 1, 2, 2]
    assert found.functions[0].count == 4


@pytest.mark.slow(sweep=True)
def test_methods_and_objects_are_functions_too(tmp_path):
    source = """
import functools, jax, jax.numpy as jnp

class Model:
    def __init__(self, scale):
        self.scale = scale

    def step(self, w):
        return w - jax.grad(lambda w: jnp.sum(jnp.sin(self.scale * w)))(w)

    def __call__(self, w):
        return jnp.cos(w)

for n in range(8):
    model = Model(float(n))
    jax.jit(model.step)(jax.jit(model)(jnp.ones(3)))
"""
    _, found = recorded(tmp_path, source)
    assert {f.name: f.count for f in found.functions} == {"Model.step": 8, "__call__": 8}
    assert found.largest.name == "Model.step"


def explorers_of(folder):
    """The payloads and the state of the explorers of a run's page."""
    paths = sorted((folder / "jaxviz-run" / "0" / "programs").glob("*.explorer"))
    return {path.name: read_explorer(path)[1] for path in paths}


@pytest.mark.slow
def test_source_files_are_in_the_page_only_if_asked_for(trained, tmp_path):
    folder, *_ = trained
    assert b"def layer" not in b"".join(w.payload for w in explorers_of(folder).values())
    assert not any(line.text for p in trained[2].first.programs.values() for line in p.facts.work)
    recorded(tmp_path, TRAINER, "--source")
    assert b"def layer" in b"".join(w.payload for w in explorers_of(tmp_path).values())


@pytest.mark.slow
def test_the_page_and_the_data(trained):
    folder, _, found = trained
    page = (folder / "jaxviz-run" / "index.html").read_text()
    assert "train_step" in page
    assert "n_traces" not in page
    jsonschema.validate(found.to_dict(), jaxviz.schema("show"))
    command = [sys.executable, "-m", "jaxviz", "show", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    brief = subprocess.run([*command[:-1], "--agent"], cwd=folder, capture_output=True, text=True, check=True)
    assert brief.stdout.split() == str(found).split()
    assert json.loads(done.stdout)["functions"] == json.loads(json.dumps(found.to_dict()["functions"]))


SMALL = "import jax, jax.numpy as jnp\n\n@jax.jit\ndef f(x): return jnp.sin(x)\n\nf(jnp.ones(3))\n"
STATIC = """
import dataclasses, functools, jax, jax.numpy as jnp, sys

secret = {value!r}

@functools.partial(jax.jit, static_argnames="mode")
def f(x, mode):
    return x * len(mode) + len(secret)

for mode in ("swordfish", "opensesame"):
    f(jnp.ones(3), mode=mode)

@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    w: jax.Array
    name: str = dataclasses.field(metadata={{"static": True}})

for name in ("rosebud", "setecastronomy"):
    f(Model(jnp.ones(3), name).w, mode="swordfish")
    jax.jit(lambda model: model.w)(Model(jnp.ones(3), name))
"""


@pytest.mark.slow
def test_no_values_are_written(tmp_path):
    _, found = recorded(tmp_path, STATIC.format(value="xyzzy"), script=("--token", "hunter2"), PASSWORD="letmein")
    assert {f.name: f.count for f in found.functions} == {"f": 2, "<lambda>": 2}
    assert any("static mode: one value → another" in f"{r}" for f in found.first.functions for r in texts_of(f))
    assert any(
        "static field model.name: one value → another" in f"{r}" for f in found.first.functions for r in texts_of(f)
    )
    written = "".join(p.read_text() for p in (tmp_path / "jaxviz-run").rglob("*") if p.is_file())
    assert not [
        word
        for word in ("swordfish", "opensesame", "rosebud", "setec", "xyzzy", "hunter2", "letmein")
        if word in written
    ]


def texts_of(function):
    return [r.text for r in function.compiled]


@pytest.mark.slow
def test_an_error_and_its_traceback_are_python_s(tmp_path):
    source = "import jax, jax.numpy as jnp\n\n@jax.jit\ndef f(x):\n    return x @ x\n\nf(jnp.ones((2, 3)))\n"
    plain = run(tmp_path, source, command=(), status=1)
    done = run(tmp_path, source, status=1)
    assert done.stderr == f"{plain.stderr}jaxviz: wrote jaxviz-run/index.html\n"


@pytest.mark.slow(sweep=True)
def test_an_exit_status_and_settings_before_jax_count(tmp_path):
    source = """
import os, sys
assert "jax" not in sys.modules
os.environ["JAX_ENABLE_X64"] = "1"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
import jax, jax.numpy as jnp
print(jax.jit(jnp.sin)(jnp.ones(2)).dtype, len(jax.devices()), sys.argv[1:])
sys.exit(3)
"""
    done, found = recorded(tmp_path, source, script=("--out", "elsewhere"), status=3)
    assert done.stdout.split(maxsplit=2) == ["float64", "3", "['--out', 'elsewhere']\n"]
    assert found.first.process.n_devices == 3


@pytest.mark.slow
def test_a_function_that_computes_while_it_is_traced_is_analysed_at_the_end(tmp_path):
    source = """
import jax, jax.numpy as jnp

def loss(x):
    print("of its loss")
    with jax.ensure_compile_time_eval():
        scale = float(jnp.cos(jnp.ones(7) * 3).sum())
    return jnp.sum(x * scale) ** 2

@jax.jit
def step(x):
    print("tracing", end=" ")
    return x - jax.grad(loss)(x)

step(jnp.ones(3))
"""
    done, found = recorded(tmp_path, source)
    assert done.stdout == "tracing of its loss\n"
    assert found.functions[0].gradient == "gradient of `loss` in `x`"


@pytest.mark.slow
def test_loops_outside_of_jit(tmp_path):
    source = """
import jax, jax.numpy as jnp

def body(x, _):
    return x - jax.grad(lambda x: jnp.sum(jnp.sin(x)))(x), None

jax.lax.scan(body, jnp.ones(3), length=4)
jax.lax.fori_loop(0, 3, lambda i, x: body(x, i)[0], jnp.ones(4))
jax.lax.while_loop(lambda x: x[0] < 0, lambda x: body(x, 0)[0], jnp.ones(5))
"""
    _, found = recorded(tmp_path, source)
    assert [f.name for f in found.functions if f.gradient] == ["<lambda>", "<lambda>", "body"]
    assert found.first.process.problems == ()


@pytest.mark.slow(sweep=True)
def test_without_a_budget_compilations_are_still_noted(tmp_path):
    _, found = recorded(tmp_path, TRAINER, "--budget", "0s")
    assert {f.name: f.count for f in found.functions} == {"train_step": 2, "loss": 1}
    assert "the budget of 0 s was spent" in str(found)


@pytest.mark.slow
def test_one_line_records_a_run_too(tmp_path):
    done = run(tmp_path, f"import jaxviz.auto\n{SMALL}", command=(), JAXVIZ="elsewhere")
    assert done.stderr == "jaxviz: wrote elsewhere/index.html\n"
    assert jaxviz.show(tmp_path / "elsewhere").functions[0].name == "f"


@pytest.mark.slow(sweep=True)
def test_a_process_that_the_script_forks_is_not_recorded(tmp_path):
    source = f"{SMALL}\nimport multiprocessing\nmultiprocessing.get_context('fork').Process(target=print).start()\n"
    done, found = recorded(tmp_path, source)
    assert done.stderr.count("jaxviz: wrote") == 1
    assert len(found.processes) == 1


def until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


KILLED = """
import os, sys, time, jax, jax.numpy as jnp

for n in range(1, 40):
    print(n, flush=True)
    jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(x))))(jnp.ones(n))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.01, pytest.param(0.1, marks=pytest.mark.slow(sweep=True))])
def test_a_killed_job_leaves_what_it_had_compiled(tmp_path, seconds):
    (tmp_path / "train.py").write_text(KILLED)
    command = [sys.executable, "-m", "jaxviz", "run", "train.py"]
    job = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    begun = [job.stdout.readline() for _ in range(4)]
    time.sleep(seconds)
    os.kill(job.pid, signal.SIGKILL)
    begun += job.communicate()[0].splitlines()
    found = jaxviz.show(tmp_path / "jaxviz-run")
    n_compiled = sum(f.count for f in found.functions if f.name == "<lambda>")
    assert n_compiled in (len(begun) - 1, len(begun))
    assert "not ended" in found.summary
    until(lambda: not jaxviz.show(tmp_path / "jaxviz-run").first.pending)
    assert jaxviz.show(tmp_path / "jaxviz-run").functions[0].gradient
    assert "gradient" in (tmp_path / "jaxviz-run" / "index.html").read_text()


@pytest.mark.slow
def test_processes_that_compile_something_else_are_found(tmp_path):
    source = """
import sys, time, jax, jax.numpy as jnp

@jax.jit
def same(x): return jnp.sin(x)

@jax.jit
def only_here(x): return jnp.cos(x)

same(jnp.ones(3))
jax.lax.fori_loop(0, 3, lambda i, x: x * 2, jnp.ones(3))
if sys.argv[1] == "1":
    only_here(jnp.ones(3))
input()
"""
    (tmp_path / "train.py").write_text(source)
    command = [sys.executable, "-m", "jaxviz", "run", "train.py"]
    jobs = [subprocess.Popen([*command, n], cwd=tmp_path, stdin=subprocess.PIPE) for n in "01"]
    until(lambda: len([*tmp_path.glob("jaxviz-run/*/process.json")]) == 2)
    for job in jobs:
        job.communicate(b"\n")
    found = jaxviz.show(tmp_path / "jaxviz-run")
    assert len(found.processes) == 2
    texts = [f.text for f in found.findings if f.kind == "process"]
    assert len(texts) == 1
    assert " compiled `only_here` (train.py:7), and " in texts[0]


@pytest.mark.slow
def test_a_new_run_replaces_one_that_is_over(trained):
    folder, *_ = trained
    _, found = recorded(folder, "import jax\n")
    assert len(found.processes) == 1
    assert found.functions == ()


@pytest.mark.slow
def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="jaxviz run"):
        jaxviz.show(tmp_path / "nothing")


@pytest.mark.slow
def test_what_each_step_leaves_behind_is_found(tmp_path):
    source = """
import jax, jax.numpy as jnp

history = []
step = jax.jit(lambda x: (x * 0.9, x.sum()))
x = jnp.ones(3)
for i in range(70):
    with jax.profiler.StepTraceAnnotation("train", step_num=i):
        x, loss = step(x)
        history.append(loss)
"""
    _, found = recorded(tmp_path, source)
    assert found.first.process.steps.left == {"f32[]": 1.0}
    (leak,) = [f for f in found.findings if f.kind == "leak"]
    assert leak.text == "Each step leaves 1 f32[] in memory, held by `history`, a list of 70, in train.py"
    assert found.first.compilations[-1].grew is not None or sys.platform != "linux"


@pytest.mark.slow(sweep=True)
def test_no_child_stays_behind(tmp_path):
    """A child may wait for a thread that it does not have, here to run what is compiled already."""
    source = """
import jax, jax.numpy as jnp

x = jnp.ones((400, 400))
product = jax.jit(lambda x: jnp.linalg.inv(x @ x + 500 * jnp.eye(400)))
product(x).block_until_ready()

@jax.jit
def step(w):
    with jax.ensure_compile_time_eval():
        scale = float(product(x).sum())
    return w - jax.grad(lambda w: jnp.sum(jnp.sin(w * scale)))(w)

step(jnp.ones(3))
"""
    _, found = recorded(tmp_path, source)
    assert found.largest.name == "step"
    if sys.platform == "linux":
        folders = [os.readlink(link) for link in Path("/proc").glob("[0-9]*/cwd") if os.access(link, os.R_OK)]
        assert str(tmp_path) not in folders


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the operating system does not say what a process does")
def test_a_process_that_has_to_wait_for_its_turn_does_not_count_as_one_that_waits():
    busy, idle = (
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        for code in ("print(flush=True)\nwhile True: pass", "import time; print(flush=True); time.sleep(600)")
    )
    try:
        for process in (busy, idle):
            process.stdout.readline()
        until(lambda: _cpu_seconds(idle.pid) is not None)
        assert [_cpu_seconds(busy.pid) for _ in range(50)] == [None] * 50
        assert [_cpu_seconds(idle.pid) for _ in range(50)] == [_cpu_seconds(idle.pid)] * 50
    finally:
        for process in (busy, idle):
            process.kill()
            process.communicate()


@pytest.mark.slow(sweep=True)
def test_a_leaked_tracer_is_named_with_its_attribute_and_line(tmp_path):
    source = """
import jax, jax.numpy as jnp

class Model:
    last = None

model = Model()

@jax.jit
def step(w):
    model.last = jnp.sin(w)
    return w - jax.grad(lambda w: jnp.sum(w**2))(w)

step(jnp.ones(3))
"""
    _, found = recorded(tmp_path, source)
    (leak,) = [f for f in found.findings if f.kind == "leak"]
    assert "stores `jnp.sin(w)` in `model.last` at " in leak.text
    assert "train.py:11" in leak.text


@pytest.mark.slow
def test_a_script_keeps_its_own_reading_of_annotations(tmp_path):
    """The code that runs it postpones its annotations, and the script does not."""
    source = "def f(x: int): pass\n\nprint(f.__annotations__)\n"
    assert run(tmp_path, source).stdout == "{'x': <class 'int'>}\n"


@pytest.mark.slow
@pytest.mark.parametrize("source", ["raise KeyboardInterrupt\n", "raise BrokenPipeError\n", "def f(:\n", "import x\n"])
def test_an_uncaught_error_ends_a_script_as_it_ends_python(tmp_path, source):
    (tmp_path / "train.py").write_text(source)
    ends = [
        subprocess.run([sys.executable, *words, "train.py"], cwd=tmp_path, capture_output=True, text=True)
        for words in ((), ("-m", "jaxviz", "run"))
    ]
    assert ends[0].returncode == ends[1].returncode != 0
    assert ends[0].stderr == ends[1].stderr


@pytest.mark.slow(sweep=True)
def test_functions_of_one_name_have_an_explorer_each(tmp_path):
    source = """
import jax, jax.numpy as jnp

for width in (3, 5):
    jax.jit(lambda x: jax.grad(lambda x: jnp.sum(jnp.sin(x)))(x))(jnp.ones(width))
jax.jit(lambda x: jax.grad(lambda x: jnp.sum(jnp.cos(x)))(x))(jnp.ones(4))
"""
    recorded(tmp_path, source)
    page = (tmp_path / "jaxviz-run" / "index.html").read_text()
    places = re.findall(r'<div id="(jaxviz-\d+)" class="widget">', page)
    assert len(places) == len(set(places)) == 2
    assert set(re.findall(r'href="#(jaxviz-\d+)"', page)) <= set(places)


@pytest.mark.slow
def test_a_script_that_is_not_there_is_named(tmp_path):
    command = [sys.executable, "-m", "jaxviz", "run", "no_such.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"jaxviz run: can't open {tmp_path / 'no_such.py'}: No such file or directory\n"
    assert not (tmp_path / "jaxviz-run").exists()


# The page is slow to write in a child of the run, and each that is written leaves a line.
WHO_WRITES = """
import os, time
import jax, jax.numpy as jnp
from pathlib import Path
from jaxviz.runs import watch

write, parent = watch.write_page, os.getpid()

def slow(folder):
    if os.getpid() != parent:
        time.sleep(1)
    with (folder / "writers").open("a") as writers:
        print("run" if os.getpid() == parent else "child", file=writers)
    return write(folder)

watch.write_page = slow
with watch.recorded("of-cell", 300):
    jax.jit(jax.grad(lambda x: jnp.sin(x) ** 2))(1.0)
time.sleep(2)
"""


@pytest.mark.slow
def test_nothing_is_written_after_a_run(tmp_path):
    run(tmp_path, WHO_WRITES, command=())
    writers = (tmp_path / "of-cell" / "writers").read_text().split()
    assert writers[-1] == "run"
    assert "child" in writers
