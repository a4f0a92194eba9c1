"""Two compiled programs side by side: what appeared and disappeared, and the cause in the first line."""

import json
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from compiled_programs import LAYERS, W, X, named, read_or_refused, scanned, unrolled
from versions_of_programs import (
    BATCH,
    BATCHES,
    EXPERTS_ARGS,
    PARAMS,
    accumulating,
    by_blocks,
    experts,
    masked,
    step,
)

import jaxviz
from jaxviz.xla.compiled_memory.report import CompiledMemory, Held

MEMORY = {
    "by blocks": lambda: jaxviz.compiled_memory(experts(by_blocks), *EXPERTS_ARGS),
    "masked": lambda: jaxviz.compiled_memory(experts(masked), *EXPERTS_ARGS),
    "ragged": lambda: jaxviz.compiled_memory(experts(jax.lax.ragged_dot), *EXPERTS_ARGS),
    "step": lambda: jaxviz.compiled_memory(step, PARAMS, BATCH),
    "accumulated in float32": lambda: jaxviz.compiled_memory(accumulating(jnp.float32), PARAMS, BATCHES),
    "accumulated in bfloat16": lambda: jaxviz.compiled_memory(accumulating(jnp.bfloat16), PARAMS, BATCHES),
    "unrolled": lambda: jaxviz.compiled_memory(unrolled, LAYERS, X),
    "saves a and b": lambda: jaxviz.compiled_memory(*named_args("ab")),
    "saves a": lambda: jaxviz.compiled_memory(*named_args("a")),
}


def named_args(saved):
    loss, ws = named(saved, scan=True)
    return loss, ws, X


@pytest.fixture(scope="module")
def memory():
    found = {}
    return lambda name: found.setdefault(name, None) or found.update({name: MEMORY[name]()}) or found[name]


CAUSES = {
    # An upgrade lowers a grouped multiplication differently: every expert gets all tokens, with zeros for those of others.
    ("by blocks", "masked"): ("jnp.where(own[:, :, None], x, 0.0)", "it is saved now"),
    ("by blocks", "ragged"): ("XLA expands ragged_dot_general, to 4 times its largest operand or result",),
    # What gradient accumulation adds, for any number of microbatches.
    ("step", "accumulated in float32"): ("t + g.astype(dtype)", "a loop carries it now"),
    ("accumulated in bfloat16", "accumulated in float32"): ("t + g.astype(dtype)", "f32[256,256] now, bf16[256,256] before"),
    ("saves a", "saves a and b"): ("checkpoint_name 'b'", "it is saved now, and was recomputed before"),
}  # fmt: skip


@pytest.mark.parametrize("pair", CAUSES, ids=" → ".join)
def test_the_first_line_names_the_cause_and_the_changes_sum_up(memory, pair):
    before, after = (memory(name) for name in pair)
    change, back = before.compare(after), after.compare(before)
    assert change.nbytes > 0
    for words in CAUSES[pair]:
        assert words in change.summary
    assert " ".join(str(change).split()).startswith(change.summary)
    assert 0.4 * change.nbytes <= sum(c.nbytes for c in change.largest) <= 2 * change.nbytes
    for found, sign in ((change, 1), (back, -1)):
        assert sum(c.nbytes for c in found.changes) == sign * (after.reserved_nbytes - before.reserved_nbytes)
        sizes = [abs(c.nbytes) for c in found.changes]
        assert sizes == sorted(sizes, reverse=True)


def test_what_is_no_longer_saved_takes_its_bytes_along(memory):
    """Exactly the group that the policy no longer saves."""
    change = memory("saves a and b").compare(memory("saves a"))
    first = change.largest[0]
    loss, ws, x = named_args("ab")
    (b,) = (g for g in jaxviz.residuals(loss, ws, x).groups if g.label.startswith("checkpoint_name 'b'"))
    assert (first.before.what, first.before.nbytes) == (b.label, b.nbytes)
    assert (first.kind, first.after.nbytes) == ("residual → recomputed", b.nbytes // 6)
    assert first.why.startswith("it is no longer saved, but recomputed")


def test_the_same_program_has_no_changes(memory):
    change = memory("unrolled").compare(jaxviz.compiled_memory(unrolled, LAYERS, X))
    assert change.changes == ()
    assert change.compiled_otherwise == ()
    assert "the same bytes at the peak" in change.summary


def update(w, x):
    return w - 0.1 * jnp.tanh(x @ w).sum(), jnp.sum(x)


def test_a_donation_that_no_longer_takes():
    taken = jax.jit(update, donate_argnums=0).lower(W, X)
    change = jaxviz.compiled_memory(taken).compare(jaxviz.compiled_memory(jax.jit(update).lower(W, X)))
    assert change.nbytes == W.size * 4
    assert "before, it reused that of `w`, whose donation no longer has an effect" in change.summary
    back = jaxviz.compiled_memory(jax.jit(update).lower(W, X)).compare(jaxviz.compiled_memory(taken))
    assert "it reuses the memory of `w`, which is donated" in back.summary


def test_a_fusion_that_broke():
    """A barrier keeps XLA from fusing what follows with what comes before."""

    def f(x, apart):
        y = jnp.exp(x) * 2
        return jnp.sin(apart(y) + 1)[:, :8]

    apart = jax.lax.optimization_barrier
    before, after = (
        jaxviz.compiled_memory(partial(f, apart=g), X, argnums=())
        for g in (lambda y: y, lambda y: apart(apart(y) @ y.T) @ y)
    )
    change = before.compare(after)
    broke = [c for c in change.changes if c.why.startswith("a fusion broke")]
    assert any(c.row.what == "jnp.exp(x) * 2" for c in broke)
    assert any("within a fusion" in c.why for c in after.compare(before).changes)


def test_modules_of_other_names_are_the_same_arguments():
    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ next(iter(params.values()))))

    before, after = (jaxviz.compiled_memory(loss, {name: W}, X) for name in ("Block_0", "CheckpointBlock_0"))
    assert before.compare(after).changes == ()


def test_many_donations_are_not_listed_in_full():
    def step(ws, x):
        return [w - 0.1 * jnp.tanh(x @ w).sum() for w in ws], jnp.sum(x)

    ws = dict.fromkeys("abcdefg", W)
    many = jax.jit(lambda ws, x: step(ws.values(), x), donate_argnums=0)
    change = jaxviz.compiled_memory(many.lower(ws, X)).compare(
        jaxviz.compiled_memory(jax.jit(lambda ws, x: step(ws.values(), x)).lower(ws, X))
    )
    assert "`ws['a']`, `ws['b']`, `ws['c']` and 4 more, whose donation no longer has an effect" in change.summary


# --- saved ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["unrolled", "accumulated in float32", "saves a"])
def test_a_file_has_all_of_it(memory, name, tmp_path):
    report = memory(name)
    path = report.save(tmp_path / "a.json")
    read = CompiledMemory.load(path)
    assert str(read) == str(report)
    assert read.to_dict() == json.loads(json.dumps(report.to_dict()))
    assert read.compare(report).changes == ()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b'{"peak_nbytes": 3}', b"\xff\xfe\x00\x01", b"[" * 200_000], ids=len
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="has no saved compiled memory") as error:
        CompiledMemory.load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda d: d.update(version=99),
            "is of version 99 of these files, written by jaxviz .*; this one, .*, reads version 1",
        ),
        (lambda d: d["memory"].pop("at_peak"), "is damaged: KeyError: 'at_peak'"),
        (
            lambda d: d["memory"]["at_peak"][0].update(kind="ghost"),
            r"is damaged: TypeError: at_peak\[0\].kind is 'ghost'",
        ),
        (lambda d: d["memory"]["timeline"][0].update(nbytes=[1]), "is damaged: ValueError"),
        (lambda d: d.update(memory=None), "is damaged: TypeError"),
        (lambda d: d["memory"].update(temp_nbytes="much"), r"a\.json is damaged: TypeError: temp_nbytes is 'much'"),
        (
            lambda d: d["memory"]["at_peak"][0].update(what=[]),
            r"a\.json is damaged: TypeError: at_peak\[0\].what is \[\]",
        ),
    ],
)
def test_a_damaged_file_is_refused(memory, tmp_path, spoil, message):
    path = memory("unrolled").save(tmp_path / "a.json")
    data = json.loads(path.read_text())
    spoil(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message):
        CompiledMemory.load(path)


def places_in(data, path=()):
    """The path of each value in JSON; of a list only that of the first element."""
    yield path
    for key, x in data.items() if isinstance(data, dict) else enumerate(data[:1]) if isinstance(data, list) else ():
        yield from places_in(x, (*path, key))


WRONG = [None, -1, 2.5, 10**400, "text", ["text"], {}]


def test_whatever_a_field_holds_a_file_is_refused_by_name_or_can_be_shown(memory, tmp_path):
    report = memory("unrolled")
    text = report.save(tmp_path / "a.json").read_text()
    path = tmp_path / "wrong.json"
    refused = 0
    for place in [p for p in places_in(json.loads(text)) if p]:
        for wrong in WRONG:
            data = json.loads(text)
            holder = data
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = wrong
            path.write_text(json.dumps(data))
            loaded = read_or_refused(lambda: CompiledMemory.load(path), path)
            refused += loaded is None
            if loaded is not None:
                str(loaded), loaded._repr_html_(), json.dumps(loaded.to_dict())
                str(loaded.compare(report)), str(report.compare(loaded))
    assert refused


def test_what_differs_in_the_compilation_is_said(memory):
    report = memory("unrolled")
    compiler = replace(report.compiler, jax="0.8.0", device="NVIDIA H100", flags=f"{report.compiler.flags} --xla_old=1")
    before = replace(report, compiler=compiler, n_devices=8)
    other = before.compare(report).compiled_otherwise
    assert f"JAX 0.8.0 before, {report.compiler.jax} now" in other
    assert f"device NVIDIA H100 before, {report.compiler.device} now" in other
    assert "XLA's flag --xla_old=1 before, no longer now" in other
    assert "devices 8 before, 1 now" in other
    assert len(other) == 4
    assert "Compiled differently: JAX 0.8.0 before" in str(before.compare(report))
    assert "XLA's flag --xla_old=1 now, not before" in report.compare(before).compiled_otherwise


def test_layers_are_matched_whatever_their_number():
    four, six = (jaxviz.compiled_memory(unrolled, [W] * n, X) for n in (4, 6))
    change = four.compare(six)
    (arguments,) = (c for c in change.changes if c.row.kind == "argument")
    assert (arguments.before.what, arguments.after.what) == ("ws[0…3]", "ws[0…5]")
    assert arguments.nbytes == 2 * W.size * 4
    assert arguments.why == "6 now, 4 before"
    # Each layer takes the same additional bytes.
    residuals = [c for c in change.changes if c.row.kind == "residual" and c.before and c.after]
    assert sum(c.nbytes for c in residuals) > 0


def test_a_program_read_without_its_function_can_be_compared():
    with_function = jaxviz.compiled_memory(scanned, jnp.ones((4, 64, 64)), X)
    lowered = jax.jit(jax.value_and_grad(scanned)).lower(jnp.ones((4, 64, 64)), X)
    change = with_function.compare(jaxviz.compiled_memory(lowered))
    assert change.nbytes == 0
    assert any(text.startswith("program gradient of `scanned`") for text in change.compiled_otherwise)


def test_rows_without_bytes_of_their_own_are_no_cause(memory):
    report = memory("unrolled")
    gaps = Held("unused", "gaps between buffers that are alive at the peak", "", 1 << 20)
    more = replace(report, at_peak=(gaps, *report.at_peak))
    assert report.compare(more).largest == ()
    assert report.compare(more).changes[0].nbytes == 1 << 20
