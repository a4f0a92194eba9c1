"""`jaxviz.doctor()` and `jaxviz doctor`: the report about an environment, and about everything that may be missing."""

import importlib.metadata as metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import transcripts

import jaxviz
from jaxviz.cli import main
from jaxviz.features import doctor as module


def doctor_of_a_process(**variables):
    """The exit status and report of `jaxviz doctor --json` in a separate process."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "CUDA_"))}
    done = subprocess.run(
        [sys.executable, "-m", "jaxviz", "doctor", "--json"], env={**env, "JAX_PLATFORMS": "cpu", **variables},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
@transcripts.of("doctor")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


def test_the_command_fails_if_there_is_a_problem(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(module, "_PACKAGE", tmp_path / "jaxviz")
    assert main(["doctor"]) == 1
    assert "1 problem: widget bundle" in capsys.readouterr().out


@pytest.mark.parametrize(("by", "met_by"), [("jax", "jaxviz-lab"), ("jaxviz-lab", "jax")])
def test_what_two_distributions_need_is_listed_once(monkeypatch, by, met_by):
    needs = {"jaxviz-lab": {"jax": ""}, "jax": {}}
    needs[by]["jaxlib"], needs[met_by]["jaxlib"] = "<0", ">=0"
    monkeypatch.setattr(module, "_requirements", needs.get)
    (row,) = (f for f in module._versions() if f.what == "jaxlib")
    assert row.state == "fault"  # of the two that which does not fit
    assert row.advice.startswith(f"{by} needs jaxlib <0")


@pytest.mark.slow
def test_all_is_here_that_the_tests_run_with():
    report = jaxviz.doctor()
    assert report.ok, report
    assert "everything it needs is installed" in str(report)
    assert report["jax"].found == jax.__version__
    assert report["anywidget"].found == metadata.version("anywidget")
    assert report["backend"].found.startswith("cpu")
    assert report["devices"].found.startswith(f"{jax.device_count()} devices")
    assert report["widget bundle"].state == "ok"
    assert metadata.version("anywidget") in report["lab extension anywidget"].found
    assert "numpy" in report
    assert "sphinx" not in report  # extras are optional
    with pytest.raises(KeyError, match="no check 'node'"):
        report["node"]


def test_it_works_where_the_other_project_has_written_over_the_package(monkeypatch):
    monkeypatch.setattr(
        metadata, "version", lambda name, real=metadata.version: "9.9" if name == "jaxviz-lab" else real(name)
    )
    doctor = jaxviz.doctor
    monkeypatch.delattr(jaxviz, "__version__")
    assert doctor()["jaxviz"].found == "9.9"


def test_the_extensions_that_jupyterlab_loads(monkeypatch, tmp_path):
    what = "lab extension anywidget"
    config = tmp_path / "config" / "labconfig"
    config.mkdir(parents=True)
    (config / "page_config.json").write_text('{"disabledExtensions": {"anywidget": true}}')
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(config.parent))
    report = jaxviz.doctor()
    assert [f.what for f in report.faults] == [what]
    assert "jupyter labextension enable anywidget" in report[what].advice

    monkeypatch.delenv("JUPYTER_CONFIG_DIR")
    shadow = tmp_path / "share" / "labextensions" / "anywidget"
    shadow.mkdir(parents=True)
    (shadow / "package.json").write_text('{"name": "anywidget", "version": "0.1.0", "jupyterlab": {}}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share"))
    report = jaxviz.doctor()
    assert [f.what for f in report.faults] == [what]
    assert str(shadow) in report[what].advice
    assert metadata.version("anywidget") in report[what].advice

    monkeypatch.setattr("jupyter_core.paths.jupyter_path", lambda *parts: [str(tmp_path / "nowhere")])
    assert {f.what for f in jaxviz.doctor().faults} == {what, "lab extension @jupyter-widgets/jupyterlab-manager"}


def test_the_setting_that_saves_widgets(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTERLAB_SETTINGS_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr("jupyter_core.paths.SYSTEM_CONFIG_PATH", [])
    monkeypatch.setattr("jupyter_core.paths.ENV_CONFIG_PATH", [])
    found = jaxviz.doctor()["lab setting saveState"]
    assert (found.state, found.found) == ("note", "off")
    assert "Save Widget State Automatically" in found.advice
    # As configured by `make lab` and Binder.
    given = tmp_path / "config" / "labconfig" / "default_setting_overrides.json"
    given.parent.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[2] / "binder" / "lab_settings.json", given)
    assert jaxviz.doctor()["lab setting saveState"].state == "ok"
    # The user's own setting takes precedence.
    own = tmp_path / "own" / "@jupyter-widgets" / "jupyterlab-manager" / "plugin.jupyterlab-settings"
    own.parent.mkdir(parents=True)
    own.write_text('{"saveState": false}')
    assert jaxviz.doctor()["lab setting saveState"].found == "off"


@pytest.mark.slow(sweep=True)
def test_a_clean_process_has_no_flags():
    """No flag is reported if none is set, so our idea of each default is JAX's."""
    status, told = doctor_of_a_process()
    assert (status, told["ok"]) == (0, True), told
    assert not [f for f in told["findings"] if f["part"] == "flags"]


@pytest.mark.slow(sweep=True)
def test_flags_that_are_set():
    status, told = doctor_of_a_process(
        JAX_ENABLE_X64="1", JAX_DEBUG_NANS="1", JAX_DISABLE_JIT="1", JAX_NUMPY_DTYPE_PROMOTION="strict",
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )  # fmt: skip
    assert status == 0
    flags = {f["what"]: f["found"] for f in told["findings"] if f["part"] == "flags"}
    assert flags == {
        "jax_enable_x64": "True", "jax_debug_nans": "True", "jax_disable_jit": "True",
        "jax_numpy_dtype_promotion": "strict",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }  # fmt: skip
    assert [f["found"] for f in told["findings"] if f["what"] == "devices"] == ["2 devices, cpu:0 to cpu:1 (cpu)"]


@pytest.mark.slow(sweep=True)
def test_a_platform_that_is_not_there():
    status, told = doctor_of_a_process(JAX_PLATFORMS="nowhere")
    assert status == 1
    (backend,) = (f for f in told["findings"] if f["what"] == "backend")
    assert "JAX is set to use nowhere" in backend["advice"]
    assert "devices" not in {f["what"] for f in told["findings"]}


def test_every_flag_that_is_told_of_is_one_of_jax():
    known = {name for name in module._FLAGS if hasattr(jax.config, name) or name in jax.config.values}
    assert set(module._FLAGS) - known <= {"jax_custom_jvp3"}  # only in newer versions
