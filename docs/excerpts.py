"""Excerpts of the core for `walkthrough.md`, and what the page never shows.

The page's text is by hand, its code is not: cog asks here for a function, a method, a class or a
constant by its name, so an excerpt can not fall behind its source. Docstrings are left out, the
page says what they say. `python docs/excerpts.py` lists what was never quoted.
"""

import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/walkthrough.md"
CORE = "queue/killproof/core"


def definitions(path: str) -> dict[str, ast.stmt]:
    """Return what a module defines: `name` and, inside a class, `Class.name`."""
    found: dict[str, ast.stmt] = {}
    todo = [("", ast.parse((ROOT / path).read_text(encoding="utf-8")).body)]
    for prefix, body in todo:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[prefix + node.name] = node
            if isinstance(node, ast.ClassDef):
                todo.append((f"{node.name}.", node.body))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[prefix + node.target.id] = node
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[prefix + node.targets[0].id] = node
    return found


def span(node: ast.stmt) -> range:
    """Return the numbers of its lines, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return range(min(part.lineno for part in [node, *decorators]), (node.end_lineno or 0) + 1)


def docstring(node: ast.stmt) -> range:
    """Return the numbers of the lines of its docstring."""
    body = getattr(node, "body", None)
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return span(first)
    return range(0)


def excerpt(path: str, *names: str) -> str:
    """Return a fenced block with these definitions, under a comment that names their file.

    The fence says `py`, not `python`: an excerpt is to be read, and is run where it comes from.

    Raises:
        KeyError: the file defines no such name.
    """
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    found = definitions(path)
    if missing := [name for name in names if name not in found]:
        raise KeyError(f"{path} defines no {', '.join(missing)}")
    blocks = [
        textwrap.dedent(
            "\n".join(
                lines[number - 1]
                for number in span(found[name])
                if number not in docstring(found[name])
            )
        )
        for name in names
    ]
    return f"```py\n# {path}\n" + "\n\n".join(blocks) + "\n```"


def quoted(page: str) -> dict[str, set[int]]:
    """Return, for each file, the numbers of the lines that the page's excerpts show."""
    shown: dict[str, set[int]] = {}
    for path, names in re.findall(r'excerpt\("([^"]+)",\s*([^)]*)\)', page):
        for name, node in definitions(path).items():
            if f'"{name}"' in names:
                shown.setdefault(path, set()).update(span(node))
    return shown


def unquoted(page: str) -> dict[str, list[str]]:
    """Return, for each module of the core, the functions of which the page shows no line."""
    shown = quoted(page)
    missing: dict[str, list[str]] = {}
    for file in sorted((ROOT / CORE).glob("*.py")):
        path = f"{CORE}/{file.name}"
        names = [
            name
            for name, node in definitions(path).items()
            if isinstance(node, ast.FunctionDef) and not shown.get(path, set()) & set(span(node))
        ]
        if names:
            missing[file.name] = names
    return missing


if __name__ == "__main__":
    for module, names in unquoted(PAGE.read_text(encoding="utf-8")).items():
        print(f"{module}: never quoted: {', '.join(names)}")
