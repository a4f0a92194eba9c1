"""The page of a run: one HTML file, which downloads nothing."""

from __future__ import annotations

import html
from pathlib import Path

from jaxviz.report.files import write_file
from jaxviz.report.tables import printable
from jaxviz.runs.report import RunReport, show

PAGE = "index.html"


def write_page(folder: Path) -> Path:
    """Writes the page of a run into its folder."""
    return write_file(folder / PAGE, page_of(show(folder)))


def page_of(run: RunReport) -> str:
    """The page as HTML."""
    title = html.escape(printable(f"{run.first.process.script} · jaxviz", 200))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
</head>
<body>
{run._repr_html_()}
</body>
</html>
"""
