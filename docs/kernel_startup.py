"""Run at the start of each kernel that the site is built with: what is shown as a widget becomes a saved page in a frame.

Such a page has no kernel behind it and fetches nothing, so the site works offline, and each explorer can be used.
"""

import html
import itertools
import os
import uuid
from pathlib import Path

import comm

_PAGES = Path(os.environ["JAXVIZ_DOCS_PAGES"])
_KERNEL = uuid.uuid4().hex[:8]
_numbers = itertools.count()

comm.create_comm = comm.DummyComm  # else the widgets' state, megabytes of it, would be part of the page


def _frame(explorer):
    name = f"explorer-{_KERNEL}-{next(_numbers)}.html"
    _PAGES.mkdir(parents=True, exist_ok=True)
    explorer.save_html(_PAGES / name, compiled="compiled" in (explorer.stage, explorer.beside))
    title = html.escape(f"The explorer of {explorer.derivation.primal.name}", quote=True)
    where = f"explorers:/{name}"  # conf.py knows how deep in the site the page is
    data = {
        "text/html": f'<figure class="explorer"><iframe src="{where}" title="{title}" loading="lazy"></iframe>'
        f'<figcaption><a href="{where}" target="_blank">Open it in a tab of its own</a></figcaption></figure>'
    }
    display(data, raw=True)  # noqa: F821


def _register():
    formatter = get_ipython().display_formatter.ipython_display_formatter  # noqa: F821
    formatter.for_type_by_name("jaxviz.features.explorer.widget", "Explorer", _frame)


_register()
