"""A program whose names and texts all try to break out of the page that shows it."""

import itertools

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

MARKUP = (
    '</script><img/src=x/onerror="window.hit=\'img\'">"><svg/onload="window.hit=\'svg\'">'
    '<a/href="javascript:window.hit=1">go</a>'
)
CONTROLS = "\u202eabc\u2066\x1b[31m\x00\u2028"
EVIL = f"{MARKUP}{CONTROLS}<b>`]]>-->${{window.hit=2}}%n\\N'&lt;"
HALF = f"{EVIL}\ud800"
"""Contains a lone surrogate, which JAX accepts only in argument names."""

LONG = "W" * 1_000_000

SOURCE = '''
def make(jax, jnp, evil, half, long, odd):
    def body(d):  # </script><img src=x onerror="window.hit=3">
        """{evil} \u202e \u2066 {long}"""
        with jax.named_scope(evil):
            a = jax.ad_checkpoint.checkpoint_name(jnp.sin(d[half]), evil)  # "><svg onload="window.hit=4"> \u202e
            text = "{long}"; b = jnp.cos(a) * d[long]  # javascript:window.hit=5
        with jax.named_scope(long):
            return odd(b, text=evil, more=({{evil: long}}, long)) * 2.0

    body.__name__ = body.__qualname__ = evil
    inner = jax.jit(body)

    def total(d):
        return jnp.sum(inner(d) * d[half])

    total.__name__ = total.__qualname__ = evil
    return total
'''
"""A template that puts the texts in a file, as comments, strings and its name."""

NAME = '"><svg onload=hit()>\u202e<b>.py'
_number = itertools.count()


def odd_operation(has_rules):
    """A primitive that returns its operand and accepts any params; new each time; with all rules, or with none."""
    p = Primitive(f"{EVIL}{next(_number)}")
    p.def_abstract_eval(lambda x, **params: x)
    if has_rules:
        ad.deflinear2(p, lambda ct, x, **params: [ct])
        mlir.register_lowering(p, mlir.lower_fun(lambda x, **params: x, multiple_results=False))

    class Text(str):
        """Its repr is the text itself, without escapes."""

        __repr__ = str.__str__

    return lambda x, **params: p.bind(x, text=Text(params["text"]), more=Text(params["more"]), **{f"a{EVIL}": 1})


def hostile_program(folder, has_rules=True):
    """The function, whose source is a file in a folder, and its arguments."""
    path = folder / NAME
    text = SOURCE.format(evil=MARKUP.replace('"', "'"), long=LONG)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    names = {}
    exec(compile(text, str(path), "exec"), names)
    f = names["make"](jax, jnp, EVIL, HALF, LONG, odd_operation(has_rules))
    return f, ({HALF: jnp.ones(3), LONG: jnp.ones(3)},)
