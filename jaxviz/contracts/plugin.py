"""The fixture `gradient_contract` of pytest, which checks what a gradient may save, compute and exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

_UPDATE = "--jaxviz-update"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that locks contracts again."""
    help = "write the contracts of gradients again, as they are now"
    parser.getgroup("jaxviz").addoption(_UPDATE, action="store_true", help=help)


@pytest.fixture
def gradient_contract(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Checks a gradient against bounds, or against what is locked in a file.

    >>> def test_loss(gradient_contract):
    ...     gradient_contract(loss, params, x, residuals="<=18.3GiB", names={"hidden"}, no_collectives=("model",))

    The function that it returns takes a function and its arguments, and:

      argnums: the arguments to differentiate with respect to.
      residuals, work, recomputed, equations: the most that there may be; '18.3GiB', '<=1.2TFLOP', or a number.
      peak, temporaries: the same of the compiled gradient.
      names, dtypes: the names under which policies save values, and the dtypes that are saved.
      collectives: what devices may exchange, as the types imply: 'all-gather over model'.
      no_collectives: axes over which they may exchange nothing.
      donated: arguments that have to be donated.
      dead: parameters that the gradient need not reach.
      without_effect: checkpoints, policies and names that may have no effect.
      locked: the name of the file in the folder contracts, without its ending; by default the function's if no bounds
        are given. `pytest --jaxviz-update` writes it.
      compile: whether to lock what is compiled, too.
    """
    from jaxviz.contracts.bounds import checked_call  # pytest loads this file whether or not a test needs JAX

    root, is_update = request.config.rootpath, request.config.getoption(_UPDATE)

    def check(fun: Callable[..., Any], *args: Any, **bounds: Any) -> None:
        __tracebackhide__ = True
        said = checked_call(root, is_update, fun, args, bounds)
        if said:
            pytest.fail("\n".join(said), pytrace=False)

    return check
