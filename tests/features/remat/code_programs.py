"""Programs whose plans are written as code, each a source with a function `loss`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from test_remat_plan import planned

import jaxviz
from benchmarks import models
from jaxviz.features.remat.choose import fastest_at_calls
from jaxviz.features.remat.forms import Form, Trial
from jaxviz.features.remat.planning import Planning
from jaxviz.features.remat.search import Search

HEAD = "import jax\nimport jax.numpy as jnp\nfrom jax import lax\n"
X = jnp.linspace(0.1, 1.0, 64 * 16).reshape(64, 16)
W = jnp.linspace(-0.5, 0.5, 256).reshape(16, 16)
FAST = "900GB/s, 0.001TFLOP/s"
"""A transfer to the host that costs almost nothing compared to computing."""


def arguments(width=16, hidden=64, rows=32, layers=3):
    """Those of the transformer `BLOCK`."""
    shapes = {"w1": (width, hidden), "w2": (hidden, width)} | dict.fromkeys("qkv", (width, width))
    key = jax.random.key(0)
    params = {name: jax.random.normal(key, (layers, *shapes[name])) * 0.1 for name in ("q", "k", "v", "w1", "w2")}
    return params, jax.random.normal(key, (rows, width))


def bounded(**bound):
    return lambda f, *args: jaxviz.plan_remat(f, *args, **bound)


def around_all(share):
    """One checkpoint around the function, whose budget is a fraction of the way from the fewest bytes to all."""

    def plan(f, *args):
        search = Search(jaxviz.derive(f, *args), False)
        return planned(f, *args, budget=int(search.least + share * (search.opened.nbytes - search.least)))

    return plan


def at_calls(f, *args):
    """Checkpoints around calls that may use a fifth of the memory that these can save."""
    planning = Planning(Search(jaxviz.derive(f, *args), False))
    search = planning.search
    least = min(search.trial(form).trade.peak_nbytes for regions in search.sets for form in search.path(regions))
    room = least + (search.opened.peak_nbytes - least) // 5
    return planning.plan("", fastest_at_calls(search, lambda t: room - t.peak_nbytes)[0])


def opened(f, *args):
    """The function without its checkpoints."""
    planning = Planning(Search(jaxviz.derive(f, *args), False))
    search = planning.search
    return planning.plan("", Trial(Form((), ()), {}, search.flat, search.plain, search.opened))


@dataclass(frozen=True)
class Source:
    """A program, a plan for it, and what its code contains.

    Args:
      text: the source.
      lines: parts of the diff, without the signs of its added lines.
      plan: plans the function for its arguments.
      args: the arguments, of the module.
      library: the source of a library that it imports as `library`.
      is_short: whether it is not left to the sweeps.
      offload: the bandwidth of the plan.
    """

    text: str
    lines: tuple[str, ...]
    plan: Callable[..., Any]
    args: Callable[[Any], tuple[Any, ...]] = lambda m: arguments()
    library: str = ""
    is_short: bool = True
    offload: Any = None


BLOCK = """
def attention(p, x):
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    probs = jax.nn.softmax(q @ k.swapaxes(-1, -2), -1)
    return probs @ v

def block(p, x):
    x = x + attention(p, x)
    h = jnp.tanh(x @ p["w1"])
    return x + jnp.sin(h * h) @ p["w2"]
"""
LOOP = """
def loss(params, x):
    for i in range(3):
        p = jax.tree.map(lambda w: w[i], params)
        x = block(p, x)
    return jnp.mean(x**2)
"""
SCAN = """
def loss(params, x):
    def step(x, p):
        return block(p, x), None
    x, _ = lax.scan(step, x, params)
    return jnp.mean(x**2)
"""
DOTS = "policy=jax.checkpoint_policies.dots_saveable"
SMALL = """
def loss(w, x):
    y = x @ w
    y += jnp.sin(y @ w)
    z = jnp.exp(y).reshape(
        -1, 8,
    )
    return jnp.sum(jnp.sin(z @ w) @ w)
"""
SMALL_ARGS = jnp.linspace(-0.5, 0.5, 64).reshape(8, 8), jnp.linspace(0.1, 1.0, 64 * 8).reshape(64, 8)
PLAIN = {
    "scanned": HEAD + BLOCK + SCAN,
    "unrolled": HEAD + BLOCK + LOOP,
    "two calls in a line": HEAD + BLOCK + """
def loss(params, x):
    at = lambda i: jax.tree.map(lambda w: w[i], params)
    x = block(at(1), block(at(0), x)) + block(at(2), x); é = x
    return jnp.mean(é**2)
""",
    "no import of jax": """
from jax import lax, nn
import jax.numpy as jnp

def loss(params, x):
    w = params["w1"][0] @ params["w2"][0]
    def body(i, x):
        h = nn.gelu(x @ w)
        return x + jnp.sin(h) * h
    return jnp.mean(lax.fori_loop(0, 3, body, x) ** 2)
""",
    "methods": HEAD + """
class Layer:
    def __init__(self, p):
        self.p = p
    def mix(self, x):
        h = jnp.tanh(x @ self.p["w1"])
        return x + jnp.sin(h * h) @ self.p["w2"]

def loss(params, x):
    for i in range(3):
        layer = Layer(jax.tree.map(lambda w: w[i], params))
        x = layer.mix(
            x
        )
    return jnp.mean(x**2)
""",
}  # fmt: skip
PLAIN["no end of the last line"] = PLAIN["scanned"].rstrip("\n")
_BOUNDS = {"100%": bounded(work="100%"), "5%": bounded(work="5%"), "any": bounded()}
_SHORT = {("scanned", "any"), ("methods", "100%")}

CHECKPOINTED = {
    "decorator": (BLOCK.replace("def block", "@jax.checkpoint\ndef block") + LOOP,
                  "@partial(jax.checkpoint, policy=SAVED)\n def block"),
    "decorator with a policy": (
        "from functools import partial\n" + BLOCK.replace("def block",
                                                          f"@partial(jax.checkpoint, {DOTS})\ndef block") + LOOP,
        "@partial(jax.checkpoint, policy=SAVED)\n def block",
    ),
    "call": (BLOCK + LOOP.replace("block(", f"jax.checkpoint(block, {DOTS}, prevent_cse=False)("),
             "x = jax.checkpoint(block, policy=SAVED, prevent_cse=False)(p, x)"),
    "assigned": (
        f"{BLOCK}\nsaved_block = jax.checkpoint(block, prevent_cse=False)\n" + LOOP.replace("block(", "saved_block("),
        "saved_block = jax.checkpoint(block, prevent_cse=False, policy=SAVED)",
    ),
    "body": (BLOCK + SCAN.replace("scan(step", "scan(jax.checkpoint(step)"),
             "lax.scan(jax.checkpoint(step, policy=SAVED), x, params)"),
    "lambda": (
        BLOCK + SCAN.replace("scan(step", "scan(jax.checkpoint(lambda x, p: (block(p, x), None))"),
        "lax.scan(jax.checkpoint(lambda x, p: (block(p, x), None), policy=SAVED), x, params)",
    ),
    "in a body": (BLOCK + SCAN.replace("block(p, x)", f"jax.checkpoint(block, {DOTS})(p, x)"), ""),
    "in a checkpoint": (
        BLOCK.replace("def block", "@jax.checkpoint\ndef block") + LOOP.replace("def loss",
            "@jax.checkpoint\ndef loss"),
        "",
    ),
}  # fmt: skip
WHOLE = {
    "function": (SMALL, "\n@partial(jax.checkpoint, policy=SAVED)\n def loss"),
    "decorated function": (SMALL.replace("def loss", "@jax.checkpoint\ndef loss"),
                           "\n@partial(jax.checkpoint, policy=SAVED)\n def loss"),
    "lambda": (SMALL.replace("def loss", "def base") + "\nloss = lambda w, x: base(w, x) * 2.0\n",
               "jax.checkpoint(lambda w, x: base(w, x) * 2.0, policy=SAVED)"),
    "assigned function": (SMALL.replace("def loss", "def base") + "\nloss = jax.checkpoint(base)\n",
                          "loss = jax.checkpoint(base, policy=SAVED)"),
    "jitted function": (SMALL.replace("def loss", "@jax.jit\ndef loss"),
                        " @jax.jit\n@partial(jax.checkpoint, policy=SAVED)\n def loss(w, x):"),
}  # fmt: skip

INDEXED = {  # what a loop is, and what it becomes, so that a policy can depend on its index
    "range": ("for i in range(6):\n        x = block(at(params, i), x)", "for i in range(6):", "i"),
    "enumerate": ("for k, n in enumerate(range(6)):\n        x = block(at(params, n), x)",
                  "for k, n in enumerate(range(6)):", "k"),
    "pairs": (
        "for m, n in zip(range(6), range(6)):\n        x = block(at(params, m), x)",
        "for i, (m, n) in enumerate(zip(range(6), range(6))):", "i",
    ),
    "one": ("for n in list(range(6)):\n        x = block(at(params, n), x)", "for i, n in enumerate(list(range(6))):",
            "i"),
    "changed": (
        "for i in range(6):\n        x = block(at(params, i), x)\n        i = 0",
        "for layer_index, i in enumerate(range(6)):", "layer_index",
    ),
}  # fmt: skip
NOT_INDEXED = {
    "conditional": "for i in range(12):\n        if i % 2:\n            x = block(at(params, i // 2), x)",
    "nested": "for i in range(2):\n        for k in range(3):\n            x = block(at(params, 3 * i + k), x)",
    "breaks": "for i in range(12):\n        if i == 6:\n            break\n        x = block(at(params, i), x)",
    "called twice": "x = half(params, half(params, x))",
}
AT = HEAD + BLOCK + """
def at(params, n):
    return jax.tree.map(lambda w: w[n], params)

def half(params, x):
    for i in range(3):
        x = block(at(params, i), x)
    return x

def loss(params, x):
    {loop}
    return jnp.mean(x**2)
"""  # fmt: skip

OTHER = {  # one checkpoint around the function
    "transformer": Source(
        Path(models.__file__).read_text() + "\nloss = transformer_loss\n",
        ("checkpoint_name(", "\n@partial(jax.checkpoint, policy=SAVED)\n def transformer_loss("), around_all(0.7),
        lambda m: (m.transformer_params(2, width=16, hidden=32), jnp.zeros(12, int)), is_short=False,
    ),
    "recurrent network": Source(
        Path(models.__file__).read_text() + "\nloss = lstm_loss\n", ("checkpoint_name(",), around_all(0.5),
        lambda m: m.lstm(1, width=8, length=6)[1],
    ),
    "statement that adds": Source("""
import jax.numpy as jnp

def loss(w, x):
    y = jnp.sin(x @ w) @ w
    y += x @ w
    return jnp.sum(jnp.sin(y) @ w * y)
""", ('     y += x @ w\n    y = checkpoint_name(y, "loss_y")\n',), around_all(0.3), lambda m: SMALL_ARGS),
    # With bytes for two of three values computed on one line, a name can only save all or none.
    "name of more than the plan saves": Source("""
import jax.numpy as jnp

def block(w, x):
    return jnp.sin(x @ w)

def loss(ws, x):
    for w in ws:
        x = block(w, x)
    return jnp.sum(x)
""", ("# plan.apply can also save values that no name in your source refers to; it has",), around_all(0.4),
        lambda m: ([SMALL_ARGS[0], SMALL_ARGS[0] * 0.5, SMALL_ARGS[0] + 0.1], SMALL_ARGS[1])),
    "library's modules": Source("""
import flax.linen as nn
import jax
import jax.numpy as jnp

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = x + nn.Dense(8)(nn.gelu(nn.LayerNorm()(x)))
        return x

NET = Net()

def loss(params, x):
    return jnp.sum(NET.apply(params, x) ** 2)
""", ("checkpoint_name(",), around_all(0.5), lambda m: (m.NET.init(jax.random.key(0), SMALL_ARGS[1]), SMALL_ARGS[1]),
        is_short=False),
    "scan in chunks": Source("""
import jax.numpy as jnp
from jax import lax

def loss(ws, x):
    def step(x, w):
        h = jnp.tanh(x @ w)
        return x + jnp.sin(h) * h, jnp.mean(x)
    y, means = lax.scan(step, x, ws)
    return jnp.sum(y) + jnp.sum(means**2)
""", ("scan_in_chunks(lax.scan, 6)(",), bounded(work="90%"),
        lambda m: (jax.random.normal(jax.random.key(0), (36, 16, 16)) / 32,
                   jnp.linspace(0.0, 1.0, 128 * 16).reshape(128, 16))),
    "offloaded": Source(PLAIN["no import of jax"], ("save_and_offload_only_these_names(",),
                        bounded(work="1%", offload=FAST), offload=FAST),
}  # fmt: skip
EXPRESSIONS = """
import jax
import jax.numpy as jnp
from jax import lax

def helper(y, w):
    return jnp.sin(y) @ w

def loss(w, x):
    é = jnp.tanh(x @ w) * 2.0  # two that start together
    y = (jnp.exp(é)
         .reshape(8, -1)
         .T @ w)
    y += jnp.cos(y)
    for k in range(2):
        y = helper(y, w) + k * helper(
            y * y,
            w,
        )
    z = jax.vmap(lambda row: jnp.sin(row) * jnp.exp(row))(y)
    z = lax.cond(z[0, 0] > 0, lambda z: jnp.sin(helper(z, w)), lambda z: z, z)
    slope = jax.grad(lambda v: jnp.sum(jnp.tanh(v) ** 3))(z)
    return jnp.sum(jax.nn.gelu(z) * slope)
"""

CODE = {
    **{
        f"{name}, {bound}": Source(text, (), plan, is_short=(name, bound) in _SHORT)
        for name, text in PLAIN.items()
        for bound, plan in _BOUNDS.items()
    },
    **{
        f"checkpoint of a {name}": Source(HEAD + text, (line,), bounded(work="25%"), is_short=False)
        for name, (text, line) in CHECKPOINTED.items()
    },
    **{f"whole {name}": Source(HEAD + text, (line,), bounded(budget=0.6), lambda m: SMALL_ARGS,
                               is_short=name != "assigned function") for name, (text, line) in WHOLE.items()},
    **{
        f"loop with {name}": Source(
            AT.format(loop=loop), (line, f"jax.checkpoint(block, policy=SAVED if {index} < ",
                                   " else SAVED_2)(at(params, "),
            at_calls, lambda m: arguments(layers=6), is_short=name == "enumerate",
        )
        for name, (loop, line, index) in INDEXED.items()
    },
    **{
        f"{name} loop": Source(
            AT.format(loop=loop), (f"jax.checkpoint({'half' if name == 'called twice' else 'block'}, policy=SAVED)(",
                                   "# plan.apply can also save values that no name in your source refers to"),
            at_calls, lambda m: arguments(layers=6), is_short=False,
        )
        for name, loop in NOT_INDEXED.items()
    },
    **{f"expressions, {share}": Source(EXPRESSIONS, (), around_all(share), lambda m: SMALL_ARGS,
                                       is_short=share == 0.5) for share in (0.2, 0.5, 0.9)},
    **OTHER,
}  # fmt: skip

# --- what libraries run ----------------------------------------------------------------------------------------------

LAYER = """
    h = jnp.tanh(x @ w)
    return x + jnp.sin(h * h) * jnp.cos(h)
"""
MODEL = f"""
def block(w, x):{LAYER}
def model(w, x):
    for _ in range(6):
        x = block(w, x)
    return x
"""
WIDE = """    h = activation(x @ w)
    return jnp.sin(h * h) * jnp.cos(h) * jnp.exp(h) if is_training else x
"""
LINEN = """
import flax.linen as nn

class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = jnp.tanh(nn.Dense(64)(nn.LayerNorm()(x)))
        return x + nn.Dense(16)(jnp.sin(h) * h)

class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        for i in range(6):
            x = Block(name=f"layer_{i}")(x)
        return x
"""
APPLIED = """
MODEL = Model()

def loss(params, x):
    return jnp.mean(MODEL.apply(params, x) ** 2)
"""
INITIAL = lambda m: (m.MODEL.init(jax.random.key(0), X), X)
LINEN_SETUP = LINEN.replace(
    '    @nn.compact\n    def __call__(self, x):\n        for i in range(6):\n            x = '
    'Block(name=f"layer_{i}")(x)\n',
    "    def setup(self):\n        self.layers = [Block() for _ in range(6)]\n    def __call__(self, x):\n        for "
    "layer in self.layers:\n            x = layer(x)\n",
)  # fmt: skip
LINEN_SCAN = (
    LINEN.replace("def __call__(self, x):\n        h", "def __call__(self, x, _):\n        h")
    .replace("(jnp.sin(h) * h)", "(jnp.sin(h) * h), None")
    .replace(
        '        for i in range(6):\n            x = Block(name=f"layer_{i}")(x)\n',
        '        Layers = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=6)\n        '
        'x, _ = Layers(name="layers")(x, None)\n',
    )
)  # fmt: skip
NNX = """
from flax import nnx

class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.up, self.down = nnx.Linear(16, 64, rngs=rngs), nnx.Linear(64, 16, rngs=rngs)
    def __call__(self, x):
        h = nnx.tanh(self.up(self.norm(x)))
        return x + self.down(jnp.sin(h) * h)

rngs = nnx.Rngs(0)
GRAPH, PARAMS = nnx.split([Block(rngs) for _ in range(3)])
def loss(params, x):
    for layer in nnx.merge(GRAPH, params):
        x = layer(x)
    return jnp.mean(x ** 2)
"""
EQUINOX = f"""
import equinox as eqx

class Layer(eqx.Module):
    w: jax.Array
    def __call__(self, x):{LAYER.replace("    ", "        ").replace("@ w", "@ self.w")}
"""
FOLD = """
def fold(layers, x):
    for layer in layers:
        x = layer(x)
    return x
"""
HAIKU = """
import haiku as hk

class Block(hk.Module):
    def __call__(self, x):
        h = jnp.tanh(hk.Linear(64)(x))
        return x + hk.Linear(16)(jnp.sin(h) * h)

def net(x):
    for _ in range(6):
        block = Block()
        x = block(x)
    return jnp.mean(x ** 2)

MODEL = hk.without_apply_rng(hk.transform(net))
loss = MODEL.apply
"""
PENZAI = """
from penzai import pz

@pz.pytree_dataclass
class Block(pz.nn.Layer):
    up: jax.Array
    down: jax.Array
    def __call__(self, x, **_):
        h = jnp.tanh(x @ self.up)
        return x + (jnp.sin(h) * h) @ self.down

KEYS = jax.random.split(jax.random.key(0), 3)
PARAMS = [Block(jax.random.normal(k, (16, 64)), jax.random.normal(k, (64, 16))) for k in KEYS]
def loss(params, x):
    {call}
    return jnp.mean(x ** 2)
"""
_PARAMS = lambda m: (m.PARAMS, X)
_AT_MODULES = {  # {} is the policy
    "flax.linen": (LINEN + APPLIED, "nn.remat(Block{})(name=", INITIAL),
    "flax.linen with setup": (LINEN_SETUP + APPLIED, "[nn.remat(Block{})() for _ in range(6)]", INITIAL),
    "flax.linen with scan": (LINEN_SCAN + APPLIED, "nn.scan(nn.remat(Block, prevent_cse=False{}), variable_axes",
                             INITIAL),
    "flax.nnx": (NNX, "nnx.remat(lambda module, x: module(x){})(layer, x)", _PARAMS),
    "equinox": (EQUINOX + FOLD.replace("fold(", "loss(").replace("return x", "return jnp.mean(x**2)"),
                "eqx.filter_checkpoint(layer{})(x)", lambda m: ([m.Layer(W + k) for k in range(3)], X)),
    "haiku": (HAIKU, "hk.remat(block{})(x)", INITIAL),
    "penzai": (PENZAI.format(call="for layer in params:\n        x = layer(x)"),
               "gradient_checkpointing.Checkpointed(layer{})(x)", _PARAMS),
    "penzai's model": (
        PENZAI.format(call="model = pz.nn.Sequential(params)\n    x = model(x)"),
        "x = pz.select(model).at_instances_of(Block).apply(", _PARAMS,
    ),
}  # fmt: skip
_SHORT_MODULES = {("flax.linen with scan", "2%"), ("equinox", "30%")}
_RUN = partial(Source, plan=bounded(work="35%"), args=lambda m: (W, X))
IN_LIBRARIES = {
    **{
        f"{name}, {work}": Source(
            HEAD + text, (line, ", policy=SAVED" * (work == "2%")), bounded(work=work), args,
            is_short=(name, work) in _SHORT_MODULES,
        )
        for name, (text, line, args) in _AT_MODULES.items()
        for work in ("30%", "2%")
    },
    "step function": _RUN("""
def loss(w, x):
    def step(x):
        h = jnp.tanh(x @ w)
        return x + jnp.sin(h * h) * jnp.cos(h)
    return jnp.mean(library.integrate(step, x, 6) ** 2)
""", ("library.integrate(jax.checkpoint(step, prevent_cse=False",), library="""
def integrate(step, x, n):
    return lax.scan(lambda x, _: (step(x), None), x, None, length=n)[0]
"""),
    "function of a library": _RUN("""
def loss(w, x):
    return jnp.mean(library.model(w, x) ** 2)
""", ("\nlibrary.block = jax.checkpoint(library.block",), library=MODEL),
    "flax module of a library": _RUN(
        APPLIED.replace("Model()", "library.Model()"),
        ("\nlibrary.Block.__call__ = linen.remat(library.Block.__call__",), args=INITIAL, library=LINEN,
        is_short=False,
    ),
    "equinox module of a library": _RUN("""
def loss(layers, x):
    return jnp.mean(library.fold(layers, x) ** 2)
""", ("\nlibrary.Layer.__call__ = equinox.filter_checkpoint(library.Layer.__call__",),
        args=lambda m: ([m.library.Layer(W + k) for k in range(6)], X), library=EQUINOX + FOLD, is_short=False),
    "equinox module that a library iterates over": _RUN(EQUINOX + """
def loss(ws, x):
    return jnp.mean(library.fold(Layer, ws, x) ** 2)
""", ("@partial(eqx.filter_checkpoint, prevent_cse=False",), args=lambda m: (jnp.stack([W] * 6), X), library="""
def fold(layer, ws, x):
    return lax.scan(lambda x, w: (layer(w)(x), None), x, ws)[0]
"""),
    "argument that Python branches on": _RUN(f"""
def block(w, x, is_training):{LAYER.rstrip()} if is_training else x

def loss(w, x):
    for _ in range(6):
        x = block(w, x, True)
    return jnp.mean(x ** 2)
""", ("jax.checkpoint(block, static_argnums=(2,)",)),
    "function in a function": _RUN("""
def make():
    def loss(w, x):
        h = jnp.tanh(x @ w)
        return jnp.mean(jnp.sin(h * h) * jnp.cos(h) * jnp.exp(h))
    return loss

loss = make()
""", ("\n    @",)),
    "layers that flax names": _RUN(
        LINEN.replace('name=f"layer_{i}"', "").replace("range(6)", "range(3)") + APPLIED, ("nn.remat",), args=INITIAL,
    ),
    "equinox module in a function": _RUN("""
def make():
    import equinox as eqx

    class Net(eqx.Module):
        w: jax.Array
        def __matmul__(self, x):
            h = jnp.tanh(x @ self.w)
            return jnp.sin(h * h) * jnp.cos(h) * jnp.exp(h)

    def loss(w, x):
        return jnp.mean((Net(w) @ x) ** 2)

    return loss

loss = make()
""", ("\n        @partial(eqx.filter_checkpoint",)),
    "equinox module under a transformation": _RUN(EQUINOX.replace("x + ", "jnp.exp(h) * ") + """
def loss(w, x):
    return jnp.mean(jax.vmap(Layer(w))(x) ** 2)
""", ("jax.checkpoint(jax.vmap(Layer(w)), policy=SAVED)(x)",)),
    "step that a library makes": _RUN("""
def loss(w, x):
    return jnp.mean(RUN(x @ w) ** 2)

def elsewhere(repeated, step):
    return repeated(step, 6)

RUN = library.repeated(library.make_step(1.0), 6)
""", ("library.repeated(jax.checkpoint(library.make_step(1.0), prevent_cse=False",), library="""
def make_step(scale):
    def step(x):
        h = jnp.tanh(x * scale)
        return x + jnp.sin(h * h) * jnp.cos(h) * jnp.exp(h)
    return step

def repeated(f, n):
    return lambda x: lax.scan(lambda x, _: (f(x), None), x, None, length=n)[0]
""", is_short=False),
    "arguments that are no arrays, for equinox": _RUN("""
import equinox as eqx

def loss(w, x):
    return jnp.mean(library.model(w, x, jnp.tanh, is_training=True) ** 2)
""", ("eqx.filter_checkpoint(library.model",), library=f"\ndef model(w, x, activation, is_training):\n{WIDE}"),
    "flag": _RUN("""
def loss(w, x):
    return jnp.mean(library.model(w, x, is_training=True) ** 2)
""", ("jax.checkpoint(partial(library.model, is_training=True)",),
        library=f"\nactivation = jnp.tanh\ndef model(w, x, is_training):\n{WIDE}", is_short=False),
}  # fmt: skip
