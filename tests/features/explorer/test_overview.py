"""The explorer's first view: its figures agree with the reports, and repeated scopes are one box."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxviz
from benchmarks.models import lstm, mlp, remat_transformer, scan_transformer, transformer
from jaxviz.derivation import derive
from jaxviz.features.explorer import boxes
from jaxviz.features.explorer.columns import view_of
from jaxviz.page.schema import MEMORY_KINDS, SCOPES
from jaxviz.report.tables import format_bytes

W = jnp.ones((4, 4))


def first(w, x):
    return jnp.tanh(x @ w)


def second(w, x):
    return jnp.sin(x @ w) + x


def alternating(ws, x):
    for w in ws:
        x = first(w, x)
        x = second(w, x)
    return x.sum()


def choosing(w, x):
    def step(x, i):
        return jax.lax.cond(i > 1, lambda x: jnp.sin(x @ w @ w), lambda x: jnp.cos(x), x), None

    return jax.lax.scan(step, x, jnp.arange(5))[0].sum()


def products(w, x):
    """Many values of one expression, at several places of a library's function."""
    return jnp.sum(jax.lax.associative_scan(jnp.multiply, x @ w))


PROGRAMS = {
    "mlp": mlp(3), "transformer": transformer(3), "scanned": scan_transformer(3), "checkpointed": remat_transformer(2),
    "lstm": lstm(2),
    "alternating": (alternating, ([W] * 4, jnp.ones((2, 4)))), "choosing": (choosing, (W, jnp.ones((2, 4)))),
    "products": (products, (W, jnp.ones((8, 4)))),
}  # fmt: skip


@pytest.fixture(scope="module", params=PROGRAMS)
def shown(request):
    f, args = PROGRAMS[request.param]
    derivation = derive(f, *args)
    return derivation, view_of(derivation)


def texts(view, column):
    return [view.strings[i] for i in view.columns[column]]


def named(view, is_backward=0):
    """The names and counts of a pass's scopes, by path; of several with one path, their sum."""
    c, names, paths, found = view.columns, texts(view, "scope_name"), {-1: ()}, {}
    for i, (name, parent) in enumerate(zip(names, c["scope_parent"].tolist(), strict=True)):
        paths[i] = (*paths[parent], name)
        if c["scope_backward"][i] == is_backward and SCOPES[c["scope_kind"][i]] in ("scope", "loop", "repeated"):
            path = "/".join(paths[i])
            found[path] = found.get(path, 0) + int(c["scope_count"][i])
    return found


@pytest.mark.slow
def test_the_rows_of_residuals_are_those_of_the_report(shown):
    derivation, view = shown
    c, found = view.columns, derivation.residuals
    rows = [c["residual_group"] == i for i in range(len(found.groups))]
    sums = [(int(c["residual_nbytes"][row].sum()), int(row.sum())) for row in rows]
    words = zip(texts(view, "group_label"), texts(view, "group_why"), strict=True)
    assert list(words) == [(g.label, g.why) for g in found.groups]
    assert sums == [(g.nbytes, g.count) for g in found.groups]
    described = [(g.label, g.library, g.type, g.location, g.why) for g in found.groups]
    assert len(set(described)) == len(described)
    assert view.headline.saves in found.summary


@pytest.mark.slow
def test_what_is_alive_at_the_peak_is_what_the_report_says(shown):
    derivation, view = shown
    c, timeline = view.columns, jaxviz.memory(derivation)
    kinds, types, labels = c["buffer_kind"], texts(view, "buffer_type"), texts(view, "buffer_group_label")
    is_alive = (c["buffer_born"] <= timeline.peak) & (timeline.peak <= c["buffer_last"])
    found = []
    for row in ((c["buffer_group"] == i) for i in range(len(labels))):
        there = np.flatnonzero(row & is_alive)
        if there.size:
            label = labels[c["buffer_group"][there[0]]] if there.size == row.sum() else None
            nbytes = int(c["buffer_nbytes"][there].sum())
            found.append((MEMORY_KINDS[kinds[there[0]]], types[there[0]], nbytes, len(there), label))
    told = [(a.kind, a.type, a.nbytes, a.count, a.what) for a in timeline.alive]
    assert len(found) == len(told)
    for shown_row, row in zip(sorted(found, key=str), sorted(told, key=str), strict=True):
        assert shown_row[:4] == row[:4]
    assert {row[4] for row in found} - {None} <= {row[4] for row in told}


def test_the_kept_expressions_are_what_is_saved(shown):
    derivation, view = shown
    residuals, c = derivation.residuals, view.columns
    assert c["kept_nbytes"].sum() == residuals.saved.nbytes
    assert sorted(c["kept_nbytes"].tolist(), reverse=True) == c["kept_nbytes"].tolist()
    by_place = {}
    for r, kept in zip(residuals, c["residual_kept"].tolist(), strict=True):
        assert (kept < 0) == (not r.is_saved)
        if kept >= 0:
            by_place.setdefault(kept, []).append(r)
    for kept, of_it in by_place.items():
        assert c["kept_nbytes"][kept] == sum(r.nbytes for r in of_it)
        assert {r.location.line for r in of_it} == {c["location_line"][c["kept_location"][kept]]}


def test_the_scopes_are_the_cost_of_both_passes(shown):
    derivation, view = shown
    cost, c = jaxviz.cost(derivation), view.columns
    for is_backward, of_pass in enumerate((cost.forward, cost.backward)):
        top = (c["scope_parent"] < 0) & (c["scope_backward"] == is_backward)
        assert c["scope_flops"][top].sum() == of_pass.flops
    assert c["equation_flops"][c["step_row"]].sum() == cost.total.flops
    assert c["step_equations"].sum() == c["scope_equations"][c["scope_parent"] < 0].sum()


def test_what_is_in_a_scope_is_not_more_than_it(shown):
    _, view = shown
    c = view.columns
    for column in ("scope_flops", "scope_equations"):
        inside = np.zeros(len(c["scope_parent"]))
        for i, parent in enumerate(c["scope_parent"].tolist()):
            if parent >= 0:
                inside[parent] += c[column][i]
        assert (inside <= c[column]).all()


def test_each_equation_is_in_one_scope(shown):
    _, view = shown
    rows = view.columns["row_of_scope"].tolist()
    assert len(rows) == len(set(rows))
    assert view.columns["scope_rows"].tolist()[-1] == len(rows)


def test_the_headline_says_what_the_reports_say(shown):
    derivation, view = shown
    residuals, memory = derivation.residuals, jaxviz.memory(derivation)
    assert format_bytes(residuals.saved.nbytes) in view.headline.keeps
    assert format_bytes(residuals.saved.arguments) in view.headline.keeps
    assert view.headline.peak.startswith(f"modelled peak {format_bytes(memory.peak_nbytes)} in the ")


def test_on_several_devices_all_bytes_are_those_of_one():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    x = jax.device_put(jnp.ones((16, 4)), jax.NamedSharding(mesh, jax.P("data")))
    derivation = derive(lambda x: jnp.sum(jnp.sin(jnp.tanh(x))), x)
    residuals, view = derivation.residuals, view_of(derivation)
    assert residuals.nbytes_without_arguments == 8 * residuals.saved.nbytes > 0
    for column in ("kept_nbytes", "line_kept"):
        assert view.columns[column].sum() == residuals.saved.nbytes


def test_a_value_of_a_derivative_is_not_said_to_be_that_of_the_expression():
    power, result = (derive(f, jnp.ones(3)).residuals for f in (lambda x: jnp.sum(x**3), lambda x: jnp.sum(jnp.exp(x))))
    assert power.expressions[0].reason.startswith("part of its derivative, needed again in line ")
    assert result.expressions[0].reason.startswith("needed again in line ")


@pytest.mark.slow
def test_layers_are_one_box():
    f, args = transformer(12)
    view = view_of(derive(f, *args))
    forward, backward = named(view), named(view, 1)
    assert forward["layer"] == backward["layer"] == 12
    assert forward["layer/attention"] == backward["layer/attention"] == 1
    assert forward["layer/layer_norm"] == backward["layer/layer_norm"] == 2
    assert forward["prediction_loss"] == 1
    f, args = scan_transformer(12)
    view = view_of(derive(f, *args))
    for scanned in (named(view), named(view, 1)):
        assert (scanned["scan"], scanned["scan/layer"], scanned["scan/layer/layer_norm"]) == (12, 1, 2)


def test_layers_whose_scopes_are_numbered_repeat():
    def numbered(ws, x):
        for i, w in enumerate(ws):
            with jax.named_scope(f"block{i}"):
                x = first(w, x) + second(w, x)
        return x.sum()

    view = view_of(derive(numbered, [W] * 4, jnp.ones((2, 4))))
    assert named(view)[""] == named(view, 1)[""] == 4  # without a name: two functions, and a line


def test_a_step_of_a_loop_is_one_though_the_backward_pass_has_two_products_of_a_line():
    def loss(params, xs):
        def step(h, x):
            h = jax.checkpoint(cell)(params, h, x)
            return h, params["v"] @ h

        return jnp.sum(jax.lax.scan(step, jnp.zeros(4), xs)[1] ** 2)

    def cell(params, h, x):
        return jnp.sin(jnp.tanh(params["w"] @ h + params["u"] @ x))

    params = {"w": jnp.ones((4, 4)), "u": jnp.ones((4, 2)), "v": jnp.ones((3, 4))}
    view = view_of(derive(loss, params, jnp.ones((5, 2))))
    assert named(view, 1)["scan"] == 5
    assert named(view, 1)["scan/step"] == named(view, 1)["scan/step/cell"] == 1


def test_what_a_loop_calls_one_after_the_other_is_one_box():
    f, args = PROGRAMS["alternating"]
    forward = named(view_of(derive(f, *args)))
    assert forward == {"": 4, "/first": 1, "/second": 1}


def test_of_a_cond_the_branch_that_takes_most():
    f, args = PROGRAMS["choosing"]
    view = view_of(derive(f, *args))
    assert max(named(view).values()) == 5


@pytest.mark.slow
def test_a_value_of_several_layers_is_named_once():
    f, args = transformer(12)
    view = view_of(derive(f, *args))
    assert texts(view, "kept_label")[0].startswith("jax.nn.gelu(")
    n = int((view.columns["residual_kept"] == 0).sum())
    assert (view.columns["kept_times"][0], view.columns["kept_values"][0]) == (12, n // 12)
    line = jaxviz.residuals(f, *args).expressions[0].location.line
    assert texts(view, "kept_reason")[0].startswith(f"needed again in line {line}'s gradient (")


def test_without_source_no_expression_is_in_it():
    view = view_of(derive(*[mlp(2)[0]], *mlp(2)[1]), source=False)
    assert not any("jnp." in text for text in view.strings)
    assert "jnp." not in str(view.headline)


def test_what_has_no_reverse_mode_says_nothing():
    view = view_of(derive(lambda x: jax.lax.while_loop(lambda x: x < 9.0, lambda x: x * 2.0, x), 1.0))
    assert view.headline.peak == ""
    assert len(view.columns["scope_parent"]) == 0


def conv(x, w):
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def res_block(p, x):
    h = jax.nn.silu(jax.nn.standardize(conv(x, p["in"]), (1, 2)))
    return jax.nn.silu(conv(x, p["skip"]) + jax.nn.standardize(conv(h, p["out"]), (1, 2)))


def down(x):
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4


def up(x):
    return jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)


def unet(params, x):
    skips = []
    for p in params[:2]:
        x = res_block(p, x)
        skips.append(x)
        x = down(x)
    x = res_block(params[2], x)
    for p in params[3:5]:
        x = res_block(p, jnp.concatenate([up(x), skips.pop()], -1))
    return conv(x, params[5])


@pytest.mark.slow
def test_the_passes_of_a_u_net_mirror_each_other_name_for_name():
    widths = [(3, 8), (8, 16), (16, 32), (48, 16), (24, 8)]
    block = lambda i, o: {"in": jnp.ones((3, 3, i, o)), "out": jnp.ones((3, 3, o, o)), "skip": jnp.ones((1, 1, i, o))}
    params = [*(block(i, o) for i, o in widths), jnp.ones((1, 1, 8, 3))]
    view = view_of(derive(lambda params, x: jnp.mean(unet(params, x) ** 2), params, jnp.ones((2, 8, 8, 3))))
    c, names = view.columns, texts(view, "scope_name")

    def inside(is_backward):
        of_pass = [i for i, b in enumerate(c["scope_backward"]) if b == is_backward]
        (whole,) = (i for i in of_pass if names[i] == "unet")
        return [names[i] for i in of_pass if c["scope_parent"][i] == whole and names[i]]

    forward = inside(is_backward=False)
    assert forward == [*["res_block", "down"] * 2, "res_block", *["up", "res_block"] * 2, "conv"]
    # The last convolution is too small for a box by itself in the forward pass, and not in the backward pass.
    assert inside(is_backward=True) == forward[::-1]


TABLE = jnp.linspace(1.0, 2.0, 36).reshape(6, 6)


def vignette(s):
    return TABLE * s / 9


def also_computed(s):
    return TABLE * s * jnp.sin(s) * jnp.tanh(TABLE * s)


def in_layers(s):
    for _ in range(3):
        s = jnp.sin(s * TABLE)
    return s


@pytest.mark.parametrize("f", [vignette, also_computed, in_layers])
def test_a_saved_constant_is_not_called_what_is_computed_of_it(f):
    """The names and bytes of what an expression only reads are those of the report of residuals."""
    loss = lambda s: f(s).sum()
    residuals = jaxviz.residuals(loss, TABLE)
    read = [g for g in residuals.groups if g.kind in ("constant", "literal")]
    assert read
    shown = {e.label: e.nbytes for e in residuals.expressions}
    assert {g.label: g.nbytes for g in read}.items() <= shown.items()
    view = view_of(derive(loss, TABLE), source=True)
    labels = [view.strings[i] for i in view.columns["kept_label"]]
    assert labels == list(shown)
    assert not view.headline.largest or f"for `{labels[0]}` (" in view.headline.largest
    assert all(sum(r.nbytes for r in e.residuals) == e.nbytes for e in residuals.expressions)


def test_the_stacks_of_repeated_layers_are_read_once(monkeypatch):
    """Also those in jitted functions, of which every layer calls the same one."""

    def read(n_layers):
        ways, led_to = [], boxes._led_to
        monkeypatch.setattr(boxes, "_led_to", lambda *of: ways.append(of) or led_to(*of))
        f, args = transformer(n_layers)
        view_of(derive(f, *args))
        return len(ways)

    assert read(2) == read(4)
