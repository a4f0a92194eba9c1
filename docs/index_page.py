"""What depends on the address of the repository: the project's page on a package index, and the links of the site with
which to try jaxviz.

hatchling calls this during each build of a package, and `conf.py` during each build of the site. The URL of the
repository is in `pyproject.toml`, as `repository` under `tool.hatch.metadata.hooks.custom`; while it is empty there
are no URLs, the page has neither pictures nor links into the repository, and the site has no links to Binder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^):\s]+)\)")


def page_of(readme: str, repository: str) -> str:
    """The README with relative links resolved to the repository; without these links and
    pictures if its URL is unknown."""

    def led(link: re.Match[str]) -> str:
        image, text, path = link["image"], link["text"], link["path"]
        if not repository:
            return "" if image else text
        return f"{image}[{text}]({repository}/{'raw' if image else 'blob'}/main/{path})"

    return _LINK.sub(led, readme)


def addresses(repository: str) -> dict[str, str]:
    if not repository:
        return {}
    return {
        "Repository": repository,
        "Documentation": f"{repository}/blob/main/docs/index.md",
        "Changes": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def on_binder(repository: str, notebook: str) -> str:
    """The address at which Binder opens a notebook of the repository."""
    github, _, name = repository.rpartition("github.com/")
    source = f"gh/{name}" if github else f"git/{quote(repository, safe='')}"
    return f"https://mybinder.org/v2/{source}/main?urlpath={quote(f'lab/tree/notebooks/{notebook}.ipynb', safe='')}"


def ways_to_try(repository: str) -> str:
    """The front page's list of what one can do at once; what needs an address is left out while there is none."""
    ways = [
        "[Look around in the gradients of twelve known programs](gallery/index.md), on this site: attention, a U-Net, "
        "a Kalman filter, and more.",
        "[Answer questions on your first gradient](tutorials/00_first_look.py): your answers are checked on the page.",
    ]
    ways.append(
        "[Write a gradient of your own](tutorials/24_a_tape.py), in a notebook that runs in your browser: nothing is "
        "installed."
    )
    if repository:
        ways.append(f"[Run the notebooks on Binder]({on_binder(repository, '00_first_look')}), with nothing installed.")
    ways.append("[Install it](start.md): `pip install jaxviz-lab`.")
    return "\n".join(f"- {way}" for way in ways)


def get_metadata_hook() -> type:
    """The class that hatchling looks for; hatchling is only installed in a build."""
    from hatchling.metadata.plugin.interface import MetadataHookInterface

    class IndexPage(MetadataHookInterface):  # type: ignore[misc]
        def update(self, metadata: dict[str, Any]) -> None:
            repository = str(self.config.get("repository", "")).rstrip("/")
            text = page_of((Path(self.root) / "README.md").read_text(encoding="utf-8"), repository)
            metadata["readme"] = {"content-type": "text/markdown", "text": text}
            metadata["urls"] = addresses(repository)

    return IndexPage
