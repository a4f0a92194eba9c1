"""What a live plot sends, and when; its appearance is tested in tests/browser."""

import gc
import json
import threading
import time
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

import jaxviz
from jaxviz.features.probes import widget as live
from jaxviz.features.probes.widget import thinned


def shown(plot):
    return json.loads(plot.shown)


@pytest.mark.slow
def test_it_follows_while_the_program_runs_and_knows_the_end():
    w = jaxviz.watch("h")
    plot = w.live()
    sent = []
    plot.observe(
        lambda change: sent.append((threading.current_thread(), len(json.loads(change.new)["lines"]))), "shown"
    )
    with w:
        assert shown(plot)["lines"] == []
        jaxviz.probe(jnp.ones(3), "h")
        for _ in range(100):
            if sent:
                break
            time.sleep(0.05)
        assert sent[0][1] == 1
        assert sent[0][0] is not threading.main_thread()
        for i in range(300):
            jaxviz.probe(jnp.ones(3) * i, "h")
    assert shown(plot)["isRunning"] is False
    assert shown(plot)["lines"][0]["count"] == 301
    assert len(sent) < 50


def test_its_thread_ends_when_nothing_comes(monkeypatch):
    monkeypatch.setattr(live, "_IDLE", 0.1)
    w = jaxviz.watch("h")
    plot = w.live()
    with w:
        for x in (1.0, 2.0):
            jaxviz.probe(x, "h")
            sender = plot._sender
            assert sender is not None
            sender.join(10)
            assert plot._sender is None


def test_nothing_holds_a_plot_that_is_closed():
    w = jaxviz.watch("h")
    plot = w.live()
    held = weakref.ref(plot)
    plot.close()
    del plot
    gc.collect()
    assert held() is None
    with w:
        jaxviz.probe(1.0, "h")
    assert w["h"].count == 1


@pytest.mark.parametrize("n", [1, 10, 400, 401, 5000])
def test_thinning_keeps_what_stands_out(n):
    ys = np.sin(np.arange(n) / 50.0)
    ys[n // 2] = 9.0
    ys[n // 3] = -9.0
    keep = thinned(ys, 400)
    assert len(keep) <= 400
    assert keep[0] == 0
    assert keep[-1] == n - 1
    assert ys[keep].max() == ys.max()
    assert ys[keep].min() == ys.min()
    ys[n // 2] = np.nan
    assert np.isnan(ys[thinned(ys, 400)]).any()


def test_a_notebook_shows_the_plot_the_table_and_the_text():
    w = jaxviz.watch("h")
    with w:
        jaxviz.probe(1.0, "h")
    shown_as = w._repr_mimebundle_()
    bundle = shown_as[0] if isinstance(shown_as, tuple) else shown_as
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/plain"] == str(w)
    assert "<table" in w._repr_html_()
