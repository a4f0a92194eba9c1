"""Which frames count as the user's own."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxviz
from jaxviz.ir.origin import Location, call_stack, file_label, library_line, locate, own_line
from jaxviz.ir.own_code import is_own, owner, package

nn = pytest.importorskip("flax.linen", reason="the engine's tests with the newest JAX go without the libraries")


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    jaxviz.own_code()


def test_whose_a_file_is():
    assert owner(__file__) == "user"
    assert owner(jaxviz.__file__) == "jaxviz"
    assert owner(jax.__file__) == "jax"
    assert owner(np.__file__) == owner(nn.__file__) == owner(pytest.__file__) == "library"
    assert owner(sys.modules["linecache"].__file__) == owner("<frozen importlib._bootstrap>") == "python"
    assert owner("/tmp/ipykernel_17/4.py") == owner("<ipython-input-3-0a1b>") == owner("<stdin>") == "user"
    assert package(nn.__file__) == "flax"
    assert package(__file__) == ""


def model(v, x):
    return nn.Dense(4).apply(v, x).sum()


V = {"params": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}}
X = jnp.ones((2, 3))


def test_the_line_is_the_users_and_the_librarys_is_the_second():
    found = jaxviz.residuals(model, V, X)
    assert {r.location.file for r in found} == {__file__}
    dot = next(e for _, e in jaxviz.trace(model)(V, X).walk() if e.primitive.name == "dot_general")
    assert locate(dot.source).function == "model"
    assert package(library_line(dot.source).file) == "flax"
    assert call_stack(dot.source)[0].file == __file__
    assert not any("site-packages" in at.file for at in call_stack(dot.source))


def test_a_librarys_author_debugs_the_library():
    jaxviz.own_code(include=["flax"])
    dot = next(e for _, e in jaxviz.trace(model)(V, X).walk() if e.primitive.name == "dot_general")
    assert package(locate(dot.source).file) == "flax"
    jaxviz.own_code(include=["flax"], exclude=["flax.linen", "flax.core"])
    assert is_own(nn.__file__) is False
    dot = next(e for _, e in jaxviz.trace(model)(V, X).walk() if e.primitive.name == "dot_general")
    assert locate(dot.source).file == __file__
    jaxviz.own_code()
    assert not is_own(nn.__file__)


def test_a_folder_may_be_left_out(tmp_path):
    helper = tmp_path / "common.py"
    helper.write_text("import jax.numpy as jnp\ndef helper(x):\n    return jnp.sin(x)\n")
    space = {}
    exec(compile(helper.read_text(), str(helper), "exec"), space)
    loss = lambda x: space["helper"](x).sum()
    (sine,) = [e for e in jaxviz.trace(loss)(X).equations if e.primitive.name == "sin"]
    assert locate(sine.source).file == str(helper)
    jaxviz.own_code(exclude=[str(tmp_path)])
    assert locate(sine.source).file == __file__


LOOP = """
import jax, jax.numpy as jnp
def loop(x, n):
    def body(c, _):
        mask = jnp.where(n > 1, jnp.exp(n), 2.0)
        return jnp.sin(c) * (n * mask), None
    return jax.lax.scan(body, x, None, length=3)[0]
"""


def test_what_a_librarys_loop_is_rid_of_is_on_the_users_line(tmp_path):
    """JAX truncates the traceback of a loop's body, and values that are the same in each iteration are hoisted out of the loop."""
    path = tmp_path / "loops.py"
    path.write_text(LOOP)
    space = {}
    exec(compile(LOOP, str(path), "exec"), space)
    jaxviz.own_code(exclude=[str(tmp_path)])
    f, n = lambda x, n: space["loop"](x, n).sum(), jnp.arange(3.0)
    found = jaxviz.residuals(f, n, n)
    assert any("n * mask in " in r.expression and '["loop"](x, n)' in r.expression and not r.lengths for r in found)
    for located in (
        found,
        jaxviz.cost(f, n, n).rows,
        [v for v in jaxviz.memory(f, n, n).values if v.location is not None],
    ):
        assert {x.location.file for x in located} == {__file__}


def test_what_a_library_writes_and_calls_is_not_the_users(tmp_path):
    source = "def {0}(f, x):\n    return f(jnp.sin(x)) * x"
    file = tmp_path / "site-packages" / "checked.py"
    file.parent.mkdir()
    file.write_text(
        f"import jax.numpy as jnp\nspace = {{'jnp': jnp}}\nexec({source.format('inner')!r}, space)\n"
        "def checked(f, x):\n    return space['inner'](f, x)\n"
    )
    space = {"jnp": jnp}
    exec(compile(file.read_text(), str(file), "exec"), space)
    exec(source.format("own"), space)
    of = lambda f: [locate(e.source).file for _, e in jaxviz.trace(f)(1.0).walk()]
    assert of(lambda x: space["checked"](jnp.cos, x)) == [__file__] * 3
    assert of(lambda x: space["own"](jnp.cos, x)) == ["<string>"] * 3
    stack = [e for _, e in jaxviz.trace(lambda x: space["checked"](lambda y: jnp.cos(y), x))(1.0).walk()][1]
    assert [at.file for at in call_stack(stack.source)][:2] == [__file__] * 2


def test_the_environment_says_the_same(monkeypatch):
    monkeypatch.setenv("JAXVIZ_OWN_CODE", "flax, -flax.linen")
    jaxviz.own_code()
    assert is_own(sys.modules["flax.core"].__file__)
    assert not is_own(nn.__file__)


def test_a_string_is_refused():
    with pytest.raises(TypeError, match=r"include must be a list of modules or paths: write include=\['flax'\]"):
        jaxviz.own_code(include="flax")


def test_a_function_that_is_a_librarys_altogether_is_on_the_librarys_lines():
    dense = nn.Dense(4)
    found = jaxviz.residuals(dense.apply, V, X, argnums=0)
    assert {package(r.location.file) for r in found if r.kind == "intermediate"} <= {"flax"}
    dot = next(e for _, e in jaxviz.trace(dense.apply)(V, X).walk() if e.primitive.name == "dot_general")
    assert package(locate(dot.source).file) == "flax"
    assert own_line(dot.source) is None


def test_a_function_of_jaxs_is_on_the_line_that_called_jaxviz():
    (r,) = jaxviz.residuals(jnp.sin, jnp.ones(3))
    assert r.location.file == __file__


def test_cells_are_named_as_ipython_counts_them():
    assert file_label("<ipython-input-3-0a1b2c3d>") == "In[3]"
    assert str(Location("<ipython-input-12-0a1b2c3d>", 5, "f")) == "In[12]:5"
    assert file_label("/tmp/ipykernel_17/4.py") == "cell"  # there is no kernel to ask
