"""Python tools before anything runs: what cannot be called is refused at the start, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.app import run_worker
from streams.errors import ConfigurationError
from streams.settings import Settings
from streams.tools.port import Answered
from streams.tools.python import PythonCaller
from streams.userfiles import load_providers, secret_faults
from tests.support.scripted_python import HERE, SECRET, call_of, opened, providers_of, value


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (f"{HERE}:absent", "cannot be loaded: AttributeError"),
        ("no.such.module:f", "cannot be loaded: ModuleNotFoundError"),
        (f"{HERE}:number", "is no function, but int"),
        (f"{HERE}:blocking", "is not an async function; declare it with `async def`"),
        (f"{HERE}:Lookup", "is not an async function"),
        (f"{HERE}:stream", "is an async generator"),
        (f"{HERE}:two", "is called with one argument, a ToolCall: missing a required argument: 'more'"),
        (f"{HERE}:none", "is called with one argument, a ToolCall: too many positional arguments"),
        (f"{HERE}:lookups", "takes a BatchCall, but is called with a ToolCall here"),
        ("acme-lookup", "no installed package has an entry point 'acme-lookup' in paidonce.tools; known are: "),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_at_the_start(reference: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PythonCaller(providers_of(entry_point=reference), environment={"KEY": SECRET})
    assert str(caught.value).startswith(f"providers.acme.tools.lookup.entry_point: {reference!r} ") or "no installed" in words
    assert "providers.acme.tools.lookup.entry_point" in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.exit_code == 78


def test_every_tool_that_cannot_be_called_is_named_at_once() -> None:
    tools = {"a": {"entry_point": f"{HERE}:absent"}, "b": {"entry_point": f"{HERE}:lookup"}}
    tools["b"]["batch"] = {"entry_point": f"{HERE}:lookup", "size_max": 2}  # type: ignore[assignment]
    with pytest.raises(ConfigurationError) as caught:
        PythonCaller(providers_of(provider={"tools": tools}), environment={"KEY": SECRET})
    assert "providers.acme.tools.a.entry_point" in str(caught.value)
    assert "providers.acme.tools.b.batch.entry_point" in str(caught.value)
    assert "takes a ToolCall, but is called with a BatchCall here" in str(caught.value)


@pytest.mark.parametrize("name", ["instance", "partial"])
async def test_what_can_be_awaited_with_one_argument_is_a_tool(name: str) -> None:
    async with opened(entry_point=f"{HERE}:{name}") as caller:
        report = await caller.call(call_of(value(1)))
    assert report.outcomes == (Answered(b'"object"' if name == "instance" else b"null"),)


def installed(folder: Path, package: str, *lines: str) -> None:
    """What an installed package leaves behind for importlib.metadata."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[paidonce.tools]", *lines]))


async def test_a_tool_is_found_by_the_entry_point_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, "acme-tools", f"acme-lookup = {HERE}:lookup", f"twice = {HERE}:lookup")
    installed(tmp_path, "other-tools", f"twice = {HERE}:lookups")
    monkeypatch.syspath_prepend(tmp_path)
    async with opened(entry_point="acme-lookup") as caller:
        assert (await caller.call(call_of(value(1)))).outcomes == (Answered(b"1"),)
    with pytest.raises(ConfigurationError, match=f"stands for {HERE}:lookup and for {HERE}:lookups"):
        PythonCaller(providers_of(entry_point="twice"), environment={"KEY": SECRET})
    with pytest.raises(ConfigurationError, match="known are: acme-lookup, twice"):
        PythonCaller(providers_of(entry_point="absent"), environment={"KEY": SECRET})


@pytest.mark.parametrize("body", ["import sys\nsys.exit('no')", "1/0", "not Python"])
def test_a_module_that_cannot_be_imported_ends_the_start_with_its_name(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_tool.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"lookup\.entry_point: 'broken_tool:f' cannot be loaded: \w+: "):
        PythonCaller(providers_of(entry_point="broken_tool:f"), environment={"KEY": SECRET})


def test_a_missing_secret_is_named_with_its_place_and_the_worker_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "providers.toml"
    file.write_text(
        '[providers.acme]\nkind = "python"\nsecrets = { api_key = "env:KEY" }\n'
        f'[providers.acme.tools.lookup]\nentry_point = "{HERE}:lookup"\n'
    )
    assert secret_faults(load_providers(file), file, {}, ["acme"]) == [
        f"{file}: providers.acme.secrets.api_key: secret env:KEY: the environment has no KEY; set it for the worker"
    ]
    with pytest.raises(ConfigurationError, match="secret env:KEY"):
        run_worker(Settings(broker="127.0.0.1:1", data=tmp_path, providers=file), {})
    file.write_text(file.read_text().replace(":lookup", ":absent"))
    with pytest.raises(ConfigurationError, match=r"providers\.acme\.tools\.lookup\.entry_point"):
        run_worker(Settings(broker="127.0.0.1:1", data=tmp_path, providers=file), {"KEY": SECRET})
