"""Packages that only pictures need: imported where one is drawn, since that takes half a second, with an error that
says what for."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(what: str, *packages: str) -> Iterator[None]:
    """Around the import of packages, or of a module that imports them.

    >>> with needs("A figure", "matplotlib"):
    ...     from jaxviz.report.figures import plot_over_time

    Raises:
      ImportError: one is missing or broken.
    """
    try:
        yield
    except Exception as error:  # a broken package raises anything
        raise ImportError(
            f"{what} needs {' and '.join(packages)}, which cannot be imported ({type(error).__name__}: {error}). "
            "Everything else works; "
            f"to install: pip install {' '.join(packages)}"
        ) from error
