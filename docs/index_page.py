"""The project's page on a package index: its URLs, and the README with links and pictures that work there.

hatchling calls this during each build. The URL of the repository is in `pyproject.toml`, as `repository` under
`tool.hatch.metadata.hooks.custom`; while it is empty there are no URLs, and the page has neither pictures nor links
into the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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
