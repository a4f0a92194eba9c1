"""A file is written whole or not at all, and errors name it."""

import errno
import os
import stat

import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.report.files import write_file

FULL = "/dev/full"


def loss(x):
    return jnp.sum(jnp.tanh(x))


X = jnp.ones(3)


def test_text_and_bytes_replace_what_was_there_and_keep_its_permissions(tmp_path):
    path = tmp_path / "loss.html"
    assert write_file(path, "ä\n") == path
    assert path.read_bytes() == "ä\n".encode()
    path.chmod(0o640)
    write_file(str(path), b"other")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"other", 0o640)
    assert os.listdir(tmp_path) == ["loss.html"]


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path):
    link, target = tmp_path / "link", tmp_path / "target"
    target.write_text("before")
    link.symlink_to(target)
    write_file(link, "after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    assert write_file(os.devnull, "text").exists()


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "memory.json"
    path.write_text("before")

    def half(self, data):
        with open(self, "wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(type(path), "write_bytes", half)
    with pytest.raises(OSError, match=r"No space left on device: '.*memory\.json'"):
        write_file(path, "after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["memory.json"]


SAVE = {
    "explorer": lambda path: jaxviz.explore(loss, X).save_html(path),
    "stepper": lambda path: jaxviz.step(loss, X).widget().save_html(path),
    "picture": lambda path: jaxviz.draw(loss, X).save_svg(path),
    "compiled memory": lambda path: jaxviz.compiled_memory(loss, X).save(path),
}


@pytest.mark.parametrize("what", SAVE)
@pytest.mark.parametrize("path", [FULL, "/proc/jaxviz.html", "no/such/folder/jaxviz.html"])
def test_errors_name_the_file(what, path):
    if path.startswith("/") and not os.path.exists(os.path.dirname(path) if "html" in path else path):
        pytest.skip("only on Linux")
    with pytest.raises(OSError, match=r"'[^']*'$") as caught:
        SAVE[what](path)
    assert caught.value.filename == path
