"""The animation of a gradient as a file: the overview step by step, with the expression that runs and the bytes in
memory.

`widgets/src/panes/motion.ts` shows a gradient in motion on the page, with controls.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle
from PIL import Image

from jaxviz.features.explorer.picture import LEFT, RIGHT, WIDTH, Overview, drawn, line_of
from jaxviz.features.explorer.still import place
from jaxviz.page.schema import ROLES, View
from jaxviz.report.pictures import fitted
from jaxviz.report.tables import format_bytes

FORMATS = (".gif", ".mp4", ".png", ".webp")
_PAUSE_MS = 1500
"""The pause at the end, before it repeats."""
_SHARP = 1.25
_DPI = 100
_FRAMES = 120
_LEAST_MS = 40


def save_animation(view: View, path: str | Path, seconds: float) -> Path:
    """Writes a gradient in motion; see `Explorer.save_animation`."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ValueError(f"an animation is written as {', '.join(FORMATS[:-1])} or {FORMATS[-1]}; got {path.name!r}")
    if not seconds > 0:
        raise ValueError(f"seconds must be positive; got {seconds}")
    if path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise FileNotFoundError(
            "an .mp4 is written by ffmpeg, which was not found: install it (apt install ffmpeg, brew install ffmpeg, "
            "conda install ffmpeg), or write a .gif, .png or .webp"
        )
    scene = Scene(Overview(view))
    frames = [scene.frame(step) for step in scene.steps]
    stays = max(_LEAST_MS, round(1000 * seconds / len(frames)))
    if path.suffix == ".mp4":
        return _write_video(frames, path, stays)
    if path.suffix == ".gif":
        # All frames share the palette of the last one, which has every colour, so that unchanged parts take no bytes.
        colours = frames[-1].quantize(192)
        frames = [frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames]
    stay = [stays] * (len(frames) - 1) + [max(stays, _PAUSE_MS)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=stay, loop=0)
    return path


def _write_video(frames: list[Image.Image], path: Path, stays: int) -> Path:
    """Writes frames, each of which stays for some milliseconds, as a video that all players play: with 8 bits for each
    colour at half the resolution, so that width and height have to be even."""
    width, height = frames[0].size
    shown = [*frames, *frames[-1:] * (max(stays, _PAUSE_MS) // stays)]
    command = [
        "ffmpeg", "-loglevel", "error", "-y", "-f", "rawvideo", "-pixel_format", "rgb24",
        "-video_size", f"{width}x{height}", "-framerate", f"1000/{stays}", "-i", "-",
        "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white,format=yuv420p", "-movflags", "+faststart", str(path),
    ]  # fmt: skip
    done = subprocess.run(command, input=b"".join(f.tobytes() for f in shown), capture_output=True)
    if done.returncode:
        raise OSError(f"ffmpeg could not write {path}: {done.stderr.decode(errors='replace').strip()}")
    return path


class Scene:
    """The overview, of which each frame shows the steps so far.

    Args:
      overview: the overview; its headline makes room for what runs.
    """

    def __init__(self, overview: Overview):
        self.overview = overview
        overview.headline = [overview.headline[0], "", "", ""]
        self.figure = drawn(overview)
        self.figure.set_facecolor("white")
        self.figure.set_dpi(_SHARP * _DPI)
        self.canvas = FigureCanvasAgg(self.figure)
        self.canvas.draw()
        self.background = self.canvas.copy_from_bbox(self.figure.bbox)
        places = [axes.get_position() for axes in self.figure.axes]
        self.top, self.bottom = max(p.y1 for p in places), min(p.y0 for p in places)
        n, totals = len(overview.memory.steps), overview.memory.totals
        changes = {0, n - 1, overview.memory.highest}
        for row in overview.saved:
            changes.update(np.flatnonzero(np.diff(row.nbytes)).tolist() if row.is_code else ())
        even = np.linspace(0, n - 1, min(n, _FRAMES)).round().astype(int).tolist()
        self.steps = sorted({*even, *(changes if len(changes) < _FRAMES else ())})
        self.totals = totals

    def x(self, step: int) -> float:
        """The end of a step, as a share of the width."""
        edges = self.overview.edges
        return float(LEFT + (RIGHT - LEFT) * edges[step + 1] / (edges[-1] or 1)) / WIDTH

    def frame(self, step: int) -> Image.Image:
        """What is to come is paler."""
        self.canvas.restore_region(self.background)
        x, height = self.x(step), self.top - self.bottom
        to_come = Rectangle((x, self.bottom), RIGHT / WIDTH - x, height, facecolor="white", alpha=0.72)
        edge = Rectangle((x - 0.001, self.bottom), 0.002, height, facecolor="black")
        y = self.figure.get_figheight() * _DPI
        texts = [
            self.figure.text(
                8 / WIDTH,
                1 - (27 + 19 * i) / y,
                text,
                fontsize=9,
                va="top",
                parse_math=False,
                weight="bold" if i == 1 else "normal",
            )
            for i, text in enumerate(self.said(step))
        ]
        for patch in (to_come, edge):
            self.figure.add_artist(patch)
        for artist in (to_come, edge, *texts):
            self.figure.draw_artist(artist)
            artist.remove()
        return Image.fromarray(np.asarray(self.canvas.buffer_rgba())).convert("RGB")

    def said(self, step: int) -> tuple[str, str, str]:
        """The pass, the expression that runs, and where it is, with the bytes in memory."""
        view = self.overview.view
        row = int(view.columns["step_row"][step])
        of = lambda name: int(view.columns[f"equation_{name}"][row]) if row >= 0 else -1
        is_again = row >= 0 and ROLES[of("role")] == "recomputation"
        passing = "forward pass" if step < self.overview.turn else "backward pass"
        name = view.strings[of("primitive")] if row >= 0 else ""
        where = [
            name, place(view, of("location")), f"step {step + 1:,} of {len(self.totals):,}",
            f"{format_bytes(int(self.totals[step]))} in memory",
        ]  # fmt: skip
        return (
            passing + ", recomputed for a checkpoint" * is_again,
            fitted(line_of(view, of("location")), 105),
            " · ".join(filter(None, where)),
        )
