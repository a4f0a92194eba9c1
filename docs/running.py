"""Runs the code of the site's pages before Sphinx reads them, so that Sphinx finds all outputs in the cache.

Sphinx gives a process some twenty pages at a time, and at the end one of them has most of the long pages left. Here a
process takes one page at a time, and those with the most code come first.
"""

import os
import re
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context

from myst_nb.core.execute import create_client
from myst_nb.core.read import create_nb_reader

TIMED = re.compile(r"%recompile|watch_compilations|jaxviz\.profile")
"""In pages that show how long XLA takes, and compile what they show. (`compile_cost` itself always does.)"""


def settings_for(text):
    """The environment of a page's kernel."""
    return {"JAX_ENABLE_COMPILATION_CACHE": "false" if TIMED.search(text) else "true"}


def run_pages(app, names):
    """Runs those pages whose outputs are not in the cache. Sphinx runs a page that fails again, and says why it fails.

    Args:
      app: Sphinx.
      names: the pages.
    """
    env, pages = app.env, []
    for path in map(env.doc2path, names):
        text = path.read_text(encoding="utf-8")
        reader = create_nb_reader(path, env.myst_config, env.mystnb_config, text)
        if reader is not None:
            page = reader.read(text)
            pages.append((page, path, env.mystnb_config, _Quiet(), reader.read_fmt, settings_for(text)))
    pages.sort(key=lambda page: _length_of_code(page[0]), reverse=True)
    with ProcessPoolExecutor(app.parallel, get_context("spawn")) as pool:
        list(pool.map(_run, pages))


def _length_of_code(page):
    return sum(len(cell.source) for cell in page.cells if cell.cell_type == "code")


def _run(page):
    *page, settings = page
    os.environ |= settings  # for the kernel
    # Of a kernel that does not start, as when another process has taken its port, or that dies. Sphinx tries it again.
    with suppress(RuntimeError), create_client(*page):
        pass


class _Quiet:
    """A logger for myst-nb. What it has to say of an error, it says again when Sphinx reads the page."""

    def info(self, message, **options):
        pass

    warning = info
