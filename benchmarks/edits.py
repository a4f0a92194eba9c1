"""Edits of a program's source, as people make them: text in, text out, for any model.

An edit returns None where it changes nothing. Most keep all numbers; `EDITS` says what holds of the others.
"""

from __future__ import annotations

import ast
import builtins
import copy
from typing import Any

from benchmarks.editing import (
    EDITS,
    Edit,
    Model,
    blocks_in,
    decorate,
    defined_by,
    each_statement,
    edit,
    expression_of,
    functions_in,
    is_pure,
    locals_of,
    methods_in,
    names_at_top,
    names_in,
    outermost_in,
    parameters_of,
    put_before_functions,
    replace_nodes,
    statements_of,
    stored_in,
    text_edit,
)

# --- layout -----------------------------------------------------------------------------------------------------------


@text_edit("reformat")
def reformat(source: str) -> str:
    return ast.unparse(ast.parse(source))


@text_edit("insert comments and blank lines")
def comments(source: str) -> str:
    lines = source.splitlines()
    rows = {s.lineno for block in blocks_in(ast.parse(source)) for s in block}
    for row in sorted(rows, reverse=True):
        lines[row - 1 : row - 1] = [
            "",
            " " * (len(lines[row - 1]) - len(lines[row - 1].lstrip())) + "# as in the paper",
        ]
    return "\n".join(lines) + "\n"


@text_edit("break lines inside parentheses")
def parentheses(source: str) -> str:
    lines = [line.encode() for line in source.splitlines()]
    tree = ast.parse(source)
    values = [
        s.value for block in blocks_in(tree) for s in block if isinstance(s, (ast.Assign, ast.Return)) and s.value
    ]
    for v in sorted(set(values), key=lambda v: (v.end_lineno, v.end_col_offset), reverse=True):
        last, first = v.end_lineno - 1, v.lineno - 1
        lines[last] = lines[last][: v.end_col_offset] + b"\n)" + lines[last][v.end_col_offset :]
        lines[first] = lines[first][: v.col_offset] + b"(\n" + lines[first][v.col_offset :]
    edited = b"\n".join(lines).decode() + "\n"
    try:
        ast.parse(edited)
    except SyntaxError:  # one value inside another
        return source
    return edited


@edit("add type annotations", "remove type annotations")
def annotations(tree: ast.Module, model: Model) -> None:
    for f in functions_in(tree):
        for a in f.args.args:
            a.annotation = a.annotation or ast.Name("object", ast.Load())
    each_statement(
        tree,
        lambda s, _: (
            [ast.AnnAssign(s.targets[0], ast.Name("object", ast.Load()), s.value, 1)]
            if isinstance(s, ast.Assign) and len(s.targets) == 1 and isinstance(s.targets[0], ast.Name)
            else None
        ),
    )


# --- names ------------------------------------------------------------------------------------------------------------


def _rename(tree: ast.AST, names: dict[str, str]) -> None:
    for n in ast.walk(tree):
        if isinstance(n, ast.Name) and n.id in names:
            n.id = names[n.id]
        elif isinstance(n, ast.arg) and n.arg in names:
            n.arg = names[n.arg]


def _renamable(tree: ast.Module, f: ast.FunctionDef, candidates: set[str]) -> list[str]:
    keywords = {n.arg for n in ast.walk(tree) if isinstance(n, ast.keyword)}
    defined = {g.name for g in functions_in(f)}
    return sorted(candidates - names_at_top(tree) - keywords - defined - {"self", "_", "params"})


@edit("rename one local in each function")
def rename_one(tree: ast.Module, model: Model) -> None:
    for f in outermost_in(tree):
        names = _renamable(tree, f, stored_in(f) - {a.arg for a in parameters_of(f)})
        _rename(f, {n: f"{n}_renamed" for n in names[:1]})


@edit("rename all locals")
def rename_locals(tree: ast.Module, model: Model) -> None:
    for f in outermost_in(tree):
        _rename(f, {n: f"{n}_renamed" for n in _renamable(tree, f, stored_in(f) - {a.arg for a in parameters_of(f)})})


@edit("rename arguments and locals")
def rename_arguments(tree: ast.Module, model: Model) -> None:
    for f in outermost_in(tree):
        _rename(f, {n: f"the_{n}" for n in _renamable(tree, f, locals_of(f))})


@edit("exchange the names of two locals")
def exchange_names(tree: ast.Module, model: Model) -> None:
    for f in outermost_in(tree):
        names = _renamable(tree, f, stored_in(f) - {a.arg for a in parameters_of(f)})
        for one, other in zip(names[::2], names[1::2], strict=False):
            _rename(f, {one: other, other: one})


@edit("rename functions")
def rename_functions(tree: ast.Module, model: Model) -> None:
    taken = stored_in(tree) | {a.arg for a in parameters_of(tree)} | names_in(ast.parse(model.made))
    methods = methods_in(tree)
    found = {f.name for f in functions_in(tree) if f not in methods} - taken
    for f in functions_in(tree):
        if f.name in found and f not in methods:
            f.name = f"compute_{f.name}"
    _rename(tree, {name: f"compute_{name}" for name in found})


@edit("rename classes")
def rename_classes(tree: ast.Module, model: Model) -> None:
    # flax derives random numbers from the names of its modules.
    found = {c.name for c in ast.walk(tree) if isinstance(c, ast.ClassDef) and "Dropout" not in ast.unparse(tree)}
    for c in ast.walk(tree):
        if isinstance(c, ast.ClassDef):
            c.name = f"{c.name}V2"
    _rename(tree, {name: f"{name}V2" for name in found})


# --- where code stands ------------------------------------------------------------------------------------------------


@edit("reverse the order of functions")
def reverse(tree: ast.Module, model: Model) -> None:
    at = [i for i, s in enumerate(tree.body) if isinstance(s, ast.FunctionDef) and not s.decorator_list]
    last = max([i for i, s in enumerate(tree.body) if not isinstance(s, ast.FunctionDef) or s.decorator_list] or [0])
    at = [i for i in at if i > last] or at
    for i, s in zip(at, [tree.body[i] for i in reversed(at)], strict=True):
        tree.body[i] = s


@edit("move functions into another function", "move functions out of another function")
def nest(tree: ast.Module, model: Model) -> None:
    for i, s in enumerate(tree.body):
        if isinstance(s, ast.FunctionDef) and not s.decorator_list and s.name not in model.made:
            maker = statements_of(f"def make_{s.name}():\n  return {s.name}\n{s.name} = make_{s.name}()")
            maker[0].body.insert(0, s)  # type: ignore[attr-defined]
            tree.body[i] = ast.If(ast.Constant(True), maker, [])


@edit("make functions methods", "make methods functions")
def methods(tree: ast.Module, model: Model) -> None:
    for i, s in enumerate(tree.body):
        if isinstance(s, ast.FunctionDef) and not s.decorator_list and s.name not in model.made:
            holder = statements_of(f"class Of_{s.name}:\n  pass\n{s.name} = Of_{s.name}().{s.name}")
            method = copy.deepcopy(s)
            method.args.args.insert(0, ast.arg("self"))
            holder[0].body = [method]  # type: ignore[attr-defined]
            tree.body[i] = ast.If(ast.Constant(True), holder, [])


@edit("move functions to a second module")
def second_module(tree: ast.Module, model: Model) -> None:
    imports = [s for s in tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
    found = [s for s in tree.body if isinstance(s, ast.FunctionDef) and not s.decorator_list]
    found = [s for s in found if s.name not in model.made]
    names = {s.name for s in found} | set(dir(builtins)) | set().union(*map(defined_by, imports))
    others = names_at_top(tree) - names
    while bad := [s for s in found if (names_in(s) & others)]:
        found = [s for s in found if s not in bad]
        others |= {s.name for s in bad}
    if found:
        text = ast.unparse(ast.Module([*imports, *found], []))
        tree.body = [s for s in tree.body if s not in found]
        names_moved = ", ".join(s.name for s in found)
        put_before_functions(tree, f"SECOND_MODULE = {text!r}\nfrom second_module import {names_moved}")


# --- what is around functions -----------------------------------------------------------------------------------------

_AROUND = """
def _around(f):
    def call(*args, **kwargs):
        if not any(isinstance(a, jax.core.Tracer) for a in jax.tree.leaves((args, kwargs))):
            return f(*args, **kwargs)
        try:
            return WRAPPED
        except Exception:
            return f(*args, **kwargs)
    return call
"""


@edit("wrap functions in jax.jit", "unwrap functions from jax.jit")
def jitted(tree: ast.Module, model: Model) -> None:
    decorate(tree, model, _AROUND.replace("WRAPPED", "jax.jit(lambda: f(*args, **kwargs))()"), "_around")


@edit("wrap functions in jax.checkpoint", "unwrap functions from jax.checkpoint")
def checkpointed(tree: ast.Module, model: Model) -> None:
    decorate(tree, model, _AROUND.replace("WRAPPED", "jax.checkpoint(lambda: f(*args, **kwargs))()"), "_around")


@edit("wrap functions in jax.named_call")
def named(tree: ast.Module, model: Model) -> None:
    decorate(tree, model, _AROUND.replace("WRAPPED", "jax.named_call(f, name='part')(*args, **kwargs)"), "_around")


@edit("add an argument that nothing reads")
def unused_argument(tree: ast.Module, model: Model) -> None:
    for f in outermost_in(tree):
        if f.args.kwarg is None and f.name not in model.made:
            f.args.kwonlyargs.append(ast.arg("note"))
            f.args.kw_defaults.append(ast.Constant(None))


@edit("put another argument first", arguments=lambda args: (_zeros(args[-1]), *args))
def first_argument(tree: ast.Module, model: Model) -> None:
    for f in functions_in(tree):
        if f.name == model.entry:
            f.args.args.insert(1 if f in methods_in(tree) else 0, ast.arg("first_argument"))


@edit("reverse the arguments of the function", arguments=lambda args: args[::-1])
def reverse_arguments(tree: ast.Module, model: Model) -> None:
    for f in functions_in(tree):
        if f.name == model.entry and f not in methods_in(tree) and not f.args.defaults:
            f.args.args.reverse()


def _zeros(tree: Any) -> Any:
    import jax

    return jax.tree.map(
        lambda x: x * 0 if jax.numpy.issubdtype(getattr(x, "dtype", int), jax.numpy.floating) else x, tree
    )


# --- expressions ------------------------------------------------------------------------------------------------------


@edit("extract the returned expression", "inline a function that returns an expression")
def extract(tree: ast.Module, model: Model) -> None:
    for f in functions_in(tree):
        s = f.body[-1]
        if isinstance(s, ast.Return) and s.value is not None and is_pure(s.value):
            reads = ", ".join(sorted((names_in(s.value) & locals_of(f)) - {g.name for g in functions_in(f)}))
            made = statements_of(f"def result({reads}):\n  pass\nreturn result({reads})")
            made[0].body = [ast.Return(s.value)]  # type: ignore[attr-defined]
            f.body[-1:] = made


@edit("give parts of expressions a name", "inline variables that are read once")
def name_parts(tree: ast.Module, model: Model) -> None:
    def change(s: ast.stmt, name: str) -> list[ast.stmt] | None:
        v = getattr(s, "value", None)
        if not isinstance(s, (ast.Assign, ast.Return)) or not isinstance(v, ast.BinOp):
            return None
        if not isinstance(v.left, (ast.BinOp, ast.Call)):
            return None
        part, v.left = v.left, ast.Name(name, ast.Load())
        return [ast.Assign([ast.Name(name, ast.Store())], part), s]

    each_statement(tree, change)


@edit("name the results before returning them", "return expressions without a name")
def name_results(tree: ast.Module, model: Model) -> None:
    def change(s: ast.stmt, name: str) -> list[ast.stmt] | None:
        if not isinstance(s, ast.Return) or not isinstance(s.value, (ast.BinOp, ast.Call, ast.UnaryOp)):
            return None
        return [ast.Assign([ast.Name("result", ast.Store())], s.value), ast.Return(ast.Name("result", ast.Load()))]

    each_statement(tree, change)


@edit("inline variables")
def inline(tree: ast.Module, model: Model) -> None:
    for block in list(blocks_in(tree)):
        for i in range(len(block) - 2, -1, -1):
            one, two = block[i], block[i + 1]
            match one:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if is_pure(value):
                    f = next(f for f in functions_in(tree) if any(n is one for n in ast.walk(f)))
                    if (f.name in model.made and f.name != model.entry) or "params" in f.name:
                        continue
                    uses = [n for n in ast.walk(f) if isinstance(n, ast.Name) and n.id == name]
                    inside = [n for n in ast.walk(two) if isinstance(n, ast.Name) and n.id == name]
                    if len(uses) == 2 and len(inside) == 1 and isinstance(two, (ast.Assign, ast.Return, ast.Expr)):
                        found = inside[0]
                        replace_nodes(two, lambda n, found=found, value=value: value if n is found else None)
                        del block[i]


@edit("write jax.numpy for jnp", "write jnp for jax.numpy")
def long_jnp(tree: ast.Module, model: Model) -> None:
    is_jnp = lambda n: isinstance(n, ast.Name) and n.id == "jnp" and isinstance(n.ctx, ast.Load)
    replace_nodes(tree, lambda n: expression_of("jax.numpy") if is_jnp(n) else None)


@edit("write jnp.matmul for @", "write @ for jnp.matmul")
def matmul(tree: ast.Module, model: Model) -> None:
    def change(n: ast.AST) -> ast.AST | None:
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult):
            return ast.Call(expression_of("jnp.matmul"), [n.left, n.right], [])
        return None

    replace_nodes(tree, change)


@edit("pass keyword arguments", "pass positional arguments")
def keywords(tree: ast.Module, model: Model) -> None:
    parameters = {f.name: [a.arg for a in f.args.args] for f in tree.body if isinstance(f, ast.FunctionDef)}
    of_jax = {"jax.nn.softmax": ["x", "axis"], "jax.scipy.special.logsumexp": ["a", "axis"], "jnp.sum": ["a", "axis"]}

    def change(n: ast.AST) -> ast.AST | None:
        if not isinstance(n, ast.Call) or any(isinstance(a, ast.Starred) for a in n.args):
            return None
        names = {**parameters, **of_jax}.get(ast.unparse(n.func), [])
        if len(names) < len(n.args) or len(n.args) < 2:
            return None
        moved = [ast.keyword(name, a) for name, a in zip(names[1:], n.args[1:], strict=False)]
        return ast.Call(n.func, n.args[:1], [*moved, *n.keywords])

    replace_nodes(tree, change)


@edit("reverse keyword arguments")
def keyword_order(tree: ast.Module, model: Model) -> None:
    for n in ast.walk(tree):
        if isinstance(n, ast.Call):
            n.keywords.reverse()


@edit("write jnp.mean(x) for x.mean()", "write x.mean() for jnp.mean(x)")
def functions_for_methods(tree: ast.Module, model: Model) -> None:
    def change(n: ast.AST) -> ast.AST | None:
        match n:
            case ast.Call(func=ast.Attribute(value=x, attr=("mean" | "sum" | "max" | "var") as name)):
                if ast.unparse(x) not in ("jnp", "np", "jax.numpy"):
                    return ast.Call(expression_of(f"jnp.{name}"), [x, *n.args], n.keywords)
        return None

    replace_nodes(tree, change)


@edit("write x += y for x = x + y", "write x = x + y for x += y")
def augmented(tree: ast.Module, model: Model) -> None:
    def change(s: ast.stmt, name: str) -> list[ast.stmt] | None:
        match s:
            case ast.Assign(targets=[ast.Name(id=x)], value=ast.BinOp(left=ast.Name(id=y), op=op, right=r)) if x == y:
                return [ast.AugAssign(ast.Name(x, ast.Store()), op, r)]
        return None

    each_statement(tree, change)


@edit("name constants")
def name_constants(tree: ast.Module, model: Model) -> None:
    found: list[float] = []

    def change(n: ast.AST) -> ast.AST | None:
        if isinstance(n, ast.Constant) and isinstance(n.value, float):
            found.append(n.value)
            return ast.Name(f"CONSTANT_{len(found)}", ast.Load())
        return None

    for f in outermost_in(tree):
        for s in f.body:
            replace_nodes(s, change)
    if found:
        put_before_functions(tree, "\n".join(f"CONSTANT_{i} = {v!r}" for i, v in enumerate(found, 1)))


def change_constants(source: str, model: Model) -> str | None:
    """Other numbers, from the first operations on."""
    tree = ast.parse(source)
    changed = False
    for f in outermost_in(tree):
        if f.name not in model.made and f.name not in ("normal", "full"):
            found = [n for s in f.body for n in ast.walk(s) if isinstance(n, ast.Constant) and type(n.value) is float]
            changed = changed or bool(found)
            for n in found:
                n.value = n.value * 0.9 + 1e-6
    return ast.unparse(tree) if changed else None


EDITS["change constants"] = Edit("change constants", lambda source, model: source, first=change_constants)


@edit("define functions for lambdas")
def lambdas(tree: ast.Module, model: Model) -> None:
    def change(s: ast.stmt, name: str) -> list[ast.stmt] | None:
        match s:
            case ast.Assign(targets=[ast.Name(id=f)], value=ast.Lambda(args=args, body=body)):
                (made,) = statements_of(f"def {f}():\n  pass")
                made.args, made.body = args, [ast.Return(body)]  # type: ignore[attr-defined]
                return [made]
        return None

    each_statement(tree, change)


# --- statements -------------------------------------------------------------------------------------------------------


@edit("exchange independent statements")
def exchange(tree: ast.Module, model: Model) -> None:
    def swappable(one: ast.stmt, two: ast.stmt) -> bool:
        if not all(isinstance(s, ast.Assign) and is_pure(s.value) for s in (one, two)):
            return False
        return not (stored_in(one) & names_in(two)) and not (stored_in(two) & names_in(one))

    for block in list(blocks_in(tree)):
        i = 0
        while i + 1 < len(block):
            if swappable(block[i], block[i + 1]):
                block[i], block[i + 1] = block[i + 1], block[i]
                i += 1
            i += 1


@edit("exchange the branches of an if")
def branches(tree: ast.Module, model: Model) -> None:
    for n in ast.walk(tree):
        if isinstance(n, (ast.If, ast.IfExp)) and n.orelse:
            n.test, n.body, n.orelse = ast.UnaryOp(ast.Not(), n.test), n.orelse, n.body  # type: ignore[assignment]


@edit("assign the parts of a tuple one by one")
def split_tuples(tree: ast.Module, model: Model) -> None:
    def change(s: ast.stmt, name: str) -> list[ast.stmt] | None:
        match s:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(
                values
            ):
                if not any(stored_in(t) & names_in(v) for t in targets for v in values):
                    return [ast.Assign([t], v) for t, v in zip(targets, values, strict=True)]
        return None

    each_statement(tree, change)


@edit("enumerate a loop")
def enumerated(tree: ast.Module, model: Model) -> None:
    for n in ast.walk(tree):
        if isinstance(n, ast.For) and "enumerate" not in ast.unparse(n.iter):
            n.target = ast.Tuple([ast.Name("number", ast.Store()), n.target], ast.Store())
            n.iter = ast.Call(ast.Name("enumerate", ast.Load()), [n.iter], [])


@edit("scan over a loop in Python")
def to_scan(tree: ast.Module, model: Model) -> None:
    for f in functions_in(tree):
        if f.name in model.made or any(isinstance(n, (ast.Yield,)) for n in ast.walk(f)):
            continue
        for i, s in enumerate(f.body):
            if not isinstance(s, ast.For) or isinstance(s.iter, ast.Call):
                continue
            before = {a.arg for a in f.args.args} | set().union(*map(stored_in, f.body[:i]), set())
            carried = ", ".join(sorted(stored_in(ast.Module(s.body, [])) & before))
            text = (
                f"def step(carry, row):\n  {carried}, = carry\n  return ({carried},), None\n"
                f"({carried},), _ = jax.lax.scan(step, ({carried},), jax.tree.map("
                f"lambda *rows: jnp.stack(rows), *{ast.unparse(s.iter)}))"
            )
            if carried:
                made = statements_of(text)
                unpacked = ast.Assign([s.target], ast.Name("row", ast.Load()))
                made[0].body[1:1] = [unpacked, *s.body]  # type: ignore[attr-defined]
                f.body[i : i + 1] = made
                break


_UNROLLED = """
def _unrolled(f, carry, xs=None, length=None):
    rows = []
    for i in range(length if length is not None else jax.tree.leaves(xs)[0].shape[0]):
        carry, row = f(carry, jax.tree.map(lambda x: x[i], xs))
        rows.append(row)
    return carry, jax.tree.map(lambda *rows: jnp.stack(rows), *rows)
"""


@edit("unroll scans into loops in Python")
def from_scan(tree: ast.Module, model: Model) -> None:
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func).endswith("lax.scan")]
    for n in calls:
        n.func = ast.Name("_unrolled", ast.Load())
    if calls:
        put_before_functions(tree, _UNROLLED)
