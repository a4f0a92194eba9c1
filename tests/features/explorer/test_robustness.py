"""Odd programs: everything is shown, or one line says why not."""

import json

import numpy as np
import pytest
from odd_programs import PROGRAMS, many_arguments

import jaxviz
from jaxviz.derivation import STAGES
from jaxviz.features.explorer.columns import view_of
from jaxviz.features.explorer.still import stage_text, summary
from jaxviz.page.html import fit_to_show
from jaxviz.page.schema import decode, encode


@pytest.fixture(params=PROGRAMS, scope="module")
def odd(request):
    f, *args = PROGRAMS[request.param]
    return jaxviz.derive(f, *args)


@pytest.mark.slow
def test_all_of_it_is_shown(odd):
    view = fit_to_show(view_of(odd))
    again = decode(encode(view))
    assert again.stage("primal").error == ""
    for stage in STAGES:
        shown = again.stage(stage)
        assert stage_text(again, stage)
        assert "\n" not in shown.error
        assert shown.error == "" or "Error: " in shown.error
    assert summary(again).startswith("Explorer of ")
    assert "\n" not in again.no_memory
    for column in ("type_nbytes", "residual_nbytes", "buffer_nbytes"):
        assert (np.asarray(again.columns[column]) >= 0).all()


def test_the_switches_say_why_there_are_none(odd):
    explorer = jaxviz.explore(odd)
    explorer._fill_what_if()
    found = json.loads(explorer.what_if)
    if "error" in found:
        assert found["error"].partition("Error: ")[2]
        assert "\n" not in found["error"]
    else:
        assert found["function"]


def test_the_stages_of_a_program_that_can_be_derived_are_jaxs(odd):
    check = view_of(odd).check
    assert check.status in ("agrees", "unknown")


@pytest.mark.slow(sweep=True)
def test_five_thousand_arguments():
    args = {f"a{i}": 1.0 for i in range(5_000)}
    derivation = jaxviz.derive(many_arguments, args)
    view = fit_to_show(view_of(derivation))
    assert decode(encode(view)).stage("backward").error == ""
    assert stage_text(view, "primal").startswith("lambda a:f32[] ")
    assert "d['a4999']" in view.strings
