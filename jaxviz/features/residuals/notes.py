"""Notes on the residuals of a function as a whole, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxviz.analysis.checkpoints import names_without_effect
from jaxviz.analysis.devices import spans_devices
from jaxviz.derivation import Derivation
from jaxviz.features.residuals.findings import Finding, most_forced, texts_of
from jaxviz.ir.compat import is_float0
from jaxviz.report.tables import counted, format_bytes, listed, type_text
from jaxviz.transforms.unopened import unopened_note

if TYPE_CHECKING:
    from jaxviz.features.residuals.residual_set import ResidualSet


def notes_of(saved: ResidualSet) -> tuple[str, ...]:
    """See `ResidualSet.notes`."""
    notes = [*saved.on_gradient, *unopened_note(saved.unopened)]
    if saved.dummy_nbytes:
        n = sum(bool(r.dummies) for r in saved)
        notes.append(
            f"Up to {format_bytes(saved.dummy_nbytes)} in {counted(n, 'residual')} are dummies: a branch of a cond "
            "returns residuals of the same types as the other branches, and fills in those that it does not save; a "
            "scan stacks them. To avoid them, use jaxviz.grad(f, cond_residuals='recompute') or, in plain JAX, "
            "jax.checkpoint around the cond or the body of the scan; a checkpoint around each branch leaves some."
        )
    if saved.unread:
        notes.append(
            f"JAX saves {format_bytes(sum(f.nbytes for f in saved.unread))} that the backward program never reads: "
            f"{listed(texts_of(saved.unread))}. A compiled gradient keeps nothing for that."
        )
    if saved.duplicates:
        notes.append(
            f"{_bytes_of(saved.duplicates)} are copies of values that are saved too, and could be recomputed from "
            f"them: {listed(texts_of(saved.duplicates))}."
        )
    if saved.stacked:
        stacked = listed(texts_of(saved.stacked))
        note = f"{_bytes_of(saved.stacked)} are stacked by scans, one value for each iteration: {stacked}."
        repeats = any(e.on_reference for e in saved.unopened)  # which a checkpoint would do twice
        if any(r.lengths and r.is_saved and r.is_read_in_loop for r in saved) and not repeats:
            note += " jax.checkpoint around the body saves only the inputs of each iteration instead."
        notes.append(note)
    if saved.invariant:
        notes.append(
            f"{_bytes_of(saved.invariant)} are copies, stacked by a scan, of values that are the same in each "
            f"iteration: {listed(texts_of(saved.invariant))}. If you compute them before the loop and close over them, "
            "each is saved once."
        )
    # The occasional scalar that a jitted jax.numpy function receives as an array is not worth a note.
    is_worth_it = lambda size: 100 * size >= saved.saved.nbytes
    if is_worth_it(most_forced(saved.every)) and saved.forced and is_worth_it(sum(f.nbytes for f in saved.forced)):
        notes.append(
            f"{_bytes_of(saved.forced)} are saved only because they cross the boundary of a jitted function; without "
            f"the inner jit they would not be: {listed(texts_of(saved.forced))}."
        )
    unknown = [r for r in saved if r.nbytes_per_device is None] if spans_devices(saved.derivation) else []
    if unknown:
        size = format_bytes(sum(r.nbytes for r in unknown))
        notes.append(
            f"{len(unknown):,} of them, {size}, count in full for one device, because XLA's layout "
            "of them is unknown. jaxviz.residuals(..., compile=True) compiles the forward program to find out."
        )
    notes += [*(n.text for n in names_without_effect(saved.checkpoints)), *saved.mapped]
    return tuple(dict.fromkeys(notes))


def why_nothing_is_saved(derivation: Derivation) -> tuple[str, ...]:
    """Why a gradient saves nothing, in a sentence."""
    linear = "Every operation is linear in the differentiated arguments, so the gradient saves no values."
    none = "argnums selects no argument that has a gradient, so nothing is differentiated."
    why = _no_gradient(derivation) or (linear if any(derivation.nonzeros) else none,)
    return (*not_followed_note(derivation), *why)


def gradient_note(derivation: Derivation) -> tuple[str, ...]:
    """Which gradient it is if the function takes one itself, and why there is none, or why it is zero, a sentence each;
    otherwise empty."""
    return (*not_followed_note(derivation), *_stacked_note(derivation), *_no_gradient(derivation))


def not_followed_note(derivation: Derivation) -> tuple[str, ...]:
    """The gradients that a function takes itself, and that are not followed, as one that a step takes is."""
    if not derivation.not_followed:
        return ()
    left = f"not followed: {listed(derivation.not_followed)}"
    if derivation.step is not None:
        return (f"{left}, which `{derivation.step.name}` takes as well.",)
    again = ", a second derivative" if any(derivation.nonzeros) and derivation.no_reverse_mode is None else ""
    return (f"{left}. This is about the {derivation.gradient} as a whole{again}.",)


def _stacked_note(derivation: Derivation) -> tuple[str, ...]:
    """That a scan of the training step keeps what each iteration saves, as in a pipeline by hand."""
    step = derivation.step
    if step is None or (stacked := step.stacked).times == 1:
        return ()
    arguments = ", with the arguments that the backward pass reads"
    if 0 < stacked.put_back < stacked.arguments:
        arguments += ", except for those that are put back"
    elif stacked.put_back:
        arguments = "; the arguments that the backward pass reads are put back"
    return (
        f"A scan of `{step.name}` stacks what each of its {stacked.times:,} iterations saves{arguments}: this is about "
        "one of them, and jaxviz.memory counts all.",
    )


def _no_gradient(derivation: Derivation) -> tuple[str, ...]:
    """Why there is no gradient, or why it is zero; empty also if none is asked for, as with `argnums=()`."""
    primal, parts = derivation.primal, derivation.linearized
    inputs = zip(primal.arg_names, primal.in_avals, derivation.nonzeros, strict=True)
    typed = [(name or "an argument", aval, nonzero) for name, aval, nonzero in inputs]
    if not any(derivation.nonzeros):
        types = [f"{name} is {type_text(aval)}" for name, aval, _ in typed if is_float0(aval.to_tangent_aval())]
        if len(types) < len(typed) and not derivation.refused:
            return ()
        of = f": {listed(types)}" if types else ""
        return (f"There is no argument to differentiate{of}. Only floating-point and complex numbers have a gradient.",)
    if not any(parts.nonzeros_out):
        types = [type_text(a) for a in primal.out_avals if is_float0(a.to_tangent_aval())]
        if len(types) == len(primal.out_avals):
            return (f"The result has no gradient: it is {listed(types) or 'empty'}.",)
        differentiated = listed([name for name, _, nonzero in typed if nonzero])
        return (f"The result does not depend on {differentiated}, so the gradient is zero.",)
    if derivation.refused and getattr(primal.out_avals[0], "shape", None) == ():
        types = [f"{name} is {type_text(aval)}" for name, aval, _ in typed if name in derivation.refused]
        return (
            f"jax.grad refuses this: {listed(types)}, which has no gradient, and is fixed here. "
            "jax.grad(allow_int=True) takes it.",
        )
    error = derivation.no_reverse_mode
    return () if error is None else (f"There is no backward program: {error}",)


def _bytes_of(findings: Sequence[Finding]) -> str:
    n = len({r for f in findings for r in f.residuals})
    return f"{format_bytes(sum(f.nbytes for f in findings))} in {counted(n, 'residual')}"
