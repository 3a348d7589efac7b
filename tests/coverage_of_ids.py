"""Which test proves which id: reads the tests, and writes ``docs/coverage.md``.

    python -m tests.coverage_of_ids           write the file
    python -m tests.coverage_of_ids --check   say what is wrong and end with 1, and write nothing

An id of ``docs/ids.md`` is proven by a test whose name holds it (``test_R3_…``, ``test_R3_B7_…``, ``test_case_A2_…``) or whose
docstring begins with it (``R3, B7: …``). A module's docstring proves nothing. Ids without a test stand in ``OPEN`` with the reason,
and those of which a part has none in ``PARTIAL``; ``tests/pure/test_coverage_of_ids.py`` keeps both lists honest.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
IDS: Final = ROOT / "docs" / "ids.md"
COVERAGE: Final = ROOT / "docs" / "coverage.md"

#: Ids that no test proves yet, and why.
OPEN: Final[dict[str, str]] = {}

#: Ids that tests prove in part: what is missing.
PARTIAL: Final[dict[str, str]] = {
    "P1": "the runs that ask are sent; a child's parent is not, for plays do not yet run children",
    "P5": "runs have no deadline yet that a call's timeout could be cut to; a Python tool's call has one limit, not one a phase",
    "G3": "retries alone: budgets of calls, children, depth and steps are not built, nor do children share one",
    "K7": "child runs are named, but plays do not yet run children",
}

_ID = r"(?:case_)?[A-Z][0-9]{1,2}"
_IN_NAME = re.compile(rf"(?<=_)({_ID})(?=_|$)")
_FIRST_WORDS = re.compile(rf"^({_ID}(?:(?:, | and |; |/){_ID})*)[:.]")
_ROW = re.compile(rf"^\| ({_ID}) \| (.+) \|$")


@dataclass(frozen=True, slots=True, order=True)
class Proof:
    """A test function, by its file below the root and its name."""

    file: str
    name: str


@dataclass(frozen=True, slots=True)
class KnownIds:
    """The table of ids: what each says, and which must be proven or stand in ``OPEN``."""

    texts: Mapping[str, str]
    required: frozenset[str]


def known_ids(text: str) -> KnownIds:
    """Read the table of ids. Below a heading that says *named where tested* they are known and not required.

    Raises ``ValueError`` for an id that stands there twice.
    """
    texts: dict[str, str] = {}
    required = set()
    must = True
    for line in text.splitlines():
        if line.startswith("## "):
            must = "named where tested" not in line
        row = _ROW.match(line)
        if row is None:
            continue
        name, says = row.groups()
        if name in texts:
            raise ValueError(f"docs/ids.md: {name} stands there twice")
        texts[name] = says
        if must:
            required.add(name)
    return KnownIds(texts, frozenset(required))


def ids_of(name: str, docstring: str) -> tuple[str, ...]:
    """Ids that a test's name holds, or its docstring begins with, each once."""
    found = _IN_NAME.findall(name)
    first = _FIRST_WORDS.match(docstring)
    if first is not None:
        found += re.findall(_ID, first[1])
    return tuple(dict.fromkeys(found))


def proofs_in(source: str, file: str) -> Iterator[tuple[Proof, tuple[str, ...]]]:
    """The tests of a file with the ids that they prove."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Proof(file, node.name), ids_of(node.name, ast.get_docstring(node) or "")


def proofs_by_id(root: Path) -> dict[str, list[Proof]]:
    """All tests below ``root/tests`` by the ids that they prove, in order of file and name."""
    found: dict[str, list[Proof]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for test, ids in proofs_in(path.read_text(), path.relative_to(root).as_posix()):
            for name in ids:
                found.setdefault(name, []).append(test)
    return {name: sorted(tests) for name, tests in found.items()}


def faults(known: KnownIds, tests: Mapping[str, list[Proof]], opened: Mapping[str, str], partial: Mapping[str, str]) -> list[str]:
    """What is wrong with the lists, a line each."""
    wrong = [
        f"{name} is no id of docs/ids.md; named by {test.file}: {test.name}"
        for name in _ordered(tests)
        if name not in known.texts
        for test in tests[name]
    ]
    for name in _ordered(known.texts):
        if name in opened and name in tests:
            wrong.append(f"{name} has a test, {tests[name][0].name}: take it out of OPEN")
        elif name in known.required and name not in tests and name not in opened:
            wrong.append(f"{name} has no test; write one, or say in OPEN why there is none")
        if name in partial and name not in tests:
            wrong.append(f"{name} stands in PARTIAL and has no test at all: it belongs into OPEN")
    wrong += [
        f"{name} stands in OPEN or PARTIAL and is no id of docs/ids.md" for name in (*opened, *partial) if name not in known.texts
    ]
    return wrong


def written(known: KnownIds, tests: Mapping[str, list[Proof]], opened: Mapping[str, str], partial: Mapping[str, str]) -> str:
    """The text of ``docs/coverage.md``."""
    proven = sum(name in tests for name in known.required)
    lines = [
        "# Which test proves what",
        "",
        "Written by `python -m tests.coverage_of_ids` from the names and docstrings of the tests, not to be edited. What each says",
        f"stands in [ids.md](ids.md). Of {len(known.required)} ids that must be proven {proven} have a test.",
        "",
        "## Not tested",
        "",
        "| id | what it says | why there is no test |",
        "| --- | --- | --- |",
        *(f"| {name} | {known.texts[name]} | {opened[name]} |" for name in _ordered(opened)),
        "",
        "## Tested in part",
        "",
        "| id | what it says | what is missing |",
        "| --- | --- | --- |",
        *(f"| {name} | {known.texts[name]} | {partial[name]} |" for name in _ordered(partial)),
        "",
        "## Tests by id",
        "",
        "| id | file | test |",
        "| --- | --- | --- |",
        *(f"| {name} | `{test.file}` | `{test.name}` |" for name in _ordered(tests) for test in tests[name]),
        "",
    ]
    return "\n".join(lines)


def _ordered(names: Iterable[str]) -> list[str]:
    """Ids before cases, by letter and number."""
    return sorted(names, key=lambda name: (name.startswith("case_"), name.removeprefix("case_")[0], int(re.sub(r"\D", "", name))))


def main(arguments: list[str]) -> int:
    """Write the file, or with ``--check`` only compare; the exit code."""
    known, tests = known_ids(IDS.read_text()), proofs_by_id(ROOT)
    wrong = faults(known, tests, OPEN, PARTIAL)
    text = written(known, tests, OPEN, PARTIAL) if not wrong else ""
    if not wrong and "--check" in arguments and (not COVERAGE.exists() or COVERAGE.read_text() != text):
        wrong = ["docs/coverage.md is not what the tests say; run python -m tests.coverage_of_ids"]
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong and "--check" not in arguments:
        COVERAGE.write_text(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
