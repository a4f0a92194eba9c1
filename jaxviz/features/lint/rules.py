"""The rules of `jaxviz.lint`, explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from jaxviz.report.tables import wrapped


@dataclass(frozen=True, slots=True)
class LintRule:
    """A rule of `jaxviz.lint`.

    Args:
      id: the name of the rule, such as 'cheap-recompute'.
      summary: what it finds, in one line.
      documentation: what that means, why JAX does it, and what to write instead, in a few paragraphs.
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
        "dead-gradient",
        "the gradient in a parameter is zero for any values",
        """
        JAX returns zeros, and no error, for a parameter that the loss does not depend on, or only through operations
        without a derivative: an integer such as that of jnp.argmax, a comparison, jnp.round, a custom rule that has
        none for this argument. It also does if the function reads an array where it closes over it, or from an object
        that is not registered as a pytree, in place of the argument. The optimizer then never changes the parameter.

        The advice names the line where the derivative ends. Where a user has stopped it with jax.lax.stop_gradient,
        there is none. `jaxviz.gradient_flow` also finds gradients that are zero only at some values, as behind a relu
        that is never active.
        """,
    ),
    LintRule(
        "layer-checkpoint",
        "a checkpoint around each layer would lower the peak",
        """
        A gradient saves the values that the derivative of each layer reads, until the backward pass reaches that layer.
        With jax.checkpoint around the body of a scan, or around each call of the function that is a layer, the gradient
        saves only the inputs of each layer, and the backward pass recomputes the rest one layer at a time. A single
        checkpoint around the whole scan does not help, because the backward pass then recomputes all layers at once.

        `jaxviz.memory` models the peak without the checkpoint, and with the edit of your source in place. There is
        advice where the peak falls by a quarter or more, for a checkpoint that saves nothing; `jaxviz.plan_remat`
        chooses what to save, and writes the lines. Outside of a loop XLA may follow it only in part: on a CPU it may
        merge what is recomputed with what was computed before, and on a GPU it may recompute some values by itself.
        `plan.verify()` compiles both.
        """,
    ),
    LintRule(
        "cheap-recompute",
        "values are saved that a few cheap operations could recompute",
        """
        JAX saves for each operation, one by one, the values that its derivative reads: `gelu` saves its input, the tanh
        in it, and products of both, although all of them follow from the input at the cost of reading it once more.
        jax.checkpoint around such lines saves their inputs and recomputes the rest in the backward pass. Where the
        inputs are saved anyway, such as a matrix product that another operation reads, the checkpoint adds no residual.

        Cheap operations take a few steps for each element: arithmetic, comparisons, selections, broadcasts,
        reductions, random bits. Matrix products, convolutions, sorts, loops, custom backward rules and exchanges
        between devices are not cheap, and this advice never makes one of them run again. The function is derived again
        with the checkpoint: the bytes are the difference between what the gradient saves without it and with it, and
        the peak and the work are those of that program. The bytes of two pieces of advice need not add up.

        Under jax.jit, XLA may already recompute some of these values by itself: `jaxviz.memory(f, x).compare()`
        measures what it does. Values that are saved last, right before the backward pass begins, are alive at the peak
        anyway: the advice says that the peak stays.
        """,
    ),
    LintRule(
        "sum-in-carry",
        "a loop over microbatches adds up gradients in what it carries",
        """
        Such a loop holds two gradients: the sum, and that of one microbatch, which a loop of the backward pass computes
        as a whole, for example in the parameters of stacked layers. If the arguments of the backward pass are
        references, it adds to them instead, one layer at a time. `jax.vjp` returns what can do that:
        `pull.with_refs(total)` takes a reference for each argument.

        The bytes are by how much the modelled peak of the step falls with the backward pass in place. A gradient that
        no loop computes makes no difference: XLA adds it to the sum before it computes the next one. The sums are in
        another order, so that the last digits may differ. If something else reads each gradient, such as clipping, it
        is needed as a whole, and there is no advice.
        """,
    ),
    LintRule(
        "checkpoint-without-effect",
        "a jax.checkpoint saves no bytes, or leaves the peak where it was",
        """
        With a checkpoint the gradient saves the inputs of the function in place of the values that the function would
        save. This saves no bytes if the function saves nothing but its inputs, as a single product does; if the policy
        saves everything, as everything_saveable does; or if the inputs are larger than the values that they replace.
        The values that the policy does not save are recomputed all the same, and XLA may not merge the forward with the
        backward pass across the checkpoint.

        A checkpoint around a whole loop saves the inputs of the loop between the passes. The backward pass then runs
        the whole loop again, and saves for each iteration what the loop would have saved without the checkpoint, so
        that the peak may stay where it was, as `jaxviz.memory` models it. Around the body, it recomputes one iteration
        at a time.

        A checkpoint within another one saves nothing between the passes. It may lower the peak while the outer one is
        recomputed, for work that is done once more; there is advice if it does not.

        The rule derives the function once more without the checkpoint, taking all calls from one line together. Remove
        the checkpoint, put more of the function into it, or choose a policy that saves fewer values; the default saves
        nothing.
        """,
    ),
    LintRule(
        "unknown-name",
        "a checkpoint policy lists a name that nothing in the checkpoint has",
        """
        Policies such as save_only_these_names select values by the names that checkpoint_name gives them. JAX does not
        report a name that no value has: the value that should be saved is recomputed or, if it should be recomputed, is
        saved. The name may be misspelt, or belong to a value outside of the checkpointed function.

        Name the value inside the function, or remove the name from the list. A policy that several checkpoints share
        counts as one: a name is known if any of them has it.
        """,
    ),
    LintRule(
        "unused-name",
        "checkpoint_name names a value that no policy around it lists",
        """
        In a checkpoint whose policy saves by name, a value whose name is not listed is recomputed like any other,
        so the call of checkpoint_name has no effect. Most often the policy was meant to list the name. Nor has a listed
        name an effect if the backward pass does not read its value.

        List the name, or remove checkpoint_name. There is no advice on names outside of checkpoints, or in checkpoints
        whose policy lists no names.
        """,
    ),
    LintRule(
        "policy-without-effect",
        "a checkpoint policy changes nothing, or JAX does not do what it says",
        """
        With a policy that selects nothing which the backward pass reads, the same is saved and recomputed as with the
        default. This happens if dots_saveable is used for a function without matrix products. The rule derives the
        function once more with the default.

        A policy that offloads has no such effect on a CPU, where JAX leaves transfers between memories out of the
        program: the values stay on the device.

        save_anything_except_these_names returns a policy that saves everything: JAX has ignored its names since version
        0.10.2. Write save_only_these_names, or save_any_names_but_these, which saves values with other names.

        Under jax_remat3, JAX asks a policy only about values with a name, matrix products and convolutions. Where a
        policy that is a function would save something else, such as an exp, it is not asked, and the value is
        recomputed; everything_saveable is an exception. Name the values with checkpoint_name, and list the names.
        """,
    ),
    LintRule(
        "donation-without-effect",
        "a donated argument's memory is not reused",
        """
        jax.jit reuses the memory of a donated argument for a result of the same type. If there is none, the argument is
        lost to the caller and nothing is saved. Within a function that is compiled as a whole, in another jit or a
        scan, donations of inner functions are ignored.

        Donate what the step returns anew, such as the parameters and the state of the optimizer, in the outermost
        jax.jit. `jaxviz.donation` says the same of any function, and what XLA made of it.
        """,
    ),
    LintRule(
        "upcast-kept",
        "values of bfloat16 or float16 are saved as float32",
        """
        If a value was converted to a wider type, an operation that reads it saves the converted value, which takes
        twice the memory and holds no more digits. This happens where `x.astype(float32)` comes before a normalization
        or a softmax, and implicitly where an operation promotes a narrow array to the type of a wide one. Often the
        narrow array is saved as well, for another reader.

        Computing in float32 is right; saving float32 is not needed. Put jax.checkpoint around the conversion and the
        operation that reads its result: then the narrow value is saved and converted again. The bytes at stake are
        those of the wide values, less those of the narrow value where it is not saved yet.
        """,
    ),
    LintRule(
        "type-widened",
        "values of 16 bits become float32 on the way and stay so",
        """
        An operation on a bfloat16 and a float32 array returns float32, and so does everything that reads its result: a
        scale, a mask or a position encoding in float32 is enough, or a number of NumPy, as in `x / np.sqrt(64)`. A
        number of Python changes no type. Products then read operands of twice the size, and so do those of their
        derivatives. On a GPU they run at half the speed or less: by default JAX lets it compute them in TF32. A TPU by
        default rounds the operands to bfloat16 again.

        There is advice where a product reads what was widened, together with other values of 16 bits or after another
        product, or where a parameter or a constant widens what is then added to results of products, as in a residual
        stream; from a hundredth of the FLOPs or of the written bytes on. There is none on normalizations, a softmax or
        a loss in float32, on products that add in float32, on arguments that are converted on purpose, or on data.

        Convert back, `(x * scale).astype(x.dtype)`: XLA computes both in one pass. The FLOPs are those of the products
        that read less then, in the forward and the backward pass. The bytes are those of the results of operations up
        to the last such product, in float32 less in 16 bits, without conversions; those at stake are saved. They are
        fewer if something asks for float32 anew on the way.
        """,
    ),
    LintRule(
        "narrow-sum",
        "sums of many terms run in bfloat16, float16 or a narrower type",
        """
        A bfloat16 has 8 binary digits. A sum that is 256 times as large as a term does not change when that term is
        added, so that 4,096 times 0.1 comes to 32 if they are added one by one. In float16 the same happens from 2,048
        terms on. There is advice on sums of at least so many terms, by their types; it does not know the numbers.

        jnp.sum and jnp.mean add in float32, and so do matrix products. These do not: sums of `jax.lax` and
        those with `dtype=jnp.bfloat16`, `jnp.cumsum`, `jnp.einsum` over one array, scatters such as
        `jax.ops.segment_sum`, and the carry of a loop that starts in bfloat16. The backward pass adds up the gradient
        of a value that was broadcast, indexed or read in each iteration of a loop in the type of that value: of a bias
        over all rows, of an embedding over all tokens, of weights over all steps.

        The gradient of a `lax.reduce` to which JAX does not know the start, such as `jnp.bfloat16(0)` under jit, adds
        in pairs; the function itself does not. Loops and, on a CPU, scatters add one by one. Other sums XLA adds in an
        order of its own, in the type that the program says or a wider one: on a CPU, 4,096 equal terms came out two to
        five percent wrong. Let the value be float32 where it is broadcast, indexed or added up, and convert the result.
        """,
    ),
    LintRule(
        "narrow-integers",
        "positions in bfloat16 or float16, in which neighbours are the same number",
        """
        A bfloat16 has 8 binary digits, so above 256 it has every second integer, above 512 every fourth: the positions
        1,000 and 1,003 are the same. In float16 this begins at 2,048. A model in 16 bits often converts the positions
        of its tokens, or time steps, together with everything else, and is wrong for long inputs only.

        How large the integers become is known of what counts along a dimension, as jnp.arange and jnp.cumsum do, and
        of what is computed from that. Compute angles and other functions of positions in float32, and convert these.
        """,
    ),
    LintRule(
        "one-hot-kept",
        "one-hot rows are saved where their integers would do",
        """
        `jax.nn.one_hot(ids, n)` makes a row of n numbers for each integer. A product with it saves all of them: for
        2,048 tokens and a vocabulary of 32,000 words 250 MiB of float32, of which all but 2,048 numbers are zero.
        Indexing with the integers gives the same, and saves the integers alone.

        Write `w[ids]` for `one_hot(ids, n) @ w`, and `jnp.take_along_axis(log_probs, ids[..., None], -1)` for
        `(one_hot(ids, n) * log_probs).sum(-1)`; libraries have losses that take integers, such as optax's
        softmax_cross_entropy_with_integer_labels. Under jax.jit, XLA may make the rows again where they are multiplied
        element by element; an operand of a matrix product it holds in memory. On a TPU, a product with a small one-hot
        array can be faster than indexing: jax.checkpoint around it then saves the integers alone.
        """,
    ),
    LintRule(
        "scan-stacks-invariant",
        "a scan stacks a value that is the same in each iteration",
        """
        A scan stacks each value that its body computes and its derivative reads, one for each iteration. A value that
        depends only on arrays that the body closes over is saved once. An array that is passed through the carry may
        change as far as JAX knows, and so may what is computed from it.

        Compute the value before the scan and close over it: then it is saved once.
        """,
    ),
    LintRule(
        "captured-constant",
        "a large array is closed over, and becomes a constant of the program",
        """
        An array that a function reads without taking it as an argument becomes a constant of the jaxpr. Under jax.jit
        this is a second copy that lives as long as the compiled function. It can be neither donated nor replaced, and a
        function that is already compiled does not see a change of the variable. If the array was a parameter of the
        model, it gets no gradient.

        Pass it as an argument. There is advice from 1 MiB on, or from min_nbytes on if that is given.
        """,
    ),
    LintRule(
        "cond-dummy",
        "a branch of a cond saves a dummy in place of what another branch saves",
        """
        All branches of a cond return residuals of the same types, so each branch fills in dummies for values that only
        another branch saves. A small branch takes the memory of the largest, and in a scan it does so in each
        iteration. The bytes are those of the dummies, which are filled in where the other branch is taken.

        jax.checkpoint around the cond, or around the body of the scan, saves the inputs instead, and
        jaxviz.grad(f, cond_residuals='recompute') does that for all conds. A checkpoint around each branch does not
        help: the branches still differ.
        """,
    ),
    LintRule(
        "unread-residual",
        "a custom_vjp's forward function saves values that its backward function never reads",
        """
        Everything that the forward function of a jax.custom_vjp returns beside its result is saved until the backward
        pass, whether or not the backward function reads it. JAX does not look into the backward function to find out.

        Leave the value out of what the forward function returns.
        """,
    ),
    LintRule(
        "kept-twice",
        "one value is saved in several types or layouts",
        """
        Two operations may read the same value in different forms: the value, its transpose, a reshape or a conversion.
        Each saves the array that it reads, since JAX distinguishes arrays, and not their contents.

        Let both read the same array, or put jax.checkpoint around the line that makes the copy together with what reads
        it, so that the copy is recomputed. The bytes at stake are those of all copies but the one that the others can
        be computed from. Copies in a wider type have advice of the rule upcast-kept.
        """,
    ),
    LintRule(
        "forced-by-jit",
        "values are saved only because they cross the boundary of a jitted function",
        """
        JAX differentiates a jitted function separately: the values that its backward part reads leave it as results,
        even if the same value, or one that they follow from, is available outside. Numbers that are passed to the
        function become arrays that are saved too. Without the inner jit none of these values would be saved.

        Remove the jit from the inner function. Under the jit of the whole step it is compiled all the same.
        """,
    ),
)

LINT_RULES: Mapping[str, LintRule] = MappingProxyType({rule.id: rule for rule in _RULES})
"""The rules of `jaxviz.lint`, by id.

>>> print(jaxviz.LINT_RULES["cheap-recompute"])  # explains one
"""
