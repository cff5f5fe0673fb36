"""The solution program: written from the constraints, and proved to reach the data through the tools alone.

Two proofs. *Static*: its syntax tree holds nothing but arithmetic, loops, a few pure functions and calls of the task's tools; no
attribute but those of plain values, no import but json and itertools, and no id of the database as a literal. *At run time*: in
the task's own sandbox it solves the task and, unchanged, a twin whose ids are others; where the tools know nothing it fails.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from environments.families.general_agent import Schema
from tasks.kinds.general_agent.players import Problem

PURE = frozenset(
    {
        "len",
        "sum",
        "min",
        "max",
        "all",
        "any",
        "sorted",
        "range",
        "zip",
        "enumerate",
        "list",
        "dict",
        "set",
        "tuple",
        "str",
        "int",
        "float",
        "abs",
        "round",
        "print",
    }
)
METHODS = frozenset({"append", "items", "keys", "values", "get", "split", "strip", "join", "loads", "product"})
MODULES = frozenset({"json", "itertools"})
_NODES = (
    ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.If, ast.Continue, ast.Break, ast.Import, ast.alias, ast.Call,
    ast.keyword, ast.Name, ast.Load, ast.Store, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.List, ast.Tuple, ast.Dict,
    ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp, ast.comprehension, ast.BinOp, ast.UnaryOp, ast.BoolOp,
    ast.Starred, ast.Compare, ast.IfExp,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.FunctionDef, ast.arguments, ast.arg, ast.Return,
)  # fmt: skip


def objections(source: str, tools: Collection[str], secrets: Collection[str] = ()) -> list[str]:
    """Why a program may reach data by another way than `tools`, or brings it along; empty when it cannot.

    Args:
        secrets: texts of the database that must not occur as literals.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [f"it does not parse: {error}"]
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    parameters = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    functions = set(tools) | PURE | defined
    known = functions | stored | MODULES | parameters
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            found.append(f"{type(node).__name__} is not allowed")
        elif isinstance(node, ast.Import):
            found += [f"import of {a.name}" for a in node.names if a.name not in MODULES or a.asname]
        elif isinstance(node, ast.Attribute) and (node.attr not in METHODS or not isinstance(node.ctx, ast.Load)):
            found.append(f"attribute {node.attr}")
        elif isinstance(node, ast.Name) and (node.id.startswith("_") or node.id not in known):
            found.append(f"name {node.id}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in functions:
            found.append(f"call of {node.func.id}")
        elif isinstance(node, ast.Call) and not isinstance(node.func, (ast.Name, ast.Attribute)):
            found.append("call of a computed function")
        elif isinstance(node, ast.FunctionDef) and node.decorator_list:
            found.append("a decorator")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and any(s in node.value for s in secrets):
            found.append(f"literal {node.value!r:.40} of the database")
    if taken := sorted((stored | defined | parameters) & (set(tools) | PURE | MODULES)):
        found.append(f"{taken[0]} is given another meaning")
    return list(dict.fromkeys(found))


def program(problem: Problem) -> str:
    """A solution: read everything through the tools, try every plan, take the best."""
    schema: Schema = problem.world.schema
    find, details, link, choose, _, _ = schema.tools
    place, places = schema.groups[0]
    kept = "\n            and ".join(f"({c.expression})" for c in problem.constraints)
    value = f"sum(r[{schema.numbers[0].column!r}] for r in rows)" if problem.least else "0"
    return f"""import itertools
import json

slots = {list(problem.world.slots)!r}
options = [[json.loads({details}(i)) for i in json.loads({find}(slot))] for slot in slots]
places = {list(places)!r}
links = dict([((a, b), int({link}(a, b))) for a in places for b in places])
best, value = [], 0
for rows in itertools.product(*options):
    if ({kept}):
        if not best or {value} < value:
            best, value = list(rows), {value}
for row in best:
    {choose}(row["slot"], row["id"])
print(len(best), "taken,", {place!r}, [row[{place!r}] for row in best])
"""
