"""Which code is the user's own: code that is neither installed nor part of Python, JAX or jaxviz, unless `own_code`
says otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal as OneOf

import jax

from jaxviz.ir import compat
from jaxviz.ir.sharing import clear_shared, cleared

ENVIRONMENT = "JAXVIZ_OWN_CODE"
"""The environment variable with the same content as `own_code`: `my_lib,-common`."""

_JAXVIZ = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PASSES_ON = tuple(os.path.join(_JAXVIZ, *path.split("/")) + os.sep for path in ("ir/compat", "teach/autodiff"))
_STARTS = tuple(
    os.path.join(_JAXVIZ, *path.split("/"))
    for path in ("runs/command.py", "runs/start.py", "notebook/magics.py", "cli.py", "__main__.py")
)
"""The files whose frames are outside of the user's program, which they start."""
_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
_WRITTEN_ON_JAX = tuple(
    os.path.join(_JAX, *path.split("/"))
    for path in ("example_libraries/", "experimental/ode.py", "experimental/rnn.py")
)
"""Models, optimizers and solvers that come with JAX and are written on it, as those of any library are. For JAX none of
its frames is the user's, nor is a library's here: what these compute has a name in them."""
_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))

_MADE_UP = ("<frozen ", "<magic>")

Owner = OneOf["user", "library", "jax", "python", "jaxviz"]


def own_code(include: Iterable[str] = (), exclude: Iterable[str] = ()) -> None:
    """Sets whose lines reports name first, from now on.

    The user's line of an equation is the innermost one outside of installed packages, the standard library and IPython.
    The author of a library can include it, though it is installed; others can exclude a module of helpers whose lines
    say little.

    >>> jaxviz.own_code(include=["my_lib"], exclude=["my_lib.common"])

    Without arguments it restores the setting of the environment variable `JAXVIZ_OWN_CODE`, such as
    `my_lib,-my_lib.common`.

    Args:
      include: modules, by dotted name, or folders and files, by path, that count as the user's code though they are
        installed.
      exclude: modules, folders and files that do not, even inside one that `include` names.

    Raises:
      TypeError: an argument is a string.
    """
    for name, argument in (("include", include), ("exclude", exclude)):
        if isinstance(argument, str):
            raise TypeError(f"{name} must be a list of modules or paths: write {name}=[{argument!r}]")
        if not isinstance(argument, Iterable):
            raise TypeError(f"{name} must be a list of modules or paths, such as {name}=['my_lib']; got {argument!r}")
    included, excluded = tuple(include), tuple(exclude)
    if not included and not excluded:
        included, excluded = _from_environment()
    _settings[:] = included, excluded
    clear_shared()


def _from_environment() -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = [name.strip() for name in os.environ.get(ENVIRONMENT, "").split(",") if name.strip()]
    return tuple(n for n in names if n[0] != "-"), tuple(n[1:] for n in names if n[0] == "-")


_settings: list[tuple[str, ...]] = list(_from_environment())


@cleared
@lru_cache(maxsize=4096)
def owner(file: str) -> Owner:
    """The owner of a source file. What runs operations for its caller, as JAX does, counts as JAX's."""
    if file in _STARTS:
        return "python"
    if is_of_jaxviz(file):
        return "jax" if file.startswith(_PASSES_ON) else "jaxviz"
    included, excluded = _settings
    if _is_among(file, excluded):
        return "library"
    if _is_among(file, included):
        return "user"
    if file.startswith(_JAX):
        return "library" if file.startswith(_WRITTEN_ON_JAX) else "jax"
    if any(folder in file for folder in _INSTALLED):
        return "library"
    return "user" if compat.is_user_file(file) and not file.startswith(_MADE_UP) else "python"


def is_own(file: str) -> bool:
    """Whether a source file is the user's own."""
    return owner(file) == "user"


def is_of_program(file: str) -> bool:
    """Whether a source file is the user's own or a library's: neither Python's, nor JAX's, nor jaxviz's."""
    return owner(file) in ("user", "library")


def is_of_jaxviz(file: str) -> bool:
    """Whether a source file is jaxviz's, including the part that calls into JAX."""
    return file.startswith(_JAXVIZ)


def _is_among(file: str, names: tuple[str, ...]) -> bool:
    if not names:
        return False
    module = _module(file)
    for name in names:
        if os.sep in name:
            path = os.path.abspath(os.path.expanduser(name))
            if file == path or file.startswith(path + os.sep):
                return True
        elif module == name or module.startswith(name + "."):
            return True
    return False


def _module(file: str) -> str:
    """`my_lib.layers` for a file below one of the folders that Python imports from."""
    folders = (os.path.abspath(folder) + os.sep for folder in sys.path)
    folder = max((f for f in folders if file.startswith(f)), key=len, default="")
    return file.removeprefix(folder).removesuffix(".py").removesuffix(f"{os.sep}__init__").replace(os.sep, ".")


def package(file: str) -> str:
    """`flax` for a file of an installed package; '' for others."""
    for folder in _INSTALLED:
        _, separator, inside = file.rpartition(folder)
        if separator:
            return inside.split(os.sep)[0].removesuffix(".py")
    return ""
