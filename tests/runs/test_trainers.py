"""Trainers as the documentation of libraries writes them: unmodified, each prints what it prints without `jaxviz run`,
and the function with the largest gradient is named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import jaxviz

TRAINERS = Path(__file__).with_name("trainers")
STEPS = {
    "brax_apg": ("training_step", "gradient of `loss` in `policy_params`"),
    "diffrax_neural_ode": ("make_step", "gradient of `grad_loss` in `model`"),
    "equinox_mlp": ("make_step", "gradient of `loss_fn` in `model`"),
    "equinox_rnn": ("make_step", "gradient of `compute_loss` in `model`"),
    "flax_language_model": ("train_step", "gradient of `loss_fn` in `p`"),
    "flax_mnist": ("apply_model", "gradient of `loss_fn` in `params`"),
    "flax_nnx": ("train_step", "gradient of `loss_fn` in `model`"),
    "haiku_mnist": ("update", "gradient of `loss` in `params`"),
    "jax_md_simulation": ("run", "gradient of `<lambda>` in `R`"),
    "molecular_dynamics": ("simulate", "gradient of `energy` in `R`"),
    "numpyro_nuts": ("_fori_collect_loop", "gradient of `potential_energy` in `params`"),
    "numpyro_svi": ("body_fn", "gradient of `loss_fn` in `params`"),
    "optax_lbfgs": ("step", "gradient of `fun` in `w`"),
    "policy_gradient": ("train_epoch", "gradient of `loss` in `params`"),
}
"""The function with the largest gradient of each, and that gradient."""
LIBRARIES = ("brax", "flax", "equinox", "haiku", "jax_md", "numpyro", "diffrax", "optimistix")


def run(name, folder, *command):
    words = [sys.executable, *command, str(TRAINERS / f"{name}.py")]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True, env=dict(os.environ))


def needs(name):
    library = next((x for x in LIBRARIES if name.startswith(x)), None)
    if library is not None:
        pytest.importorskip(library, reason="the library is not in this environment")
    pytest.importorskip("optax", reason="the library is not in this environment")


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("name", STEPS)
def test_a_trainer_runs_as_it_is_and_its_step_is_named(name, tmp_path):
    needs(name)
    plain = run(name, tmp_path)
    done = run(name, tmp_path, "-m", "jaxviz", "run", "--budget", "900s")
    assert done.stdout == plain.stdout
    found = jaxviz.show(tmp_path / "jaxviz-run")
    assert found.largest is not None, str(found)
    assert (found.largest.name, found.largest.gradient) == STEPS[name]
    assert found.first.process.problems == ()
    assert "<module>" not in str(found)
    assert (tmp_path / "jaxviz-run" / "index.html").stat().st_size < 3 << 20


@pytest.mark.slow(sweep=True)
def test_a_gradient_that_is_not_followed_is_not_denied(tmp_path):
    """BFGS in Optimistix linearizes and transposes."""
    needs("optimistix_fit")
    run("optimistix_fit", tmp_path, "-m", "jaxviz", "run")
    found = jaxviz.show(tmp_path / "jaxviz-run")
    assert {f.name: bool(f.not_known) for f in found.functions} == {"least_squares": False, "minimise": True}
