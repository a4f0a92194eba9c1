"""The page of a run: one HTML file, which downloads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from jaxviz.page.bundle import GRAPHVIZ, MAIN, STEPPER, packed, part_names, script
from jaxviz.page.html import SavedWidget, document, place_of
from jaxviz.report.files import write_file
from jaxviz.report.tables import code_html, format_bytes, printable
from jaxviz.runs.facts import EXPLORER, MEMORY, PROGRAMS
from jaxviz.runs.programs import read_explorer
from jaxviz.runs.report import RunReport, sentence, show
from jaxviz.xla.compiled_memory.report import CompiledMemory

PAGE = "index.html"
MOST = 4
"""How many functions the page has explorers of: those with the largest gradients."""

_STYLE = """
html { color-scheme: light dark; }
body { margin: 0 auto; padding: 1rem 1.25rem 4rem; max-width: 76rem; background: light-dark(#fff, #111418);
  color: light-dark(#1a1d21, #d8dce2); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.25rem; font-weight: 600; line-height: 1.4; margin: .5rem 0 1rem; text-wrap: pretty; }
h2 { font-size: 1rem; margin: 2rem 0 .5rem; }
code { font: .92em ui-monospace, SFMono-Regular, Menlo, monospace; }
h1 code { font-size: .95em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92em; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; vertical-align: top; border-bottom: 1px solid light-dark(#e3e6ea, #2a2f36); }
th { font-weight: 600; color: light-dark(#5a6270, #9aa3b0); }
ol { padding-left: 1.6rem; }
li { margin: .5rem 0; max-width: 62rem; }
p { max-width: 62rem; }
a { color: light-dark(#0b57d0, #8ab4f8); }
.chart { margin-top: 2rem; }
.inside { padding: 0 .9rem .9rem; }
.notes { color: light-dark(#5a6270, #9aa3b0); font-size: .92em; }
details { border: 1px solid light-dark(#d5d9df, #333a43); border-radius: 6px; margin: .6rem 0; }
summary { cursor: pointer; padding: .7rem .9rem; }
summary span { color: light-dark(#5a6270, #9aa3b0); }
details .jaxviz { height: max(560px, 86vh) !important; border-width: 1px 0 0 !important; border-radius: 0 !important; }
svg { max-width: 100%; height: auto; }
"""


def write_page(folder: Path) -> Path:
    """Writes the page of a run into its folder."""
    return write_file(folder / PAGE, page_of(show(folder), folder))


def page_of(run: RunReport, folder: Path) -> str:
    """The page as HTML."""
    explorers, memories = dict(_explorers(run, folder)), dict(_memories(run, folder))
    title = printable(f"{run.first.process.script} · jaxviz", 200)
    parts = {name: packed(name) for name in part_names() if name not in (STEPPER, GRAPHVIZ)} if explorers else {}
    body = "\n".join(_body(run, explorers, memories))
    widgets = {_element(number): widget for number, widget in explorers.items()}
    return document(title, _STYLE, body, widgets, script(MAIN) if explorers else "", parts)


def _explorers(run: RunReport, folder: Path) -> Iterator[tuple[int, SavedWidget]]:
    """The explorers of the functions with the largest gradients, by the numbers of their programs."""
    for f in [f for f in run.functions if f.gradient][:MOST]:
        path = folder / run.first.folder / PROGRAMS / f"{f.program}{EXPLORER}"
        if f.program is not None and path.exists():
            yield f.program, read_explorer(path)[1]


def _element(program: int) -> str:
    """The name of a widget."""
    return f"-{program}"


def _memories(run: RunReport, folder: Path) -> Iterator[tuple[int, CompiledMemory]]:
    """The memory of the compiled programs of the same functions, by the numbers of their programs."""
    for f in run.functions[:MOST]:
        path = folder / run.first.folder / PROGRAMS / f"{f.program}{MEMORY}"
        if f.program is not None and path.exists():
            yield f.program, CompiledMemory.load(path)


def _body(
    run: RunReport, explorers: Mapping[int, SavedWidget], memories: Mapping[int, CompiledMemory]
) -> Iterator[str]:
    yield f"<h1>{code_html(run.summary[:1].upper() + run.summary[1:])}</h1>"
    yield f'<div class="wide">{run.table_of_functions.to_html()}</div>'
    if run.out_of_memory is not None:
        yield f'<div class="wide">{run.out_of_memory.table_of_buffers.to_html()}</div>'
    if run.findings:
        yield "<h2>What to do, the most at stake first</h2><ol>"
        for found in run.findings:
            n = found.program or 0
            explore = f' <a href="#jaxviz{_element(n)}">Explore it</a>' if n in explorers else ""
            compiled = f' <a href="#compiled{_element(n)}">Its memory as compiled</a>' if n in memories else ""
            yield f"<li>{code_html(sentence(found))}{explore}{compiled}</li>"
        yield "</ol>"
    if explorers:
        yield "<h2>Explorers</h2>"
    for f in run.functions:
        if f.program is not None and f.program in explorers:
            about = f"{f.gradient}, which saves {format_bytes(f.nbytes or 0)}"
            yield f"<details><summary><code>{escape(f.name)}</code> <span>{code_html(about)}</span></summary>"
            yield f"{place_of(_element(f.program))}</details>"
    yield f'<div class="wide">{run.table_of_exchanges.to_html()}</div>'
    if memories:
        yield "<h2>In memory as compiled</h2>"
    for f in run.functions:
        if (n := f.program or 0) in memories:
            peak = f"<code>{escape(f.name)}</code> <span>{code_html(memories[n].peak_text)}</span>"
            inside = f'<div class="inside wide" id="compiled{_element(n)}">{memories[n]._repr_html_()}</div>'
            yield f"<details><summary>{peak}</summary>{inside}</details>"
    yield f'<div class="wide chart">{run.picture()}</div>'
    notes = "".join(f"<p>{code_html(note)}</p>" for note in run.notes)
    yield f'<div class="notes">{notes}</div>'
