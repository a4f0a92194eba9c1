"""The widget's Python side: its traits, when it derives, and what it saves."""

import base64
import functools
import gc
import gzip
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import traitlets

import jaxviz
from jaxviz.features.explorer import sent as sending
from jaxviz.features.explorer import widget as module
from jaxviz.features.explorer.columns import view_of
from jaxviz.page import bundle
from jaxviz.page.schema import COLUMNS, decode, to_json

STATIC = Path(jaxviz.__file__).parent / "static"


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w))  # a comment of mine


@pytest.fixture
def explorer():
    return jaxviz.explore(loss, jnp.ones((3, 3)), jnp.ones((2, 3)))


def test_nothing_is_derived_before_it_is_displayed(explorer):
    assert explorer.payload == b""
    assert "linearized" not in vars(explorer.derivation)
    shown = explorer._repr_mimebundle_()
    shown = shown[0] if isinstance(shown, tuple) else shown
    assert "application/vnd.jupyter.widget-view+json" in shown
    assert shown["text/plain"].startswith("Explorer of the gradient of `loss` in `w` on cpu:0")
    assert decode(explorer.payload).title == "gradient of `loss` in `w`"


def test_the_collector_waits_until_the_page_has_what_it_asked_for(explorer, monkeypatch):
    enabled = []
    monkeypatch.setattr(sending, "pack", lambda block, pack=sending.pack: enabled.append(gc.isenabled()) or pack(block))
    explorer._repr_mimebundle_()
    explorer._work("check", lambda _: enabled.append(gc.isenabled()))
    assert enabled == [False, False]
    assert gc.isenabled()


def test_the_browser_may_ask_for_the_payload_and_a_failure_reaches_it(explorer, monkeypatch):
    same = jaxviz.explore(explorer.derivation)
    same._answer(same, "fill", [])
    assert decode(same.payload).title == "gradient of `loss` in `w`"

    def fails(*args, **kwargs):
        raise RuntimeError("no luck\n\nmore")

    monkeypatch.setattr(module, "ViewMaker", fails)
    with pytest.raises(RuntimeError):
        explorer._answer(explorer, "fill", [])
    assert explorer.failure == "RuntimeError: no luck"


def test_the_selected_equation_is_at_hand(explorer):
    assert explorer.equation is None
    explorer.selected = "backward:1"
    assert explorer.equation is [e for _, e in explorer.derivation.backward.walk()][1]


@pytest.mark.parametrize(
    ("trait", "value", "message"),
    [
        ("selected", "backward:999", "backward has .*, numbered from 0"),
        ("selected", "sideways:1", "write stage:number, such as 'backward:12'"),
        ("selected", "backward", "write stage:number"),
        ("stage", "sideways", "'sideways' is not a stage; there are primal, jvp, forward, linear, backward, compiled"),
        ("beside", "forward+compiled", "'compiled' is one program of several stages"),
        ("stage", "", "show at least one stage"),
        ("beside", "forward+up", "'up' is not a stage"),
    ],
)
def test_a_wrong_value_is_refused_with_what_to_write(explorer, trait, value, message):
    with pytest.raises(traitlets.TraitError, match=message):
        setattr(explorer, trait, value)


def test_a_page_holds_what_is_shown_and_what_is_selected(explorer, tmp_path):
    explorer.stage, explorer.beside, explorer.selected = "forward", "linear+backward", "forward:0"
    state = json.loads(packed(explorer.save_html(tmp_path / "loss.html"), "state"))
    assert (state["stage"], state["beside"], state["selected"]) == ("forward", "linear+backward", "forward:0")
    assert json.loads(state["what_if"])["function"] == "loss"
    tried = json.loads(state["tried"])
    assert tried["plan"] in tried["trades"]  # the advice is of this plan, and its switch says what it would change


@pytest.mark.slow
def test_the_speed_of_the_device_is_measured_once_in_the_type_of_the_products(tmp_path):
    e = jaxviz.explore(lambda w, x: jnp.sum((x @ w).astype(jnp.float32)), *2 * [jnp.ones((3, 3), jnp.bfloat16)])
    e._answer(e, "speed", [])
    speed = json.loads(e.speed)
    assert (speed["device"], speed["dtype"]) == ("cpu:0", "bfloat16")
    assert min(speed["flops"], speed["bandwidth"]) > 1e6
    before = e.speed
    e._answer(e, "speed", [])
    assert e.speed == before
    assert json.loads(packed(e.save_html(tmp_path / "e.html"), "state"))["speed"] == before


def test_the_page_of_a_large_function_does_not_wait_for_advice(explorer, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxviz.features.explorer.widget._ADVISED", 1)
    state = lambda: json.loads(packed(explorer.save_html(tmp_path / "loss.html"), "state"))
    assert state()["advice"] == ""
    explorer.complete()
    assert json.loads(state()["advice"])["cards"]


def packed(page, name):
    """The content that a saved page has under a name."""
    block = re.search(rf'id="jaxviz-{name}">"([^"]*)"', page.read_text()).group(1)
    return gzip.decompress(base64.b64decode(block))


def test_a_page_without_source_holds_none(explorer, tmp_path):
    assert b"a comment of mine" in packed(explorer.save_html(tmp_path / "loss.html"), "payload")
    page = explorer.save_html(tmp_path / "loss.html", source=False, compiled=True)
    without = packed(page, "payload") + packed(page, "state")
    assert b"a comment of mine" not in without
    assert str(tmp_path.parent).encode() not in without
    assert __file__.rsplit("/", 1)[0].encode() not in without


def test_the_switches_are_made_when_they_are_asked_for(explorer):
    assert explorer.what_if == ""
    explorer._handle_custom_msg("what if", [])
    table, tried = json.loads(explorer.what_if), json.loads(explorer.tried)
    assert table["present"] == "||"
    assert tried["trades"][""][1] == explorer.derivation.residuals.saved.nbytes
    assert tried["trades"]["0||"] != tried["trades"][""]
    while_loop = jaxviz.explore(lambda x: jax.lax.while_loop(lambda x: x < 9.0, lambda x: x * 2.0, x), 1.0)
    while_loop._handle_custom_msg("what if", [])
    assert "ReverseModeError" in json.loads(while_loop.what_if)["error"]


def test_a_setting_is_worked_out_when_it_is_asked_for(explorer):
    explorer._handle_custom_msg("what if", [])
    n_values = len(json.loads(explorer.what_if)["values"]["group"])
    key = f"0||{n_values - 1}"
    assert explorer.drawn == explorer.written == ""
    explorer._handle_custom_msg({"work": "try", "keys": [key, "nonsense"], "draw": key, "code": key}, [])
    tried, drawn, written = (json.loads(text) for text in (explorer.tried, explorer.drawn, explorer.written))
    assert tried["asked"] == 3
    assert "is not the key" in tried["failed"]["nonsense"]
    assert drawn["key"] == written["key"] == key
    assert "+@partial(jax.checkpoint, policy=SAVED)" in written["text"]
    most = lambda step: sum(n for n, _, born, last, *_ in drawn["buffers"] if born <= step <= last)
    assert max(map(most, range(len(drawn["what"])))) == tried["trades"][key][0]
    assert tried["plan"] is None
    explorer._handle_custom_msg({"work": "try", "keys": [], "compile": key}, [])
    line, asked = json.loads(explorer.line), json.loads(explorer.tried)["asked"]
    assert line["key"] == key
    memory = jaxviz.compiled_memory(explorer._switches.derived(key))
    assert max(line["total"]) == memory.peak_nbytes
    assert (line["turn"], len(line["total"])) == (memory.turn, len(memory.timeline))
    assert asked == 4
    explorer._handle_custom_msg({"work": "try", "keys": [], "plan": True}, [])
    tried = json.loads(explorer.tried)
    assert tried["plan"] in tried["trades"]


def test_switches_that_are_set_go_with_a_page(explorer, tmp_path):
    explorer.switches = "0||"
    state = json.loads(packed(explorer.save_html(tmp_path / "loss.html"), "state"))
    assert state["switches"] == "0||"
    assert json.loads(state["drawn"])["key"] == "0||"
    tried = json.loads(state["tried"])["trades"]
    assert {"", "||", "0||"} <= set(tried)
    assert any(key.startswith("0|0") for key in tried)  # including settings that are one switch away
    with pytest.raises(traitlets.TraitError, match="is not the key of a setting"):
        explorer.switches = "7||"
    explorer.update(other, jnp.ones((3, 3)), jnp.ones((2, 3)))
    assert explorer.switches == explorer.tried == explorer.drawn == ""


def test_the_program_is_compiled_when_it_is_asked_for(explorer):
    assert explorer.compiled == ""
    explorer.stage, explorer.beside = "forward", "compiled"
    assert explorer.compiled == ""
    explorer._handle_custom_msg("compile", [])
    made = json.loads(explorer.compiled)
    assert "tanh" in made["stablehlo"]["text"]
    assert "ENTRY" in made["hlo"]["text"]


def test_a_program_that_cannot_be_lowered_says_why(monkeypatch):
    failing = jaxviz.explore(lambda x: x * 2.0, 1.0)
    monkeypatch.setattr("jaxviz.xla.explorer_stage.compiled.compiled", lambda *_: 1 / 0)
    failing._handle_custom_msg("compile", [])
    assert json.loads(failing.compiled) == {"error": "ZeroDivisionError: division by zero", "block": ""}


def test_what_is_compiled_can_be_stopped_and_what_jax_hands_to_xla_stays(explorer, monkeypatch, sent):
    at_hand = []

    def interrupted(found, block):
        at_hand.append(json.loads(explorer.lowered))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("jaxviz.xla.explorer_stage.compiled.compiled", interrupted)
        explorer._handle_custom_msg("compile", [])
    assert sent[-1][0] == {"work": "compile", "stopped": True}
    assert "tanh" in at_hand[0]["stablehlo"]["text"]
    assert explorer.compiled == ""
    assert json.loads(explorer.lowered) == at_hand[0]
    explorer._handle_custom_msg("compile", [])
    assert json.loads(explorer.compiled)["stablehlo"] == at_hand[0]["stablehlo"]
    assert explorer.lowered == ""
    assert ({"work": "compile", "what": "compiling", "done": 0, "total": 0, "stop": ""}, []) in sent


def test_one_block_alone_is_compiled_where_it_is_asked_for_and_all_when_that_is():
    def stack(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    shown = jaxviz.explore(stack, [jnp.ones((3, 3))] * 12, jnp.ones((2, 3)))
    shown._handle_custom_msg("compile one", [])
    assert json.loads(shown.compiled)["isBlock"]
    shown._handle_custom_msg("compile", [])
    made = json.loads(shown.compiled)
    assert not made["isBlock"]
    assert "12 identical blocks" in made["block"]


def test_a_page_has_the_compiled_program_where_it_is_asked_for_or_shown(explorer, tmp_path):
    state = lambda shown, **options: json.loads(packed(shown.save_html(tmp_path / "loss.html", **options), "state"))
    of = lambda **options: json.loads(state(explorer, **options)["compiled"])
    assert "save_html(path, compiled=True)" in of()["error"]
    assert explorer.compiled == ""
    explorer.beside = "compiled"
    assert "tanh" in of()["hlo"]["text"]
    again = state(jaxviz.explore(explorer.derivation), compiled=True)
    assert "hlo" in json.loads(again["compiled"])
    line = json.loads(again["line"])
    assert line["key"] == ""
    assert max(line["total"]) == jaxviz.compiled_memory(explorer.derivation).peak_nbytes


def test_explore_takes_what_derive_takes(explorer):
    same = jaxviz.explore(explorer.derivation)
    assert same.derivation is explorer.derivation
    of_program = jaxviz.explore(jaxviz.trace(loss)(jnp.ones((3, 3)), jnp.ones((2, 3))), argnums=None)
    assert of_program.derivation.nonzeros == (True, True)
    of_jaxpr = jaxviz.explore(jax.make_jaxpr(jnp.sin)(1.0))
    assert "cos" in of_jaxpr.text("forward")


def test_a_missing_bundle_says_what_to_do(explorer, monkeypatch, tmp_path):
    monkeypatch.setattr(bundle, "_STATIC", tmp_path)
    with pytest.raises(FileNotFoundError, match="make lab"):
        jaxviz.explore(explorer.derivation)


def test_the_code_is_held_once(explorer):
    other = jaxviz.explore(explorer.derivation)
    assert other._code is explorer._code
    state = explorer.get_state()
    assert state["_code"] == f"IPY_MODEL_{explorer._code.model_id}"
    assert "_css" not in state
    assert len(state["_esm"]) < 2048  # the loader
    assert "graphviz" not in explorer._code.parts
    code = gzip.decompress(base64.b64decode(explorer._code.code)).decode()
    assert code == (STATIC / "explorer.js").read_text(encoding="utf-8")
    assert state["_build"] == explorer._code.build
    assert (
        gzip.decompress(base64.b64decode(explorer._code.parts["graph"])) == (STATIC / "parts" / "graph.js").read_bytes()
    )


def test_the_main_module_is_small_and_alone_has_the_editor():
    assert len(bundle.packed(bundle.MAIN)) < 150_000
    assert ".cm-lineWrapping" in bundle.script(bundle.MAIN)
    for part in bundle.part_names():
        assert ".cm-lineWrapping" not in bundle.script(part)
        assert (len(bundle.packed(part)) < 64 * 1024) == (part != bundle.GRAPHVIZ)


def test_a_bundle_that_was_closed_is_made_anew(explorer):
    explorer._code.close()
    other = jaxviz.explore(explorer.derivation)
    assert other._code is not explorer._code
    assert other._code.code


@pytest.fixture
def payloads_of(monkeypatch):
    """Everything that is sent as the payload of a large function while the page waits for it."""
    monkeypatch.setattr(module, "_SOON", 0)
    return sent_as_payload


def sent_as_payload(explorer):
    sent = []
    explorer.observe(lambda change: sent.append(change["new"]), "payload")
    explorer._handle_custom_msg("fill", [])
    return sent


def by_line(view):
    files = [file.path for file in view.files]
    columns = (view.columns[f"line_{name}"].tolist() for name in ("file", "number", "kept"))
    return {(files[file], line): kept for file, line, kept in zip(*columns, strict=True) if kept}


def test_a_page_that_waits_is_first_sent_what_the_overview_begins_with(explorer, payloads_of):
    outline, whole = map(decode, payloads_of(explorer))
    assert (outline.n_equations, outline.has_groups, outline.has_memory, outline.is_whole) == (0, False, False, False)
    assert [stage.key for stage in outline.stages] == [stage.key for stage in whole.stages]
    assert (outline.title, outline.placement) == (whole.title, whole.placement)
    assert outline.headline == replace(whole.headline, peak="")
    assert by_line(outline) == by_line(whole) != {}
    for name in ("label", "reason"):
        texts = [[view.strings[i] for i in view.columns[f"kept_{name}"]] for view in (outline, whole)]
        assert texts[0] == texts[1] != []
    for name in ("nbytes", "times", "values"):
        np.testing.assert_array_equal(outline.columns[f"kept_{name}"], whole.columns[f"kept_{name}"])
    assert whole.n_equations > 0
    assert payloads_of(explorer) == []


def test_a_small_function_is_sent_at_once(explorer):
    (whole,) = map(decode, sent_as_payload(explorer))
    assert whole.n_equations > 0


def test_there_is_no_outline_without_an_overview_or_a_gradient(payloads_of):
    seen = jaxviz.explore(loss, jnp.ones((3, 3)), jnp.ones((2, 3)))
    seen.question = ""
    assert len(payloads_of(seen)) == 1
    called = lambda x: jax.pure_callback(np.sin, x, x)
    (whole,) = map(decode, payloads_of(jaxviz.explore(called, jnp.ones(3))))
    assert whole.stage("linear").error
    assert whole.n_equations > 0


def test_a_failure_after_the_outline_is_shown(explorer, monkeypatch):
    def failing(maker):
        raise ValueError("no such rule")

    monkeypatch.setattr(module, "_SOON", 0)
    monkeypatch.setattr(module, "first_payload", failing)
    with pytest.raises(ValueError, match="no such rule"):
        explorer._answer(explorer, "fill", [])
    assert (explorer.payload, explorer.failure) == (b"", "ValueError: no such rule")


def test_what_was_stopped_after_the_outline_can_be_asked_for_again(explorer, payloads_of, monkeypatch):
    def stopped(maker):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "first_payload", stopped)
        (outline,) = payloads_of(explorer)
    assert explorer.payload == outline
    (whole,) = map(decode, payloads_of(explorer))
    assert whole.n_equations > 0


def test_of_a_large_program_the_rest_comes_when_it_is_asked_for(explorer, monkeypatch):
    monkeypatch.setattr(sending, "_AT_ONCE", 3)
    monkeypatch.setattr(sending, "_COMPARED_AT_ONCE", 2)
    explorer._fill()
    first = decode(explorer.payload)
    assert (first.has_groups, first.has_memory, first.is_whole, first.check) == (False, False, False, None)
    assert len(first.columns["step_row"]) == 0
    explorer._handle_custom_msg("rest", [])
    groups = decode(explorer.groups, first)
    assert (groups.has_groups, groups.has_memory, groups.is_whole) == (True, False, False)
    assert groups.strings == first.strings
    memory = decode(explorer.memory, groups)
    assert (memory.has_groups, memory.has_memory, memory.is_whole) == (True, True, False)
    assert memory.headline.peak
    whole = decode(explorer.rest, memory)
    assert whole.is_whole
    assert whole.check is None
    assert whole.columns["step_row"].size
    # What has been displayed so far remains valid: no row or string number has changed.
    assert memory.strings[: len(first.strings)] == first.strings
    assert whole.strings[: len(memory.strings)] == memory.strings
    with_memory = [
        n for n in COLUMNS if n.startswith(("buffer_", "step_", "scope_")) or n in ("residual_buffer", "row_of_scope")
    ]
    # Until then each equation and each variable is by itself, and values that are alike have the texts of the first.
    later = ["variable_value", "variable_kin", "variable_of", "others_value", "others_of", "others_kin"]
    later += [f"residual_{name}" for name in ("label", "scope", "module", "reason", "names")] + ["reason_names"]
    later += ["variable_label", "group_label", "group_why", "residual_outlier"]
    for name in with_memory:
        np.testing.assert_array_equal(whole.columns[name], memory.columns[name], err_msg=name)
    np.testing.assert_array_equal(whole.columns["equation_group"], groups.columns["equation_group"])
    np.testing.assert_array_equal(first.columns["equation_group"], np.arange(first.n_equations))
    np.testing.assert_array_equal(first.columns["variable_value"], np.arange(len(first.columns["variable_name"])))
    assert not first.columns["variable_kin"].any()
    labels = lambda view: [view.strings[i] for i in view.columns["residual_label"]]
    group = whole.columns["residual_group"].tolist()
    assert labels(first) == [labels(whole)[group.index(g)] for g in group]
    for name in set(COLUMNS) - set(later) - set(with_memory) - {"equation_group"}:
        np.testing.assert_array_equal(whole.columns[name], first.columns[name], err_msg=name)
    assert explorer.check == ""
    explorer._handle_custom_msg("check", [])
    check = json.loads(explorer.check)
    assert check["status"] == "agrees"
    assert to_json(whole) | {"check": check} == to_json(view_of(explorer.derivation))
    # What has been sent is not sent again.
    blocks = (explorer.payload, explorer.groups, explorer.memory, explorer.rest)
    sizes = [len(gzip.decompress(block)) for block in blocks]
    assert sum(sizes[1:]) < sizes[0]
    before = explorer.rest
    explorer._handle_custom_msg("rest", [])
    assert explorer.rest is before


def test_the_rest_has_the_texts_of_each_residual_and_the_relations_between_variables(monkeypatch):
    monkeypatch.setattr(sending, "_AT_ONCE", 3)

    def layers(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return x.sum()

    explorer = jaxviz.explore(layers, [jnp.ones((3, 3))] * 3, jnp.ones((2, 3)))
    explorer.complete()
    first = decode(explorer.payload)
    whole = decode(explorer.rest, decode(explorer.memory, decode(explorer.groups, first)))
    labels = lambda view: [view.strings[i] for i in view.columns["residual_label"]]
    assert labels(whole) == [r.label for r in explorer.derivation.residuals]
    assert len(set(labels(first))) < len(set(labels(whole)))
    assert whole.columns["variable_kin"].any()
    assert (whole.columns["variable_of"] >= 0).any()


def test_a_page_of_a_large_program_is_whole(explorer, monkeypatch, tmp_path):
    monkeypatch.setattr(sending, "_AT_ONCE", 3)
    explorer._fill()
    assert decode(packed(explorer.save_html(tmp_path / "loss.html"), "payload")).is_whole
    # It has been computed by now, so the browser receives it as well.
    explorer._handle_custom_msg("rest", [])
    blocks = (explorer.payload, explorer.groups, explorer.memory, explorer.rest)
    assert functools.reduce(lambda known, block: decode(block, known), blocks, None).is_whole


def test_a_new_version_of_a_large_program_stands_beside_all_of_the_one_before(explorer, monkeypatch):
    monkeypatch.setattr(sending, "_AT_ONCE", 3)
    explorer.complete()
    explorer.update(other, jnp.ones((3, 3)), jnp.ones((2, 3)))
    assert decode(explorer.before).is_whole
    assert explorer.groups == explorer.memory == explorer.rest == b""


@pytest.fixture
def sent(explorer, monkeypatch):
    """What the kernel sends to the page, with buffers."""
    found = []
    monkeypatch.setattr(explorer, "send", lambda content, buffers=(): found.append((content, list(buffers or ()))))
    return found


@pytest.fixture
def with_a_part(monkeypatch, tmp_path):
    shutil.copytree(STATIC, tmp_path / "static")
    (tmp_path / "static" / "parts").mkdir(exist_ok=True)
    (tmp_path / "static" / "parts" / "small.js").write_text("export const answer = 42;")
    monkeypatch.setattr(bundle, "_STATIC", tmp_path / "static")


def test_a_part_is_sent_when_it_is_asked_for(explorer, sent, with_a_part):
    explorer._handle_custom_msg({"part": "small"}, [])
    ((content, (block,)),) = sent
    assert content == {"part": "small"}
    assert gzip.decompress(block) == b"export const answer = 42;"


def test_the_main_module_is_sent_where_no_widget_holds_it(explorer, sent):
    explorer._handle_custom_msg({"part": "explorer"}, [])
    assert gzip.decompress(sent[0][1][0]) == (STATIC / "explorer.js").read_bytes()


@pytest.mark.parametrize("name", ["large", "../explorer", ""])
def test_there_is_no_other_part(explorer, sent, with_a_part, name):
    explorer._handle_custom_msg({"part": name}, [])
    assert sent == [({"part": name, "error": f"the explorer has no part {name!r}"}, [])]


def test_a_page_holds_the_parts(explorer, with_a_part, tmp_path):
    assert packed(explorer.save_html(tmp_path / "loss.html"), "part-small") == b"export const answer = 42;"


def test_a_page_holds_graphviz_where_it_is_asked_to(explorer, tmp_path):
    assert "jaxviz-part-graphviz" not in explorer.save_html(tmp_path / "without.html").read_text(encoding="utf-8")
    page = explorer.save_html(tmp_path / "with.html", graphviz=True)
    assert packed(page, "part-graphviz") == (STATIC / "parts" / "graphviz.js").read_bytes()


def other(w, x):
    return jnp.sum(jnp.tanh(x @ w) + jnp.exp(x[0, 0]))


def test_a_new_version_is_shown_in_place(explorer):
    w, x = jnp.ones((3, 3)), jnp.ones((2, 3))
    explorer._fill()
    before = explorer.payload
    names = [e.primitive.name for _, e in explorer.derivation.primal.walk()]
    explorer.selected = f"primal:{names.index('reduce_sum')}"
    explorer.what_if = "{}"
    explorer.update(other, w, x)
    assert explorer.before == before
    assert explorer.equation.primitive.name == "reduce_sum"
    assert explorer.what_if == ""
    assert explorer.view.title == "gradient of `other` in `w`"
    changes = json.loads(explorer.changes)
    assert changes["functions"] == ["loss", "other"]
    assert sum(n for _, n in changes["stages"]["primal"]["added"]) == len(explorer.derivation.primal.equations) - len(
        names
    )


def test_a_version_that_fails_leaves_the_one_before(explorer):
    explorer._fill()
    before = explorer.payload
    with pytest.raises(ValueError, match="no luck"):
        explorer.update(lambda w, x: (_ for _ in ()).throw(ValueError("no luck")), jnp.ones((3, 3)), jnp.ones((2, 3)))
    assert explorer.payload == before
    assert explorer.derivation.primal.name == "loss"


def test_a_comparison_is_explored_side_by_side(tmp_path):
    args = jnp.ones((3, 3)), jnp.ones((2, 3))
    explorer = jaxviz.explore(jaxviz.compare(loss, other, *args))
    assert explorer.compared
    explorer._fill()
    assert explorer.before
    assert explorer.before != explorer.payload
    text = explorer.save_html(tmp_path / "page.html", source=False).read_text()
    assert "a comment of mine" not in text
    state = json.loads(packed(tmp_path / "page.html", "state"))
    assert state["compared"]
    assert json.loads(state["changes"])["functions"] == ["loss", "other"]
    assert b"a comment of mine" not in base64.b64decode(state["before"])


def test_the_browser_is_told_how_far_the_work_is(explorer, sent):
    explorer._handle_custom_msg({"work": "try", "keys": [], "plan": True}, [])
    assert sent[0][0] == {"work": "try", "what": "", "done": 0, "total": 0, "stop": ""}
    plans = [s for s, _ in sent if s["what"] == "plans"]
    assert [s["done"] for s in plans] == list(range(plans[0]["total"] + 1))
    sent.clear()
    explorer._handle_custom_msg("compile", [])
    assert [s["what"] for s, _ in sent] == ["", "compiling"]


def test_an_interrupt_stops_what_the_browser_asked_for(explorer, monkeypatch, sent):
    def stopped(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("jaxviz.features.explorer.whatif.Switches", stopped)
        explorer._handle_custom_msg("what if", [])
    assert sent[-1][0] == {"work": "what if", "stopped": True}
    assert explorer.what_if == ""
    explorer._handle_custom_msg("what if", [])
    assert json.loads(explorer.what_if)["function"] == "loss"
