"""What the solver is told, and the fix in the solver's own tools."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Mapping, Sequence

from environments.task import Message, ToolCall
from tasks.repository.candidate import Candidate
from tasks.repository.controls import functions_of
from tasks.repository.tree import Tree, text_of

_TESTS_NAMED = 12
_DOC_CHARS = 2_000


def problem(candidate: Candidate, fail_to_pass: Sequence[str]) -> str:
    """The issue in the source's own words, the names that the tests use, and where the work is to be done."""
    places = ", ".join(f"`{place}`" for place in candidate.layout.editable)
    parts = [
        f"The source of {candidate.package} is in /workspace. It lacks the following:",
        candidate.statement.strip() or "(no description was given)",
    ]
    if said := new_documentation(candidate):
        parts.append("The documentation will then say:\n" + said)
    if new := new_names(candidate, fail_to_pass):
        parts.append("New names that the tests use:\n" + "\n".join(f"- `{name}`" for name in new))
    names = list(dict.fromkeys(test.partition("::")[2].partition("[")[0].replace("::", ".") for test in fail_to_pass))
    more = f" and {len(names) - _TESTS_NAMED} more" if len(names) > _TESTS_NAMED else ""
    parts.append(f"Hidden tests that fail now: {', '.join(names[:_TESTS_NAMED])}{more}. The others must go on passing.")
    parts.append(f"Change only {places}. `python3 -m pytest` works in the tree. Call `submit` when you are done.")
    return "\n\n".join(parts)


def new_names(candidate: Candidate, fail_to_pass: Sequence[str]) -> list[str]:
    """Signatures of functions and classes that the fix adds and the tests that show it mention."""
    tests = ""
    for test in fail_to_pass:
        path, _, rest = test.partition("::")
        tests += functions_of(text_of(candidate.after.get(path, b"")) or "").get(rest.partition("[")[0].replace("::", "."), "")
    old = _signatures(candidate.before, candidate.changed)
    new = _signatures(candidate.after, candidate.changed)
    return [said for name, said in sorted(new.items()) if name not in old and not name.startswith("_") and name in tests]


def new_documentation(candidate: Candidate) -> str:
    """What the fix adds to docstrings: users read it, and it is no code."""
    old = {line for doc in _docstrings(candidate.before, candidate.changed).values() for line in doc.splitlines()}
    found: list[str] = []
    for name, doc in _docstrings(candidate.after, candidate.changed).items():
        new = [line for line in doc.splitlines() if line.strip() and line not in old]
        if new and not name.rpartition(".")[2].startswith("_"):
            found.append(f"`{name}`:\n" + "\n".join(new))
    return "\n".join(found)[:_DOC_CHARS]


def _docstrings(tree: Tree, paths: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in paths:
        try:
            module = ast.parse(text_of(tree.get(path, b"")) or "")
        except SyntaxError:
            continue
        for node in ast.walk(module):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and (doc := ast.get_docstring(node)):
                found[node.name] = doc
    return found


def _signatures(tree: Tree, paths: Sequence[str]) -> dict[str, str]:
    """Functions and classes by bare name, with their parameters and not their bodies."""
    found: dict[str, str] = {}
    for path in paths:
        try:
            module = ast.parse(text_of(tree.get(path, b"")) or "")
        except SyntaxError:
            continue
        for node in ast.walk(module):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[node.name] = f"{node.name}({ast.unparse(node.args)}) in {path}"
            elif isinstance(node, ast.ClassDef):
                found[node.name] = f"class {node.name} in {path}"
    return found


def call(tool: str, **arguments: str) -> Message:
    """An assistant message with one call. Not that of `tasks.kinds`, which imports this package."""
    return Message(role="assistant", calls=(ToolCall(tool=tool, arguments=dict(arguments)),))


def edits(changed: Mapping[str, tuple[str | None, str | None]]) -> tuple[Message, ...]:
    """Tool calls that make each (before, after) text of `changed`, a message each; `submit` last."""
    messages: list[Message] = []
    for path, (old, new) in changed.items():
        if new is None:
            messages.append(call("bash", command=f"rm {path}"))
        elif old is None:
            messages.append(call("create", path=path, text=new))
        else:
            messages += [call("edit", path=path, old=before, new=after) for before, after in replacements(old, new)]
    return (*messages, call("submit"))


def replacements(old: str, new: str) -> list[tuple[str, str]]:
    """Replacements that turn `old` into `new` one after the other, each of a text that occurs once when its turn comes."""
    if "\r" in old + new or not old:
        return [(old, new)] if old else []
    left, right = old.splitlines(keepends=True), new.splitlines(keepends=True)
    found: list[tuple[str, str]] = []
    current = old
    # From the end, so that what is before a change is still the old text and what is behind it the new one.
    for tag, i, j, k, m in reversed(difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes()):
        if tag == "equal":
            continue
        tail = "".join(right[m:]).splitlines(keepends=True)
        for context in range(1, len(left) + len(tail) + 2):
            head, foot = "".join(left[max(0, i - context) : i]), "".join(tail[:context])
            before, after = head + "".join(left[i:j]) + foot, head + "".join(right[k:m]) + foot
            if before and current.count(before) == 1:
                found.append((before, after))
                current = current.replace(before, after)
                break
    return found
