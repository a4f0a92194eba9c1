"""The documentation site: `make docs`.

The code of how-tos, gallery and tutorials runs during the build, so their output is real; explorers and exercises work
in the pages (`kernel_startup.py`). Outputs are kept for the next build (`outputs.py`). With JAXVIZ_DOCS_RUN=0 nothing
is run.
"""

import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]  # for autodoc, and through PYTHONPATH for the kernels
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))

import docstrings  # noqa: E402
import index_page  # noqa: E402
import minutes  # noqa: E402
import outputs  # noqa: E402
import running  # noqa: E402
from jupyter_cache import get_cache  # noqa: E402
from lite import build as lite  # noqa: E402
from public_names import public_names  # noqa: E402
from sphinx.util import logging  # noqa: E402

import jaxviz  # noqa: E402
import jaxviz.page.bundle  # noqa: E402
import jaxviz.teach  # noqa: E402

project = "jaxviz"
author = "The jaxviz authors"
copyright = "the jaxviz authors, Apache-2.0"
release = version = jaxviz.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = [
    "_build",
    "conf.py",
    "docstrings.py",
    "index_page.py",
    "kernel_startup.py",
    "lite",
    "minutes.py",
    "outputs.py",
    "pictured.py",
    "public_names.py",
    "running.py",
    "screenshots.py",
    "**/.ipynb_checkpoints",
]
source_suffix = {".md": "myst-nb", ".py": "myst-nb"}
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
root_doc = "index"
nitpicky = False
suppress_warnings = ["myst.header"]  # the README's sections are not the site's
is_run = os.environ.get("JAXVIZ_DOCS_RUN") != "0"
if not is_run:
    suppress_warnings += ["myst-nb.lexer"]  # the language of cells that are not run is unknown

# --- the tutorials, which are in another folder -----------------------------------------------------------------------

TUTORIALS = HERE / "tutorials"
# What a page shows of each kind of cell: for an exercise a form with hints and the answer, and for others nothing that
# gives the answer
# away.
SHOWN = {
    "exercise": "remove-input",
    "unseen": "remove-input",
    "solution": "remove-input",
    "answer": "remove-output",
    "check": "remove-cell",
}
# Built after the pages, so that it is no link that Sphinx could check.
IN_THE_BROWSER = (
    '<a href="../{}">Run it in your browser</a>: Python and the notebook are loaded from this site, and nothing is '
    "installed. The start takes up to half a minute."
)


def _shown(found):
    return f'{found[1]}"{SHOWN[found[2]]}", "{found[2]}"'


_kept = sorted((ROOT / "notebooks").glob("*.py"))
for gone in {p.name for p in TUTORIALS.glob("*.py")} - {p.name for p in _kept}:
    (TUTORIALS / gone).unlink()
for path in _kept:
    text = re.sub(
        r"\((\w+)\.ipynb\)", r"(\1.py)", path.read_text(encoding="utf-8")
    )  # they link to each other, here as pages
    text = re.sub(rf'^(# %%.*tags=\[)"({"|".join(SHOWN)})"', _shown, text, flags=re.MULTILINE)
    if path.stem in lite.NOTEBOOKS:
        text = text.replace("\n\n# %%\n", f"\n#\n# {IN_THE_BROWSER.format(lite.page_of(path.stem))}\n\n# %%\n", 1)
    text = re.sub(r"^# %% (?=jupyter=.*source_hidden)", '# %% tags=["hide-input"] ', text, flags=re.MULTILINE)
    copy = TUTORIALS / path.name
    if not copy.exists() or copy.read_text(encoding="utf-8") != text:
        copy.write_text(text, encoding="utf-8")

# --- code that is run -------------------------------------------------------------------------------------------------

BUILD = HERE / "_build"
OUTPUTS = outputs.folder(ROOT, BUILD) if is_run else BUILD
nb_execution_mode = "cache" if is_run else "off"
nb_execution_cache_path = str(OUTPUTS / "cells")
if is_run:
    get_cache(
        nb_execution_cache_path
    ).list_cache_records()  # creates it here, and not in two processes at the same time
nb_execution_show_traceback = True  # an error is a warning with its traceback, and warnings are errors
nb_execution_timeout = 600  # of a cell, in seconds: long enough for a machine with other work
nb_execution_in_temp = True
nb_merge_streams = True
nb_code_prompt_show, nb_code_prompt_hide = "Show the code", "Hide the code"
nb_mime_priority_overrides = [
    ("*", "application/vnd.jupyter.widget-view+json", None)
]  # for other widgets, such as live plots, their text
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # nothing is loaded from elsewhere; see kernel_startup.py

# Each kernel runs kernel_startup.py first, which saves its explorers in their folder.
_profile = BUILD / "ipython" / "profile_default" / "startup"
_profile.mkdir(parents=True, exist_ok=True)
shutil.copy(HERE / "kernel_startup.py", _profile / "00_site.py")
# Kernels warn that they are not encrypted, though they are reachable only from this machine.
(_profile.parent / "ipython_kernel_config.py").write_text('c.IPKernelApp.log_level = "ERROR"\n')
os.environ |= {
    "IPYTHONDIR": str(BUILD / "ipython"),
    "JAXVIZ_DOCS_PAGES": str(OUTPUTS / "explorers"),
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",
    "JAX_COMPILATION_CACHE_DIR": str(BUILD / "compiled"),  # most pages compile the same small programs
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}

# --- text -------------------------------------------------------------------------------------------------------------

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
html_math_renderer = "mathml"  # browsers render it themselves; MathJax would have to be loaded
myst_heading_anchors = 3
default_role = "code"  # docstrings have names in single backquotes
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = docstrings.SECTIONS
add_module_names = False
python_maximum_signature_line_length = 100

# --- links ------------------------------------------------------------------------------------------------------------

# Links within the site are checked by each build. `make docs-links` follows the others, which needs a network.
linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_anchors = False

# --- looks ------------------------------------------------------------------------------------------------------------

html_theme = "furo"
html_title = f"jaxviz {release}"
_scripts = BUILD / "scripts"
_scripts.mkdir(exist_ok=True)
(_scripts / "exercise.js").write_text(jaxviz.teach.static_script(), encoding="utf-8")
(_scripts / "charts.js").write_text(jaxviz.page.bundle.charts_script(), encoding="utf-8")
html_static_path = ["_static", str(_scripts)]
html_favicon = "_static/icon.svg"
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "search_scores.js")
html_js_files = ["site.js", "exercise.js", "charts.js"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "github-dark"


def _signature(app, what, name, obj, options, signature, returns):
    """Shows defaults that are not Python, such as `<factory>`, as `...`:
    Sphinx only links the types of signatures that it can parse."""
    return (re.sub(r"= <[^<>]*>", "= ...", signature), returns) if signature else None


def _minutes_said(app, docname, source):
    """Computes how long each tutorial takes, on the page that lists them."""
    if docname == "tutorials/index":
        source[0] = minutes.with_minutes(source[0], ROOT / "notebooks")


def _compiles_itself(app, docname, source):
    """For the kernel of this page, which is started next, in the same process."""
    os.environ |= running.settings_for(source[0])


def _run_first(app, env, docnames):
    running.run_pages(app, docnames)


REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["metadata"]["hooks"][
    "custom"
]["repository"].rstrip("/")


def _ways_to_try(app, docname, source):
    """The front page says how to try jaxviz, and each tutorial where to run it, once the repository has an address."""
    folder, _, name = docname.rpartition("/")
    if docname == "index":
        source[0] = source[0].replace("{try}", index_page.ways_to_try(REPOSITORY))
    if folder == "tutorials" and name in {p.stem for p in _kept} and REPOSITORY:
        below = f"\n#\n# [Run it on Binder]({index_page.on_binder(REPOSITORY, name)})"
        source[0] = re.sub("^# # .*$", lambda title: title[0] + below, source[0], count=1, flags=re.MULTILINE)


THUMBNAIL = re.compile(r"explorers:/([\w-]+)\.html")


def _thumbnails(app, pagename, templatename, context, doctree):
    """In the gallery, a picture of the memory beside each program: that of the page's first explorer."""
    if pagename != "gallery/index":
        return
    for name in app.env.toctree_includes[pagename]:
        explorer = THUMBNAIL.search(app.env.get_doctree(name).astext())
        picture = OUTPUTS / "explorers" / f"{explorer[1]}.svg" if explorer else None
        if picture and picture.exists():
            link = f'href="{name.rpartition("/")[2]}.html"'
            context["body"] = re.sub(
                rf"<li><p>(<a [^>]*{re.escape(link)}[^>]*>)",
                lambda found: f"<li><p>{found[1]}{picture.read_text(encoding='utf-8')}",
                context["body"],
            )


def _depends_on_notebooks(app, env, added, changed, removed):
    return ["tutorials/index"] if any(name.startswith("tutorials/") for name in {*added, *changed, *removed}) else []


def _explorers_found(app, pagename, templatename, context, doctree):
    """Copies the explorers of a page into the site, and fixes their URLs, and those of notebooks, in the page."""
    for name in set(re.findall(r"explorers:/([\w-]+\.html)", context.get("body", ""))):
        (app.outdir / "explorers").mkdir(exist_ok=True)
        shutil.copy(OUTPUTS / "explorers" / name, app.outdir / "explorers" / name)
    if "body" in context:
        up = "../" * pagename.count("/")
        context["body"] = (
            context["body"].replace("explorers:/", f"{up}explorers/").replace('href="site:/', f'href="{up}')
        )


def _all_in_the_reference(app, env):
    """Warns of public names that the reference lacks."""
    for name in sorted({*public_names(ROOT)} - env.get_domain("py").objects.keys()):
        logging.getLogger(__name__).warning("%s is not in the reference", name)


def _mathml(translator, node):
    translator.body.append(str(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block))))
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (_mathml, None), (_mathml, None))
    app.connect("source-read", _minutes_said)
    app.connect("source-read", _ways_to_try)
    app.connect("source-read", _compiles_itself)
    if is_run:
        app.connect("env-before-read-docs", _run_first)
    app.connect("env-get-outdated", _depends_on_notebooks)
    app.connect("html-page-context", _explorers_found)
    app.connect("html-page-context", _thumbnails)
    app.connect("env-check-consistency", _all_in_the_reference)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", docstrings.before_napoleon, priority=400)  # napoleon has 500
    app.connect("autodoc-process-docstring", docstrings.after_napoleon, priority=600)
