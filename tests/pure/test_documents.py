"""README and docs: their examples are what they claim, their links lead somewhere, and the decisions can be found."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from schemas.events import Repeat
from schemas.plays import Play
from schemas.providers import Providers, PythonProvider
from streams.engine.compile import compile_play
from tests import attempt_diagram

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
DECISIONS = (ROOT / "docs" / "decisions.md").read_text()
#: Documents whose examples in TOML are checked; a new one must be named here, an old one must have some.
WITH_TOML = {"README.md", "fetch.md", "provider-calls.md", "python-tools.md", "unknown.md"}
COLUMNS_MAX = 140

#: What a fragment of a providers file or of a play leaves out.
ACME = {"base_url": "https://api.acme.example", "auth": {"secret": "env:ACME_KEY"}, "tools": {"check": {"path": "/v1/check"}}}
COLUMN = {"name": "email_check", "tool": "acme.check", "input": {"email": "{{ row.email }}"}}


def blocks(document: Path, language: str) -> list[str]:
    """What stands in a document's blocks of code of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


def examples(language: str) -> list[Any]:
    """Every block of code of one language, named by its document and place."""
    return [
        pytest.param(text, id=f"{document.name}-{place}")
        for document in DOCUMENTS
        for place, text in enumerate(blocks(document, language), 1)
    ]


def merged(whole: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """A fragment put into what it leaves out."""
    both = {name: merged(whole[name], value) for name, value in part.items() if isinstance(value, dict) and name in whole}
    return {**whole, **part, **both}


def completed(block: Mapping[str, Any]) -> dict[str, Any]:
    """A providers file that is a fragment, with the provider and the tool that it speaks of."""
    over_http = [name for name, provider in block.get("providers", {}).items() if provider.get("kind", "http") == "http"]
    return merged({"providers": dict.fromkeys(over_http, ACME)}, block)


def providers_of(block: Mapping[str, Any]) -> Providers:
    """The providers file that a block claims to be."""
    return Providers.model_validate(completed(block))


@pytest.mark.parametrize("text", examples("toml"))
def test_each_example_in_toml_is_what_it_claims_to_be(text: str) -> None:
    block = tomllib.loads(text)
    if "providers" in block or "fetch" in block:
        assert providers_of(block)
    elif "columns" in block or "retries_max" in block:
        assert Play.model_validate({"name": "contacts", "columns": [COLUMN]} | block)
    else:
        points = block["project"]["entry-points"]["paidonce.tools"]
        assert all(re.fullmatch(r"[\w.]+:\w+", function) for function in points.values())


def test_documents_with_examples_in_toml_are_those_that_are_known() -> None:
    assert {document.name for document in DOCUMENTS if blocks(document, "toml")} == WITH_TOML


@pytest.mark.parametrize("text", examples("python"))
def test_each_example_in_python_compiles(text: str) -> None:
    compile(text, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("text", examples("json"))
def test_each_example_in_json_is_json(text: str) -> None:
    assert json.loads(text)


def test_the_names_that_examples_import_from_this_project_exist() -> None:
    for document in DOCUMENTS:
        for node in ast.walk(ast.parse("\n".join(blocks(document, "python")))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(("streams", "schemas")):
                module = __import__(node.module, fromlist=[name.name for name in node.names])
                assert not [name.name for name in node.names if not hasattr(module, name.name)], document.name


def test_the_play_of_the_readme_is_bound_to_its_providers_file() -> None:
    found = [tomllib.loads(text) for text in blocks(ROOT / "README.md", "toml")]
    (providers,) = [Providers.model_validate(block) for block in found if "providers" in block]  # whole, no fragment
    (play,) = [Play.model_validate(block) for block in found if "columns" in block]
    bound, faults = compile_play(play, providers, "org", now_seconds=0)
    assert faults == []
    assert bound is not None
    assert [column.repeat for column in bound.columns] == [Repeat.WITH_KEY]


def test_the_tools_of_the_python_example_are_those_of_its_package() -> None:
    file, package = (tomllib.loads(text) for text in blocks(ROOT / "docs" / "python-tools.md", "toml"))
    provider = Providers.model_validate(file).providers["acme"]
    assert isinstance(provider, PythonProvider)
    tool = provider.tools["lookup"]
    assert tool.batch is not None
    assert {tool.entry_point, tool.batch.entry_point} == set(package["project"]["entry-points"]["paidonce.tools"])


# --- links and lines ----------------------------------------------------------------------------------------


def anchors(text: str) -> list[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_to_files_and_headings_that_are_there(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        name, _, anchor = target.partition("#")
        file = (document.parent / name) if name else document
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text()), target


@pytest.mark.parametrize(
    "document", [document for document in DOCUMENTS if document.name != "coverage.md"], ids=lambda one: one.name
)
def test_what_is_no_table_has_lines_that_can_be_read(document: Path) -> None:
    long = [line for line in document.read_text().splitlines() if len(line) > COLUMNS_MAX and not line.startswith("|")]
    assert long == []


# --- decisions ----------------------------------------------------------------------------------------------


def test_decisions_have_rising_numbers_and_anchors_of_their_own() -> None:
    numbers = [int(number) for number in re.findall(r"^### D-(\d+) \S", DECISIONS, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    found = anchors(DECISIONS)
    assert len(found) == len(set(found))


def test_each_decision_has_a_date_its_context_its_choice_and_its_cost() -> None:
    entries = re.split(r"^### ", DECISIONS, flags=re.MULTILINE)[1:]
    dates = []
    for entry in entries:
        heading, said, *parts = entry.strip().split("\n\n")
        dated = re.match(r"(\d{4}-\d\d-\d\d)$|(\d{4}-\d\d-\d\d)\. Superseded by D-(\d+)", said)
        assert dated is not None, heading
        dates.append(dated[1] or dated[2])
        assert int(dated[3] or 1) <= len(entries), heading
        assert [part.split(":*")[0] for part in parts] == ["*Context", "*Choice", "*Cost"], heading
    assert dates == sorted(dates)


def test_the_index_of_decisions_has_each_of_them_once() -> None:
    index, _, entries = DECISIONS.partition("## Entries\n")
    indexed = re.findall(r"^- \[D-(\d+)\]\(#(d-\1-[^)]+)\)\s+(.+)$", index, re.MULTILINE)
    headings = re.findall(r"^### D-(\d+) (.+)$", entries, re.MULTILINE)
    assert sorted((number, title) for number, _, title in indexed) == headings
    assert len(indexed) == len(re.findall(r"^- ", index, re.MULTILINE))


def test_no_decision_has_lines_that_are_too_long() -> None:
    assert [line for line in DECISIONS.splitlines() if len(line) > COLUMNS_MAX] == []


# --- the life of an attempt ---------------------------------------------------------------------------------


def test_the_drawing_of_an_attempt_is_what_the_engine_does() -> None:
    document = attempt_diagram.DOCUMENT.read_text()
    assert attempt_diagram.with_drawing(document) == document, "run python -m tests.attempt_diagram"


def test_verdicts_with_a_key_and_freely_are_the_same() -> None:
    assert attempt_diagram.arrows(Repeat.WITH_KEY) == attempt_diagram.arrows(Repeat.FREELY)
