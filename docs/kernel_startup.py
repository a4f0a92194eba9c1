"""Run at the start of each kernel of the site's build: explorers, steppers and exercises
are shown as HTML that needs no kernel.

An explorer or a stepper is a saved page in a frame, and an exercise a form that checks its answer on the page. Neither
loads anything, so the site works offline.
"""

import hashlib
import html
import os
import re
from pathlib import Path

import comm
import ipykernel.compiler

_PAGES = Path(os.environ["JAXVIZ_DOCS_PAGES"])
_formatter = get_ipython().display_formatter.ipython_display_formatter  # noqa: F821

# By default the name of a cell's file has the number of the process in it, and a compiled program is kept for the next
# build with the names and lines of its code.
ipykernel.compiler.get_tmp_directory = lambda: "/tmp/ipykernel_1"

comm.create_comm = comm.DummyComm  # otherwise the widgets' state, megabytes of it, would be part of the page


def _show(text):
    display({"text/html": text}, raw=True)  # noqa: F821


def _frame(widget, title, kind="explorer", picture="", **options):
    """Shows a saved page. Its name, and that of its picture, is a hash of its content, so an output that is kept still
    finds it."""
    page = widget.save_html(_PAGES / f"{os.getpid()}.html", **options)
    name = f"explorer-{hashlib.sha256(page.read_bytes()).hexdigest()[:16]}.html"
    page.replace(_PAGES / name)
    where = f"explorers:/{name}"  # conf.py copies it into the site
    if picture:
        (_PAGES / name).with_suffix(".svg").write_text(picture, encoding="utf-8")
    _show(
        f'<figure class="{kind}"><iframe src="{where}" title="{html.escape(title, quote=True)}" '
        'loading="lazy"></iframe>'
        f'<figcaption><a href="{where}" target="_blank">Open it in a tab of its own</a></figcaption></figure>'
    )


def _explorer(explorer):
    from jaxviz import Explorer

    # By its name only the first would be found: anywidget creates a class for each widget.
    _formatter.for_type(Explorer, _explorer)
    is_compiled = "compiled" in (explorer.stage, explorer.beside)
    title = f"The explorer of {explorer.derivation.primal.name}"
    _frame(explorer, title, picture=_thumbnail(explorer), compiled=is_compiled)


def _thumbnail(explorer):
    """The curve of the memory, for the list of programs in the gallery."""
    import jaxviz

    if not explorer.view.headline.peak:
        return ""
    drawing = re.search("<svg.*</svg>", jaxviz.memory(explorer.derivation)._picture(), re.DOTALL)[0]
    return re.sub('viewBox="[^"]*"', 'viewBox="0 38 480 132"', drawing, count=1)  # without title and legend


def _stepper(stepper):
    """The current state. In a notebook the first stepper follows the run, and the others are text."""
    _frame(stepper.widget(), f"A run of {stepper.derivation.primal.name}")


def _time_line(widget):
    """Shows the timeline below the report of a NaN."""
    from jaxviz.features.debugger.widget import StepperWidget

    _formatter.for_type(StepperWidget, _time_line)
    _frame(widget, f"The run of {widget.stepper.derivation.primal.name}, with the birth marked", "explorer time-line")


def _form(exercise):
    from jaxviz.teach import static_form

    _show(re.sub(r'href="(\w+)\.ipynb"', r'href="site:/tutorials/\1.html"', static_form(exercise)))  # see conf.py


def _verdict(verdict):
    """For a solution its code, folded, if that is the answer; other exercises have the answer in their form."""
    if not verdict.is_folded:
        return _show(verdict._repr_html_())
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    from jaxviz.teach import static_fold

    known = get_ipython().user_ns  # noqa: F821
    source = known["In"][-1].partition("\n")[2].strip()  # the first line marks it as a solution
    exercise = known[re.search(r"(\w+)\.solution\(", source)[1]]
    if exercise.form.kind == "code" and not exercise.form.code:  # a puzzle has known answers in its form
        _show(static_fold("A solution", highlight(source, PythonLexer(), HtmlFormatter())))


_formatter.for_type_by_name("jaxviz.features.explorer.widget", "Explorer", _explorer)
_formatter.for_type_by_name("jaxviz.features.debugger.stepper", "Stepper", _stepper)
_formatter.for_type_by_name("jaxviz.features.debugger.widget", "StepperWidget", _time_line)
_formatter.for_type_by_name("jaxviz.teach.exercise", "Exercise", _form)
_formatter.for_type_by_name("jaxviz.teach.exercise", "Verdict", _verdict)
