"""What the rules of `jaxviz.lint` mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from jaxviz.report.tables import wrapped


@dataclass(frozen=True, slots=True)
class LintRule:
    """A rule of `jaxviz.lint`.

    Args:
      id: such as 'cheap-recompute'.
      summary: what it finds, in a line.
      documentation: what that means, why JAX does it, and what to write instead; a few paragraphs.
    """

    id: str
    summary: str
    documentation: str

    def __str__(self) -> str:
        paragraphs = (wrapped(" ".join(p.split())) for p in self.documentation.split("\n\n"))
        return "\n\n".join([f"{self.id}: {self.summary}", *paragraphs])

    __repr__ = __str__


_RULES = (
    LintRule(
        "cheap-recompute",
        "values are kept that a few cheap operations would make again",
        """
        Each operation keeps what its derivative reads, one by one: `gelu` keeps its input, the tanh in it, and products of both,
        though all of them follow from the input at the cost of reading it once more. jax.checkpoint around such lines keeps what
        goes into them, and computes the rest again in the backward pass. Where what goes in is kept anyway, as a matrix product
        that somebody else reads, nothing comes in its place.

        Cheap are operations that do a few steps for each element: arithmetic, comparisons, selections, broadcasts,
        reductions, random bits. Matrix products, convolutions, sorts, loops, custom backward rules and exchanges between devices are
        not, and no such advice makes one of them run again. The bytes are the difference between what JAX holds with the
        checkpoint and without it, for all the times that the lines are gone through, but for values that the backward pass
        does not read. Those of two pieces of advice need not add up.

        Under jax.jit XLA may already compute some of it again by itself: `jaxviz.memory(f, x).compare()` says what it makes of it. What
        is kept last, right before the backward pass begins, is there at the peak anyway, and the advice says so.
        """,
    ),
    LintRule(
        "checkpoint-without-effect",
        "a jax.checkpoint saves no bytes",
        """
        A checkpoint keeps its inputs in place of what its function would keep. That is no less where the function keeps nothing but
        its inputs, as one product does; where its policy saves all there is, as everything_saveable; or where the inputs are
        larger than what they replace. What the policy does not save is computed again all the same, and XLA may not merge the forward
        with the backward pass across it.

        It is found by deriving the function once more without the checkpoint, with all its calls from one line taken
        together. Checkpoints in other checkpoints are not looked at: those lower the peak while the outer one computes again, not
        what is kept. Take it away, put more of the function into it, or choose a policy that saves less; the default saves nothing.
        """,
    ),
    LintRule(
        "unknown-name",
        "a checkpoint policy lists a name that nothing in the checkpoint has",
        """
        Policies such as save_only_these_names go by the names that checkpoint_name gives. JAX says nothing of one that is
        never given: the value that was to be saved is computed again, or, if it was to be computed again, is saved. The name
        may be misspelt, or given outside of the function that the checkpoint is around.

        Give the name inside, or take it off the list. A policy that several checkpoints share counts as one: a name that any
        of them gives is known.
        """,
    ),
    LintRule(
        "unused-name",
        "checkpoint_name names a value that no policy around it lists",
        """
        In a checkpoint whose policy saves by name, a value with a name that is not listed is computed again as any other,
        so that the call of checkpoint_name has no effect. More often than not the policy was meant to list it.

        List the name, or take checkpoint_name away. Names outside of checkpoints, and in those whose policy lists no names, are left alone.
        """,
    ),
    LintRule(
        "upcast-kept",
        "values of bfloat16 or float16 are kept as float32",
        """
        An operation on a value that was converted to a wider type keeps the converted one, which takes twice the memory and holds no
        more digits. It happens where `x.astype(float32)` stands before a normalization or a softmax, and unseen where a narrow array
        meets a wide one and is promoted. Often the narrow one is kept as well, for its own reader.

        To compute in float32 is right, to keep float32 is not: put jax.checkpoint around the conversion and what reads its result, and the
        narrow value is kept and converted again. At stake is the wide values' size, less that of the narrow one
        where it is not kept yet.
        """,
    ),
    LintRule(
        "scan-stacks-invariant",
        "a scan stacks a value that is the same in each iteration",
        """
        What the body of a scan computes and its derivative reads is stacked, a value from each iteration, but for what depends on
        arrays alone that the body closes over: that is kept once. An array that is handed through the carry may differ for all that JAX
        knows, though each iteration hands on the same, and so may all that is computed from it.

        Compute the value before the scan and close over it: then it is kept once.
        """,
    ),
    LintRule(
        "captured-constant",
        "a large array is closed over, and so a constant of the program",
        """
        An array that a function reads without its being an argument is written into the jaxpr. Under jax.jit it is a second
        copy that lives as long as the compiled function, it can neither be donated nor replaced, and a change of the variable is not
        seen by what is compiled already. If it was a parameter of the model, it gets no gradient.

        Pass it as an argument. From 1 MiB on it is advised, or from min_nbytes on where that is given.
        """,
    ),
    LintRule(
        "cond-dummy",
        "a branch of a cond keeps a dummy in place of what another branch keeps",
        """
        The branches of a cond give residuals of the same types, so each fills in what only another one saves. A small branch
        takes the memory of the largest, and in a scan it does so in each iteration. The bytes are those of what is filled in where the other
        branch is taken.

        jax.checkpoint around the cond, or around the body of the scan, keeps what goes in instead, and
        jaxviz.grad(f, cond_residuals='recompute') does that for all conds. Around each branch it does not help: the branches
        differ as before.
        """,
    ),
    LintRule(
        "unread-residual",
        "a custom_vjp's forward function keeps what its backward function never reads",
        """
        All that the forward function of a jax.custom_vjp returns beside its result is kept until the backward pass, whatever the
        backward function does with it. JAX does not look into it to find out.

        Leave the value out of what the forward function returns.
        """,
    ),
    LintRule(
        "kept-twice",
        "one value is kept in several types or layouts",
        """
        Two operations that read a value, its transpose, a reshape or a conversion of it keep what they read, each for itself,
        since JAX tells arrays apart and not what is in them.

        Let both read the same array, or put jax.checkpoint around the line that makes the copy together with what reads it, so
        that it is made again. At stake is all but the one value that the copies can be made from. Copies in a wider type are advised on
        as upcast-kept.
        """,
    ),
    LintRule(
        "forced-by-jit",
        "values are kept only because they cross the boundary of a jitted function",
        """
        A jitted function is differentiated by itself: what its backward part reads leaves it as a result, even where the same
        value, or what it follows from, is at hand outside. Numbers that are passed to it become arrays that are kept too. With
        the equations in place of the call none of these would be.

        Take the jit off the inner function. Under the jit of the whole step it is compiled all the same.
        """,
    ),
)

LINT_RULES: Mapping[str, LintRule] = MappingProxyType({rule.id: rule for rule in _RULES})
"""The rules of `jaxviz.lint`, by their ids; `print(jaxviz.LINT_RULES['cheap-recompute'])` explains one."""
