"""Programs to draw, with names that try to break out of a picture."""

import jax
import jax.ad_checkpoint
import jax.numpy as jnp

EVIL = "</script></title><img src=x onerror=alert(1)>\u202eabc\u2066\x1b[31m\x00\\N\\l\"'&]]>--><b>%n"
"""Closes elements, has an event handler, reverses text, has terminal control codes and dot's escapes."""

LONG = "n" * 1_000_000


def small(w, x):
    with jax.named_scope("encoder"):
        h = jnp.tanh(x @ w) * 2.0
    return jnp.sum(h + jnp.sin(w))


SQUARE = jnp.ones((3, 3))


def layers(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w) + x
        x = jnp.sin(x) * 2.0
    return jnp.sum(x)


def layer_args(n):
    return [jnp.ones((4, 4)) for _ in range(n)], jnp.ones((2, 4))


def scanned(x, ys):
    def body(carry, y):
        return jnp.sin(carry) * y, carry + y

    return jax.lax.scan(body, x, ys)


def chosen(x):
    return jax.lax.cond(x.sum() > 0, lambda y: jnp.sin(y) * y, lambda y: jnp.exp(y), x).sum()


def hostile(d):
    with jax.named_scope(EVIL):
        a = jax.ad_checkpoint.checkpoint_name(jnp.sin(d[EVIL]), EVIL)
    return jnp.sum(jnp.cos(a) * d[LONG])


HOSTILE_ARGS = ({EVIL: jnp.ones(3), LONG: jnp.ones(3)},)
