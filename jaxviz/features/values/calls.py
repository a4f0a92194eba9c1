"""`Recorder`: records of the calls of a run, such as its training steps, in one file."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxviz.analysis.addresses import address
from jaxviz.arguments import Argnums
from jaxviz.features.values.recording import PreparedRecord, prepared
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary


class Recorder:
    """Records calls, such as the steps of a training loop, in a file that is written as they are made.

    >>> recorder = jaxviz.Recorder("before.jaxviz", every=10)
    >>> for batch in batches:
    ...     state = recorder(train_step, state, batch)
    >>> print(jaxviz.divergence("before.jaxviz", "after.jaxviz"))

    A call returns what the function returns. Each recorded call is traced, if there was none of its types before, and
    runs once more, and the 1st, 2nd, 3rd, 5th, 9th and so on three times more, to measure what rounding may change, or
    five times more if it computes in a coarser type than its arguments have. With `once` a recorded call is that run
    alone, which costs little more than the call: XLA compiles it otherwise where values leave it, so that the last bits
    of results may be others, and it donates nothing.
    `divergence` of two such files pairs their calls by number, and names the first that differs; what a call was given
    and an earlier one returned may differ by what rounding has changed in all of them.

    Args:
      path: the file, which is overwritten; of several processes each adds its number to the name.
      every: records the first call and then one of so many.
      once: returns what the recorded run of a function computes, in place of running the function too.
      argnums, cotangents, has_aux, at: as in `record`.
    """

    def __init__(
        self, path: Any, *, every: int = 1, once: bool = False, argnums: Argnums = 0, cotangents: bool | None = None,
        has_aux: bool = False, at: Sequence[Any] = (),
    ):  # fmt: skip
        if every < 1:
            raise ValueError(f"every={every} records no call; it is 1 for all of them, 10 for one of ten")
        self.path = Path(path)
        if jax.process_count() > 1:
            self.path = self.path.with_stem(f"{self.path.stem}-{jax.process_index()}")
        self._every, self._once, self._how = every, once, (cotangents, has_aux, argnums, [address(a) for a in at])
        self._prepared: dict[Any, PreparedRecord] = {}
        self._number = 0
        self._returned = weakref.WeakValueDictionary[int, jax.Array]()

    @api_boundary
    def __call__(self, fun: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """
        Raises:
          the errors of `record`, and of the function.
        """
        compat.check_callable(fun)
        number, self._number = self._number, self._number + 1
        if number % self._every == 0:  # before the call, which may donate its arguments
            found = self._prepare(fun, args, kwargs)
            record, results = found.recorded(args, kwargs, number, self._returned, self._once)
            record.written_to(self.path, "at" if number else "wt")
        if number % self._every or not self._once:
            results = fun(*args, **kwargs)
        self._returned.update({id(x): x for x in jax.tree.leaves(results) if isinstance(x, jax.Array)})
        return results

    def _prepare(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> PreparedRecord:
        leaves, tree = jax.tree.flatten((args, kwargs))
        # A number of Python may be a constant of the program, and so its value matters.
        kinds = tuple(compat.aval_of(x) if isinstance(x, jax.Array) else (type(x), repr(x)) for x in leaves)
        key = fun, tree, kinds, compat.trace_key()
        if key not in self._prepared:
            found = prepared(fun, args, kwargs, *self._how)
            if found.is_path:
                return found
            self._prepared[key] = found
        return self._prepared[key]
