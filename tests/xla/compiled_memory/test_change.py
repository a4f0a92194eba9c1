"""Two compiled programs side by side: what appeared and disappeared, and the cause in the first line."""

import json
from dataclasses import replace
from functools import cache, partial

import compiled_programs as programs
import jax
import jax.numpy as jnp
import pytest
from compiled_programs import EXPERTS_ARGS, STACK, W, X, named, read_or_refused

import jaxviz
from jaxviz.xla.compiled_memory.report import CompiledMemory, Held

MEMORY = {
    "by blocks": lambda: (programs.experts(programs.by_blocks), *EXPERTS_ARGS),
    "masked": lambda: (programs.experts(programs.masked), *EXPERTS_ARGS),
    "ragged": lambda: (programs.experts(jax.lax.ragged_dot), *EXPERTS_ARGS),
    "step": lambda: (programs.step, programs.PARAMS, programs.BATCH),
    "accumulated in float32": lambda: (programs.accumulating(jnp.float32), programs.PARAMS, programs.BATCHES),
    "accumulated in bfloat16": lambda: (programs.accumulating(jnp.bfloat16), programs.PARAMS, programs.BATCHES),
    "unrolled": lambda: programs.PROGRAMS["unrolled"],
    "saves a and b": lambda: named("ab", scan=True),
    "saves a": lambda: named("a", scan=True),
}


@cache
def memory(name):
    return jaxviz.compiled_memory(*MEMORY[name]())


CAUSES = {
    # An upgrade lowers a grouped multiplication differently: every expert gets all tokens, with zeros for those of
    # others.
    ("by blocks", "masked"): ("jnp.where(own[:, :, None], x, 0.0)", "it is saved now"),
    ("by blocks", "ragged"): ("XLA expands ragged_dot_general, to 4 times its largest operand or result",),
    # What gradient accumulation adds, for any number of microbatches.
    ("step", "accumulated in float32"): ("t + g.astype(dtype)", "a loop carries it now"),
    ("accumulated in bfloat16", "accumulated in float32"): ("t + g.astype(dtype)",
                                                            "f32[256,256] now, bf16[256,256] before"),
    ("saves a", "saves a and b"): ("checkpoint_name 'b'", "it is saved now, and was recomputed before"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("pair", CAUSES, ids=" → ".join)
def test_the_first_line_names_the_cause_and_the_changes_sum_up(pair):
    before, after = map(memory, pair)
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


def test_what_is_no_longer_saved_takes_its_bytes_along():
    """Exactly the group that the policy no longer saves."""
    first = memory("saves a and b").compare(memory("saves a")).largest[0]
    (b,) = (g for g in jaxviz.residuals(*named("ab", scan=True)).groups if g.label.startswith("checkpoint_name 'b'"))
    assert (first.before.what, first.before.nbytes) == (b.label, b.nbytes)
    assert (first.kind, first.after.nbytes) == ("residual → recomputed", b.nbytes // 6)
    assert first.why.startswith("it is no longer saved, but recomputed")


def test_the_same_program_has_no_changes():
    change = memory("unrolled").compare(jaxviz.compiled_memory(*MEMORY["unrolled"]()))
    assert (change.changes, change.compiled_otherwise) == ((), ())
    assert "the same bytes at the peak" in change.summary


def test_donations_that_no_longer_take():
    def steps(names):
        def step(ws, x):
            return [w - 0.1 * jnp.tanh(x @ w).sum() for w in ws.values()], jnp.sum(x)

        ws = dict.fromkeys(names, W)
        return (jaxviz.compiled_memory(jax.jit(step, donate_argnums=d).lower(ws, X)) for d in (0, ()))

    taken, not_taken = steps("a")
    change = taken.compare(not_taken)
    assert change.nbytes == W.size * 4
    assert "before, it reused that of `ws['a']`, whose donation no longer has an effect" in change.summary
    assert "it reuses the memory of `ws['a']`, which is donated" in not_taken.compare(taken).summary
    taken, not_taken = steps("abcdefg")
    many = "`ws['a']`, `ws['b']`, `ws['c']` and 4 more, whose donation no longer has an effect"
    assert many in taken.compare(not_taken).summary


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
    broke = [c for c in before.compare(after).changes if c.why.startswith("a fusion broke")]
    assert any(c.row.what == "jnp.exp(x) * 2" for c in broke)
    assert any("within a fusion" in c.why for c in after.compare(before).changes)


def test_modules_of_other_names_are_the_same_arguments():
    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ next(iter(params.values()))))

    before, after = (jaxviz.compiled_memory(loss, {name: W}, X) for name in ("Block_0", "CheckpointBlock_0"))
    assert before.compare(after).changes == ()


# --- saved ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["unrolled", "accumulated in float32", "saves a"])
def test_a_file_has_all_of_it(name, tmp_path):
    report = memory(name)
    read = CompiledMemory.load(report.save(tmp_path / "a.json"))
    assert str(read) == str(report)
    assert read.to_dict() == json.loads(json.dumps(report.to_dict()))
    assert read.compare(report).changes == ()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b'{"peak_nbytes": 3}', b"\xff\xfe\x00\x01", b"[" * 200_000], ids=len
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json has no saved compiled memory"):
        CompiledMemory.load(path)


DAMAGED = [
    (lambda d: d.update(version=99),
     "is of version 99 of these files, written by jaxviz .*; this one, .*, reads version 1"),
    (lambda d: d["memory"].pop("at_peak"), "is damaged: KeyError: 'at_peak'"),
    (lambda d: d["memory"]["at_peak"][0].update(kind="ghost"), r"is damaged: TypeError: at_peak\[0\].kind is 'ghost'"),
    (lambda d: d["memory"]["timeline"][0].update(nbytes=[1]), "is damaged: ValueError"),
    (lambda d: d.update(memory=None), "is damaged: TypeError"),
    (lambda d: d["memory"].update(temp_nbytes="much"), r"a\.json is damaged: TypeError: temp_nbytes is 'much'"),
    (lambda d: d["memory"]["at_peak"][0].update(what=[]), r"a\.json is damaged: TypeError: at_peak\[0\].what is \[\]"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), DAMAGED)
def test_a_damaged_file_is_refused(tmp_path, spoil, message):
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


@pytest.mark.slow
def test_whatever_a_field_holds_a_file_is_refused_by_name_or_can_be_shown(tmp_path):
    report = memory("unrolled")
    text = report.save(tmp_path / "a.json").read_text()
    path = tmp_path / "wrong.json"
    refused = 0
    for *way, last in [p for p in places_in(json.loads(text)) if p]:
        for wrong in WRONG:
            data = holder = json.loads(text)
            for key in way:
                holder = holder[key]
            holder[last] = wrong
            path.write_text(json.dumps(data))
            loaded = read_or_refused(lambda: CompiledMemory.load(path), path)
            refused += loaded is None
            if loaded is not None:
                str(loaded), loaded._repr_html_(), json.dumps(loaded.to_dict())
                str(loaded.compare(report)), str(report.compare(loaded))
    assert refused


def test_what_differs_in_the_compilation_is_said():
    report = memory("unrolled")
    compiler = replace(report.compiler, jax="0.8.0", device="NVIDIA H100", flags=f"{report.compiler.flags} --xla_old=1")
    before = replace(report, compiler=compiler, n_devices=8)
    assert sorted(before.compare(report).compiled_otherwise) == [
        f"JAX 0.8.0 before, {report.compiler.jax} now",
        "XLA's flag --xla_old=1 before, no longer now",
        f"device NVIDIA H100 before, {report.compiler.device} now",
        "devices 8 before, 1 now",
    ]
    assert "Compiled differently: JAX 0.8.0 before" in str(before.compare(report))
    assert "XLA's flag --xla_old=1 now, not before" in report.compare(before).compiled_otherwise


def test_layers_are_matched_whatever_their_number():
    four, six = (jaxviz.compiled_memory(programs.unrolled, [W] * n, X) for n in (4, 6))
    change = four.compare(six)
    (arguments,) = (c for c in change.changes if c.row.kind == "argument")
    assert (arguments.before.what, arguments.after.what) == ("ws[0…3]", "ws[0…5]")
    assert (arguments.nbytes, arguments.why) == (2 * W.size * 4, "6 now, 4 before")
    # Each layer takes the same additional bytes.
    assert sum(c.nbytes for c in change.changes if c.row.kind == "residual" and c.before and c.after) > 0


def test_a_program_read_without_its_function_can_be_compared():
    args = jnp.ones(STACK.shape), X
    lowered = jax.jit(jax.value_and_grad(programs.scanned)).lower(*args)
    change = jaxviz.compiled_memory(programs.scanned, *args).compare(jaxviz.compiled_memory(lowered))
    assert change.nbytes == 0
    assert any(text.startswith("program gradient of `scanned`") for text in change.compiled_otherwise)


def test_rows_without_bytes_of_their_own_are_no_cause():
    report = memory("unrolled")
    gaps = Held("unused", "gaps between buffers that are alive at the peak", "", 1 << 20)
    change = report.compare(replace(report, at_peak=(gaps, *report.at_peak)))
    assert (change.largest, change.changes[0].nbytes) == ((), 1 << 20)
