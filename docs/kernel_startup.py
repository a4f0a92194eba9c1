"""Run at the start of each kernel that the site is built with: explorers and exercises are shown as HTML that needs no kernel.

An explorer is a saved page in a frame, and an exercise a form that checks its answer on the page. Neither fetches anything, so the site works offline.
"""

import hashlib
import html
import os
import re
from pathlib import Path

import comm

_PAGES = Path(os.environ["JAXVIZ_DOCS_PAGES"])

comm.create_comm = comm.DummyComm  # else the widgets' state, megabytes of it, would be part of the page


def _show(text):
    display({"text/html": text}, raw=True)  # noqa: F821


def _frame(explorer):
    """The page has its content for a name, so an output that is kept finds it again."""
    page = explorer.save_html(_PAGES / f"{os.getpid()}.html", compiled="compiled" in (explorer.stage, explorer.beside))
    name = f"explorer-{hashlib.sha256(page.read_bytes()).hexdigest()[:16]}.html"
    page.replace(_PAGES / name)
    title = html.escape(f"The explorer of {explorer.derivation.primal.name}", quote=True)
    where = f"explorers:/{name}"  # conf.py puts it into the site
    _show(
        f'<figure class="explorer"><iframe src="{where}" title="{title}" loading="lazy"></iframe>'
        f'<figcaption><a href="{where}" target="_blank">Open it in a tab of its own</a></figcaption></figure>'
    )


def _form(exercise):
    from jaxviz.teach import static_form

    _show(static_form(exercise))


def _verdict(verdict):
    """Of a solution its code, folded, where that is the answer; other exercises have the answer in their form."""
    if not verdict.is_folded:
        return _show(verdict._repr_html_())
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    from jaxviz.teach import static_fold

    known = get_ipython().user_ns  # noqa: F821
    source = known["In"][-1].partition("\n")[2].strip()  # the first line says that it is a solution
    exercise = known[re.search(r"(\w+)\.solution\(", source)[1]]
    if exercise.form.kind == "code":
        _show(static_fold("A solution", highlight(source, PythonLexer(), HtmlFormatter())))


def _register():
    formatter = get_ipython().display_formatter.ipython_display_formatter  # noqa: F821
    formatter.for_type_by_name("jaxviz.features.explorer.widget", "Explorer", _frame)
    formatter.for_type_by_name("jaxviz.teach.exercise", "Exercise", _form)
    formatter.for_type_by_name("jaxviz.teach.exercise", "Verdict", _verdict)


_register()
