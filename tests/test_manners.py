"""Importing jaxviz alone registers, patches and inspects nothing."""

import subprocess
import sys

import pytest

ONLY_IMPORTED = """
import jax
from jax._src import api, array, monitoring


def state():
    listeners = [
        monitoring._scalar_listeners, monitoring._event_duration_secs_listeners, monitoring._event_listeners,
        monitoring._event_time_span_listeners,
    ]
    return [list(x) for x in listeners], api._post_hook_state.get_global(), dict(vars(array.ArrayImpl))


before = state()
import jaxviz
from IPython.core.interactiveshell import InteractiveShell

assert state() == before


class Shy:
    def __repr__(self):
        raise AssertionError("repr")

    def __hash__(self):
        raise AssertionError("hash")


shy = Shy()
shell = InteractiveShell()
jaxviz.load_ipython_extension(shell)
assert "recompile" in shell.magics_manager.magics["line"]
assert state() == before

jax.jit(lambda x, y=shy: x + (shy is y))(1.0)
f = jax.jit(lambda x: x + 1, donate_argnums=0)
for _ in range(3):
    f(jax.numpy.ones(3))
jaxviz.jit(f, donate_argnums=0)(jax.numpy.ones(3))
assert state() == before

with jaxviz.watch_compilations() as seen:
    jax.jit(lambda x, y=shy: x + (shy is y))(2.0)
assert seen.count == 1, seen.records
jaxviz.watch_donations()
assert state() != before
jaxviz.watch_donations(False)
assert state() == before
"""


@pytest.mark.slow
def test_nothing_is_watched_until_asked():
    done = subprocess.run([sys.executable, "-c", ONLY_IMPORTED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
