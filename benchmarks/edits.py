"""Edits of a program's source, as people make them: text in, text out, for any model.

An edit returns None where it changes nothing. Most keep all numbers; `EDITS` says what holds of the others.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

Change = Callable[[ast.Module, "Model"], None]
Function = ast.FunctionDef | ast.Lambda


@dataclass(frozen=True)
class Model:
    """A model in a file.

    Args:
      name: in the table.
      file: where it is written.
      made: an expression that has the function and its arguments.
      entry: the name of the function.
    """

    name: str
    file: str
    made: str
    entry: str


@dataclass(frozen=True)
class Edit:
    """An edit of a source.

    Args:
      name: what a person does.
      run: from a source to the edited one; None if it does not apply.
      arguments: from the arguments before to those after it.
      is_undone: whether it is the edit back, from the edited source to the original.
      adds_look_alikes: whether it adds or deletes values with the text of others.
      first: an edit made together with it, which changes numbers and no structure.
    """

    name: str
    run: Callable[[str, Model], str | None]
    arguments: Callable[[tuple[Any, ...]], tuple[Any, ...]] = lambda args: args
    is_undone: bool = False
    adds_look_alikes: bool = False
    first: Callable[[str, Model], str | None] = lambda source, model: source


EDITS: dict[str, Edit] = {}


def edit(name: str, undone: str = "", **facts: Any) -> Callable[[Change], Change]:
    """Adds an edit of the syntax tree to the table; and with `undone`, the edit back under that name."""

    def enter(change: Change) -> Change:
        def run(source: str, model: Model) -> str | None:
            tree = ast.parse(source)
            before = ast.dump(tree)
            change(tree, model)
            return None if ast.dump(tree) == before else ast.unparse(ast.fix_missing_locations(tree))

        EDITS[name] = Edit(name, run, **facts)
        if undone:
            EDITS[undone] = Edit(undone, run, is_undone=True, **facts)
        return change

    return enter


def _text(name: str) -> Callable[[Callable[[str], str]], Callable[[str], str]]:
    def enter(change: Callable[[str], str]) -> Callable[[str], str]:
        EDITS[name] = Edit(name, lambda source, model: change(source))
        return change

    return enter


# --- what edits ask of a source ---------------------------------------------------------------------------------------


def sliced(source: str, wanted: str) -> str:
    """The statements of a module that an expression needs."""
    lines, tree = source.splitlines(), ast.parse(source)
    needed, left = _names(ast.parse(wanted)), list(tree.body)
    kept: list[ast.stmt] = []
    while more := [s for s in left if needed & _defines(s)]:
        kept += more
        left = [s for s in left if s not in more]
        needed |= set().union(*map(_names, more))
    first = lambda s: min([s.lineno, *(d.lineno for d in getattr(s, "decorator_list", ()))])
    parts = ["\n".join(lines[first(s) - 1 : s.end_lineno]) for s in sorted(kept, key=lambda s: s.lineno)]
    return "\n\n".join(["from __future__ import annotations", *parts, ""])


def _names(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def _defines(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(a.asname or a.name).split(".")[0] for a in names} - {"annotations"}
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _parameters(function: ast.AST) -> list[ast.arg]:
    return [n for n in ast.walk(function) if isinstance(n, ast.arg)]


def _stored(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]


def _methods(tree: ast.AST) -> set[ast.stmt]:
    return {f for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in c.body}


def _outermost(tree: ast.Module) -> list[ast.FunctionDef]:
    of_classes = [s for c in tree.body if isinstance(c, ast.ClassDef) for s in c.body]
    return [s for s in [*tree.body, *of_classes] if isinstance(s, ast.FunctionDef)]


def _top(tree: ast.Module) -> set[str]:
    return set().union(*map(_defines, tree.body)) | set(dir(builtins))


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """The statements of each function, also those in its loops and branches."""
    for f in _functions(tree):
        for n in ast.walk(f):
            for field in ("body", "orelse"):
                block = getattr(n, field, None)
                if isinstance(block, list) and not isinstance(n, ast.ClassDef):
                    yield block


def _is_docstring(s: ast.stmt) -> bool:
    return isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)


def _each(tree: ast.AST, change: Callable[[ast.stmt, str], Sequence[ast.stmt] | None]) -> None:
    """Replaces statements by others, each once; `change` is passed a new name too."""
    seen: set[int] = set()
    n = 0
    for block in list(_blocks(tree)):
        if id(block) in seen:
            continue
        seen.add(id(block))
        made: list[ast.stmt] = []
        for s in block:
            n += 1
            new = change(s, f"new_{n}")
            made += [s] if new is None else new
        block[:] = made


def _statements(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


_STATEFUL = ("nn", "hk", "nnx", "self", "eqx", "super", "model", "layers", "embed", "DECODER")
_COMPREHENSIONS = (ast.GeneratorExp, ast.ListComp, ast.DictComp, ast.SetComp)


def _is_pure(e: ast.AST) -> bool:
    """Whether an expression may be evaluated twice: a library may create parameters."""
    for n in ast.walk(e):
        if isinstance(n, ast.Call) and re.split(r"\W", ast.unparse(n.func))[0] in _STATEFUL:
            return False
        if isinstance(
            n,
            (
                ast.Lambda,
                ast.GeneratorExp,
                ast.ListComp,
                ast.DictComp,
                ast.SetComp,
                ast.Yield,
                ast.NamedExpr,
                ast.Await,
            ),
        ):
            return False
    return any(isinstance(n, (ast.BinOp, ast.Call)) for n in ast.walk(e))


def _locals_of(tree: ast.AST) -> set[str]:
    return {a.arg for a in _parameters(tree)} | _stored(tree)


def _before_functions(tree: ast.Module, text: str) -> None:
    """Adds definitions after the imports."""
    at = max(i for i, s in enumerate(tree.body) if isinstance(s, (ast.Import, ast.ImportFrom))) + 1
    tree.body[at:at] = _statements(text)


def _replaced(tree: ast.AST, change: Callable[[ast.AST], ast.AST | None]) -> None:
    """Replaces nodes, innermost first."""

    class Replace(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            super().generic_visit(node)
            new = change(node)
            return node if new is None else new

    Replace().visit(tree)


def _decorated(tree: ast.Module, model: Model, helper: str, name: str) -> None:
    """Adds a decorator to all functions that are no methods and have none."""
    methods = _methods(tree)
    found = [f for f in _functions(tree) if f not in methods and not f.decorator_list and f.name not in model.made]
    found = [f for f in found if not any(isinstance(n, (ast.Yield, ast.Return)) and n in f.body[:1] for n in f.body)]
    for f in found:
        f.decorator_list.append(ast.Name(name, ast.Load()))
    if found:
        _before_functions(tree, helper)


# --- layout -----------------------------------------------------------------------------------------------------------


@_text("reformat")
def reformat(source: str) -> str:
    return ast.unparse(ast.parse(source))


@_text("insert comments and blank lines")
def comments(source: str) -> str:
    lines = source.splitlines()
    rows = {s.lineno for block in _blocks(ast.parse(source)) for s in block}
    for row in sorted(rows, reverse=True):
        lines[row - 1 : row - 1] = [
            "",
            " " * (len(lines[row - 1]) - len(lines[row - 1].lstrip())) + "# as in the paper",
        ]
    return "\n".join(lines) + "\n"


@_text("break lines inside parentheses")
def parentheses(source: str) -> str:
    lines = [line.encode() for line in source.splitlines()]
    tree = ast.parse(source)
    values = [s.value for block in _blocks(tree) for s in block if isinstance(s, (ast.Assign, ast.Return)) and s.value]
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
    for f in _functions(tree):
        for a in f.args.args:
            a.annotation = a.annotation or ast.Name("object", ast.Load())
    _each(
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
    defined = {g.name for g in _functions(f)}
    return sorted(candidates - _top(tree) - keywords - defined - {"self", "_", "params"})


@edit("rename one local in each function")
def rename_one(tree: ast.Module, model: Model) -> None:
    for f in _outermost(tree):
        names = _renamable(tree, f, _stored(f) - {a.arg for a in _parameters(f)})
        _rename(f, {n: f"{n}_renamed" for n in names[:1]})


@edit("rename all locals")
def rename_locals(tree: ast.Module, model: Model) -> None:
    for f in _outermost(tree):
        _rename(f, {n: f"{n}_renamed" for n in _renamable(tree, f, _stored(f) - {a.arg for a in _parameters(f)})})


@edit("rename arguments and locals")
def rename_arguments(tree: ast.Module, model: Model) -> None:
    for f in _outermost(tree):
        _rename(f, {n: f"the_{n}" for n in _renamable(tree, f, _locals_of(f))})


@edit("exchange the names of two locals")
def exchange_names(tree: ast.Module, model: Model) -> None:
    for f in _outermost(tree):
        names = _renamable(tree, f, _stored(f) - {a.arg for a in _parameters(f)})
        for one, other in zip(names[::2], names[1::2], strict=False):
            _rename(f, {one: other, other: one})


@edit("rename functions")
def rename_functions(tree: ast.Module, model: Model) -> None:
    taken = _stored(tree) | {a.arg for a in _parameters(tree)} | _names(ast.parse(model.made))
    methods = _methods(tree)
    found = {f.name for f in _functions(tree) if f not in methods} - taken
    for f in _functions(tree):
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
            maker = _statements(f"def make_{s.name}():\n  return {s.name}\n{s.name} = make_{s.name}()")
            maker[0].body.insert(0, s)  # type: ignore[attr-defined]
            tree.body[i] = ast.If(ast.Constant(True), maker, [])


@edit("make functions methods", "make methods functions")
def methods(tree: ast.Module, model: Model) -> None:
    for i, s in enumerate(tree.body):
        if isinstance(s, ast.FunctionDef) and not s.decorator_list and s.name not in model.made:
            holder = _statements(f"class Of_{s.name}:\n  pass\n{s.name} = Of_{s.name}().{s.name}")
            method = copy.deepcopy(s)
            method.args.args.insert(0, ast.arg("self"))
            holder[0].body = [method]  # type: ignore[attr-defined]
            tree.body[i] = ast.If(ast.Constant(True), holder, [])


@edit("move functions to a second module")
def second_module(tree: ast.Module, model: Model) -> None:
    imports = [s for s in tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
    found = [s for s in tree.body if isinstance(s, ast.FunctionDef) and not s.decorator_list]
    found = [s for s in found if s.name not in model.made]
    names = {s.name for s in found} | set(dir(builtins)) | set().union(*map(_defines, imports))
    others = _top(tree) - names
    while bad := [s for s in found if (_names(s) & others)]:
        found = [s for s in found if s not in bad]
        others |= {s.name for s in bad}
    if found:
        text = ast.unparse(ast.Module([*imports, *found], []))
        tree.body = [s for s in tree.body if s not in found]
        names_moved = ", ".join(s.name for s in found)
        _before_functions(tree, f"SECOND_MODULE = {text!r}\nfrom second_module import {names_moved}")


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
    _decorated(tree, model, _AROUND.replace("WRAPPED", "jax.jit(lambda: f(*args, **kwargs))()"), "_around")


@edit("wrap functions in jax.checkpoint", "unwrap functions from jax.checkpoint")
def checkpointed(tree: ast.Module, model: Model) -> None:
    _decorated(tree, model, _AROUND.replace("WRAPPED", "jax.checkpoint(lambda: f(*args, **kwargs))()"), "_around")


@edit("wrap functions in jax.named_call")
def named(tree: ast.Module, model: Model) -> None:
    _decorated(tree, model, _AROUND.replace("WRAPPED", "jax.named_call(f, name='part')(*args, **kwargs)"), "_around")


@edit("add an argument that nothing reads")
def unused_argument(tree: ast.Module, model: Model) -> None:
    for f in _outermost(tree):
        if f.args.kwarg is None and f.name not in model.made:
            f.args.kwonlyargs.append(ast.arg("note"))
            f.args.kw_defaults.append(ast.Constant(None))


@edit("put another argument first", arguments=lambda args: (_zeros(args[-1]), *args))
def first_argument(tree: ast.Module, model: Model) -> None:
    for f in _functions(tree):
        if f.name == model.entry:
            f.args.args.insert(1 if f in _methods(tree) else 0, ast.arg("first_argument"))


@edit("reverse the arguments of the function", arguments=lambda args: args[::-1])
def reverse_arguments(tree: ast.Module, model: Model) -> None:
    for f in _functions(tree):
        if f.name == model.entry and f not in _methods(tree) and not f.args.defaults:
            f.args.args.reverse()


def _zeros(tree: Any) -> Any:
    import jax

    return jax.tree.map(
        lambda x: x * 0 if jax.numpy.issubdtype(getattr(x, "dtype", int), jax.numpy.floating) else x, tree
    )


# --- expressions ------------------------------------------------------------------------------------------------------


@edit("extract the returned expression", "inline a function that returns an expression")
def extract(tree: ast.Module, model: Model) -> None:
    for f in _functions(tree):
        s = f.body[-1]
        if isinstance(s, ast.Return) and s.value is not None and _is_pure(s.value):
            reads = ", ".join(sorted((_names(s.value) & _locals_of(f)) - {g.name for g in _functions(f)}))
            made = _statements(f"def result({reads}):\n  pass\nreturn result({reads})")
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

    _each(tree, change)


@edit("name the results before returning them", "return expressions without a name")
def name_results(tree: ast.Module, model: Model) -> None:
    def change(s: ast.stmt, name: str) -> list[ast.stmt] | None:
        if not isinstance(s, ast.Return) or not isinstance(s.value, (ast.BinOp, ast.Call, ast.UnaryOp)):
            return None
        return [ast.Assign([ast.Name("result", ast.Store())], s.value), ast.Return(ast.Name("result", ast.Load()))]

    _each(tree, change)


@edit("inline variables")
def inline(tree: ast.Module, model: Model) -> None:
    for block in list(_blocks(tree)):
        for i in range(len(block) - 2, -1, -1):
            one, two = block[i], block[i + 1]
            match one:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_pure(value):
                    f = next(f for f in _functions(tree) if any(n is one for n in ast.walk(f)))
                    if (f.name in model.made and f.name != model.entry) or "params" in f.name:
                        continue
                    uses = [n for n in ast.walk(f) if isinstance(n, ast.Name) and n.id == name]
                    inside = [n for n in ast.walk(two) if isinstance(n, ast.Name) and n.id == name]
                    if len(uses) == 2 and len(inside) == 1 and isinstance(two, (ast.Assign, ast.Return, ast.Expr)):
                        found = inside[0]
                        _replaced(two, lambda n, found=found, value=value: value if n is found else None)
                        del block[i]


@edit("write jax.numpy for jnp", "write jnp for jax.numpy")
def long_jnp(tree: ast.Module, model: Model) -> None:
    is_jnp = lambda n: isinstance(n, ast.Name) and n.id == "jnp" and isinstance(n.ctx, ast.Load)
    _replaced(tree, lambda n: _expression("jax.numpy") if is_jnp(n) else None)


@edit("write jnp.matmul for @", "write @ for jnp.matmul")
def matmul(tree: ast.Module, model: Model) -> None:
    def change(n: ast.AST) -> ast.AST | None:
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult):
            return ast.Call(_expression("jnp.matmul"), [n.left, n.right], [])
        return None

    _replaced(tree, change)


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

    _replaced(tree, change)


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
                    return ast.Call(_expression(f"jnp.{name}"), [x, *n.args], n.keywords)
        return None

    _replaced(tree, change)


@edit("write x += y for x = x + y", "write x = x + y for x += y")
def augmented(tree: ast.Module, model: Model) -> None:
    def change(s: ast.stmt, name: str) -> list[ast.stmt] | None:
        match s:
            case ast.Assign(targets=[ast.Name(id=x)], value=ast.BinOp(left=ast.Name(id=y), op=op, right=r)) if x == y:
                return [ast.AugAssign(ast.Name(x, ast.Store()), op, r)]
        return None

    _each(tree, change)


@edit("name constants")
def name_constants(tree: ast.Module, model: Model) -> None:
    found: list[float] = []

    def change(n: ast.AST) -> ast.AST | None:
        if isinstance(n, ast.Constant) and isinstance(n.value, float):
            found.append(n.value)
            return ast.Name(f"CONSTANT_{len(found)}", ast.Load())
        return None

    for f in _outermost(tree):
        for s in f.body:
            _replaced(s, change)
    if found:
        _before_functions(tree, "\n".join(f"CONSTANT_{i} = {v!r}" for i, v in enumerate(found, 1)))


def change_constants(source: str, model: Model) -> str | None:
    """Other numbers, from the first operations on."""
    tree = ast.parse(source)
    changed = False
    for f in _outermost(tree):
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
                (made,) = _statements(f"def {f}():\n  pass")
                made.args, made.body = args, [ast.Return(body)]  # type: ignore[attr-defined]
                return [made]
        return None

    _each(tree, change)


# --- statements -------------------------------------------------------------------------------------------------------


@edit("exchange independent statements")
def exchange(tree: ast.Module, model: Model) -> None:
    def swappable(one: ast.stmt, two: ast.stmt) -> bool:
        if not all(isinstance(s, ast.Assign) and _is_pure(s.value) for s in (one, two)):
            return False
        return not (_stored(one) & _names(two)) and not (_stored(two) & _names(one))

    for block in list(_blocks(tree)):
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
                if not any(_stored(t) & _names(v) for t in targets for v in values):
                    return [ast.Assign([t], v) for t, v in zip(targets, values, strict=True)]
        return None

    _each(tree, change)


@edit("enumerate a loop")
def enumerated(tree: ast.Module, model: Model) -> None:
    for n in ast.walk(tree):
        if isinstance(n, ast.For) and "enumerate" not in ast.unparse(n.iter):
            n.target = ast.Tuple([ast.Name("number", ast.Store()), n.target], ast.Store())
            n.iter = ast.Call(ast.Name("enumerate", ast.Load()), [n.iter], [])


@edit("scan over a loop in Python")
def to_scan(tree: ast.Module, model: Model) -> None:
    for f in _functions(tree):
        if f.name in model.made or any(isinstance(n, (ast.Yield,)) for n in ast.walk(f)):
            continue
        for i, s in enumerate(f.body):
            if not isinstance(s, ast.For) or isinstance(s.iter, ast.Call):
                continue
            before = {a.arg for a in f.args.args} | set().union(*map(_stored, f.body[:i]), set())
            carried = ", ".join(sorted(_stored(ast.Module(s.body, [])) & before))
            text = (
                f"def step(carry, row):\n  {carried}, = carry\n  return ({carried},), None\n"
                f"({carried},), _ = jax.lax.scan(step, ({carried},), jax.tree.map("
                f"lambda *rows: jnp.stack(rows), *{ast.unparse(s.iter)}))"
            )
            if carried:
                made = _statements(text)
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
        _before_functions(tree, _UNROLLED)


# --- look-alikes ------------------------------------------------------------------------------------------------------

_SHIFTED = """
def _shifted(tree):
    is_array = lambda x: isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)
    return jax.tree.map(lambda x: x * 1.25 if is_array(x) else x, tree)

def _log(tree):
    jax.debug.callback(lambda *_: None, *[x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)])
    return tree

def _try(f):
    try:
        return _log(f())
    except (TypeError, ValueError):
        return None
"""


def _looks_alike(tree: ast.Module, model: Model, change: Callable[[ast.stmt, ast.expr], Sequence[ast.stmt]]) -> None:
    """Adds statements to each that assigns or returns an expression, given that."""

    def one(s: ast.stmt, name: str) -> Sequence[ast.stmt] | None:
        v = getattr(s, "value", None)
        if isinstance(s, (ast.Assign, ast.Return)) and v is not None and _is_pure(v):
            return change(s, v)
        return None

    traced = [f for f in _outermost(tree) if f.name not in model.made or f.name == model.entry]
    before = ast.dump(tree)
    for f in traced:
        _each(ast.Module([f], []), one)
    if ast.dump(tree) != before:
        _before_functions(tree, _SHIFTED)


def _for_other_arguments(v: ast.expr) -> ast.stmt:
    """Evaluates an expression with other values of its variables, in the same function."""
    modules = {"jax", "jnp", "lax", "np", "nn", "hk", "eqx", "nnx", "diffrax", "optax"}
    functions = {n.func.id for n in ast.walk(v) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    names = sorted(n for n in _names(v) - modules - functions if n not in dir(builtins))
    other = ", ".join(f"_shifted({n})" for n in names)
    return ast.Expr(_expression(f"_try(lambda: (lambda {', '.join(names)}: {ast.unparse(v)})({other}))"))


@edit("compute the same for a log", "no longer compute the same for a log", adds_look_alikes=True)
def log_same(tree: ast.Module, model: Model) -> None:
    _looks_alike(tree, model, lambda s, v: [ast.Expr(ast.Call(ast.Name("_log", ast.Load()), [v], [])), s])


@edit("compute the same, which nothing reads", adds_look_alikes=True)
def unread(tree: ast.Module, model: Model) -> None:
    _looks_alike(tree, model, lambda s, v: [ast.Assign([ast.Name("unread", ast.Store())], v), s])


@edit("log a metric of each value", "no longer log a metric")
def metric(tree: ast.Module, model: Model) -> None:
    def change(s: ast.stmt, v: ast.expr) -> list[ast.stmt]:
        if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name):
            return [s, *_statements(f"_try(lambda: jnp.mean({s.targets[0].id}))")]
        return [s]

    _looks_alike(tree, model, change)


@edit("insert a look-alike before each expression", "delete a look-alike before each expression", adds_look_alikes=True)
def alike_before(tree: ast.Module, model: Model) -> None:
    _looks_alike(tree, model, lambda s, v: [_for_other_arguments(v), s])


@edit("insert a look-alike after each expression", "delete a look-alike after each expression", adds_look_alikes=True)
def alike_after(tree: ast.Module, model: Model) -> None:
    _looks_alike(tree, model, lambda s, v: [s, _for_other_arguments(v)] if isinstance(s, ast.Assign) else [s])


@edit("move each expression behind a look-alike in its place", adds_look_alikes=True)
def alike_in_place(tree: ast.Module, model: Model) -> None:
    """`h = E` becomes `h = [E with other arguments, E][1]`: as many lines, the look-alike assigned to nothing."""

    def change(s: ast.stmt, v: ast.expr) -> list[ast.stmt]:
        other = _for_other_arguments(v).value  # type: ignore[attr-defined]
        s.value = ast.Subscript(ast.Tuple([other, v], ast.Load()), ast.Constant(1), ast.Load())  # type: ignore
        return [s]

    _looks_alike(tree, model, change)


_TWICE = """
def _twice(f):
    def call(*args, **kwargs):
        if not any(isinstance(a, jax.core.Tracer) for a in jax.tree.leaves((args, kwargs))):
            return f(*args, **kwargs)
        BODY
    call.__name__ = f.__name__
    return call
"""
_OTHER = "_try(lambda: f(*map(_shifted, args), **kwargs))"


def _twice(tree: ast.Module, model: Model, *body: str) -> None:
    _decorated(tree, model, _SHIFTED + _TWICE.replace("BODY", "\n        ".join(body)), "_twice")


@edit("call functions for other arguments before", "no longer call them before", adds_look_alikes=True)
def called_before(tree: ast.Module, model: Model) -> None:
    _twice(tree, model, _OTHER, "return f(*args, **kwargs)")


@edit("call functions for other arguments after", "no longer call them after", adds_look_alikes=True)
def called_after(tree: ast.Module, model: Model) -> None:
    _twice(tree, model, "result = f(*args, **kwargs)", _OTHER, "return result")


@edit("call the model for other arguments first", "no longer call the model first", adds_look_alikes=True)
def model_before(tree: ast.Module, model: Model) -> None:
    for f in _functions(tree):
        if f.name == model.entry and not f.args.kwonlyargs:
            f.decorator_list.append(ast.Name("_twice", ast.Load()))
            body = "\n        ".join([_OTHER, "return f(*args, **kwargs)"])
            _before_functions(tree, _SHIFTED + _TWICE.replace("BODY", body))


for _name in (
    "rename all locals", "wrap functions in jax.jit", "extract the returned expression",
    "insert a look-alike before each expression", "delete a look-alike before each expression",
    "call functions for other arguments before", "no longer call them before", "scan over a loop in Python",
    "unroll scans into loops in Python", "compute the same for a log",
):  # fmt: skip
    _new = f"change constants, and {_name}"
    EDITS[_new] = replace(EDITS[_name], name=_new, first=change_constants)
