"""Row files: what a user's file holds is what the rows hold, character for character, and back again.

Files are written by hand where a rule is shown, and by Hypothesis where all of them must hold.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.progress import RowCell
from streams.errors import InputError, UsageError
from streams.public.rowfile import export_names, read_rows, write_export, write_rows

# Any text that UTF-8 can carry, without NUL; the awkward ones more often than chance would have it.
AWKWARD = st.sampled_from(["", '"', '""', ",", "\n", "\r", "\r\n", "\ufeff", " ", "007", "1e3", "\u2028", "=1+1"])
TEXT = st.one_of(AWKWARD, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12))
NAME = TEXT.filter(bool)


def rows_of(folder: Path, content: bytes | str, name: str = "rows.csv") -> list[dict[str, Any]]:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_rows(path))


def refusal(folder: Path, content: bytes | str, name: str = "rows.csv") -> str:
    with pytest.raises(InputError) as refused:
        rows_of(folder, content, name)
    return str(refused.value).removeprefix(f"{folder}/")


@given(
    table=st.lists(NAME, min_size=1, max_size=5, unique=True).flatmap(
        lambda names: st.tuples(st.just(names), st.lists(st.lists(TEXT, min_size=len(names), max_size=len(names)), max_size=6))
    )
)
@example(table=(["\ufeffid"], [["\ufeff"]]))
@example(table=(["a"], [[""], ["\r"]]))
def test_a_table_comes_back_character_for_character(
    tmp_path_factory: pytest.TempPathFactory, table: tuple[list[str], list[list[str]]]
) -> None:
    names, values = table
    rows = [dict(zip(names, line, strict=True)) for line in values]
    path = tmp_path_factory.mktemp("table") / "rows.csv"
    assert write_rows(path, names, rows) == len(rows)
    assert list(read_rows(path)) == rows


@given(
    rows=st.lists(st.lists(TEXT, min_size=2, max_size=2), max_size=5),
    end=st.sampled_from(["\n", "\r\n"]),
    mark=st.booleans(),
    closed=st.booleans(),
)
def test_what_others_write_is_read_as_they_wrote_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], end: str, mark: bool, closed: bool
) -> None:
    written = io.StringIO()
    csv.writer(written, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *rows])
    text = written.getvalue() if closed else written.getvalue().removesuffix(end)
    folder = tmp_path_factory.mktemp("others")
    read = rows_of(folder, (b"\xef\xbb\xbf" if mark else b"") + text.encode())
    assert read == [{"a": a, "b": b} for a, b in rows]


def test_a_byte_order_mark_belongs_to_no_name(tmp_path: Path) -> None:
    assert rows_of(tmp_path, b"\xef\xbb\xbfid,email\n1,a\n") == [{"id": "1", "email": "a"}]


def test_a_line_break_inside_quotes_is_part_of_the_value(tmp_path: Path) -> None:
    assert rows_of(tmp_path, 'id,note\r\n1,"two\r\nlines"\r\n2,"\n"\r\n') == [
        {"id": "1", "note": "two\r\nlines"},
        {"id": "2", "note": "\n"},
    ]


def test_nothing_is_taken_for_a_number_or_trimmed(tmp_path: Path) -> None:
    assert rows_of(tmp_path, "a , b\n007 , 1e3\nNULL,\n") == [
        {"a ": "007 ", " b": " 1e3"},
        {"a ": "NULL", " b": ""},
    ]


def test_names_keep_capitals_spaces_and_accents(tmp_path: Path) -> None:
    assert rows_of(tmp_path, "E-Mail Adresse,Prénom\nx,y\n") == [{"E-Mail Adresse": "x", "Prénom": "y"}]


def test_blank_lines_are_no_rows_and_lines_are_still_counted_right(tmp_path: Path) -> None:
    assert rows_of(tmp_path, 'a\n\n1\n\n""\n') == [{"a": "1"}, {"a": ""}]
    assert refusal(tmp_path, 'a,b\n\n1,"x\ny"\n\n3\n') == "rows.csv: line 6: 1 field, expected 2 as in line 1"


def test_a_nameless_column_at_the_end_is_dropped_while_it_is_empty(tmp_path: Path) -> None:
    assert rows_of(tmp_path, "a,b,,\n1,2,,\n") == [{"a": "1", "b": "2"}]
    assert refusal(tmp_path, "a,b,,\n1,2,,\n1,2,,3\n") == ("rows.csv: line 3: a value in a column that has no name in line 1")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "rows.csv: the file is empty; expected a line that names the columns, then rows"),
        (b"\xef\xbb\xbf", "rows.csv: line 1: no header; expected the names of the columns"),
        ("\nid\n", "rows.csv: line 1: no header; expected the names of the columns"),
        (",,\n1,2,3\n", "rows.csv: line 1: no header; expected the names of the columns"),
        ("id,,email\n", "rows.csv: line 1: column 2 has no name"),
        ("id,email,id\n", "rows.csv: line 1: columns 1 and 3 are both named 'id'"),
        ("a,b\n1,2\n1,2,3\n", "rows.csv: line 3: 3 fields, expected 2 as in line 1"),
        ('a,b\n1,"2\n3,4\n', "rows.csv: line 2: a quote opened in the row that begins here is never"),
        ('a\n"1"2\n', 'rows.csv: line 2: text follows a closing quote; a quote inside quotes is written ""'),
        ("a\n1\r2\n", "rows.csv: line 2: a carriage return outside quotes that ends no line"),
        ("a\n\n1\0\n", "rows.csv: line 3, character 2: a NUL character"),
        (b"a,b\n1,\xe9\n", "rows.csv: line 2, byte 3: 0xe9 is not UTF-8; save it as UTF-8"),
        (b"\xef\xbb\xbfa\xff\n", "rows.csv: line 1, byte 5: 0xff is not UTF-8; save it as UTF-8"),
        ("a\n1\n".encode("utf-16"), "rows.csv: line 1, byte 1: 0xff is not UTF-8; save it as UTF-8"),
    ],
)
def test_a_bad_csv_is_refused_by_line(tmp_path: Path, content: bytes | str, expected: str) -> None:
    assert refusal(tmp_path, content).startswith(expected)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: cannot be read: No such file"):
        next(read_rows(tmp_path / "none.csv"))


def test_a_file_is_never_loaded_whole(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\nbad\n")
    rows = read_rows(tmp_path / "rows.csv")
    assert next(rows) == {"a": "1", "b": "2"}, "the fault in the next line is not met before it is asked for"


def test_json_lines_keep_numbers_exactly(tmp_path: Path) -> None:
    lines = '\ufeff{"id":18446744073709551616,"score":0.1}\n\n{"id":-9223372036854775809,"tags":["a",null]}\r\n'
    assert rows_of(tmp_path, lines, "rows.jsonl") == [
        {"id": 18446744073709551616, "score": 0.1},
        {"id": -9223372036854775809, "tags": ["a", None]},
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"a":1}\n{"id":1,"score":NaN}\n', "rows.jsonl: line 2, column 'score': NaN is no JSON number"),
        ('{"a":{"b":[1,-Infinity]},"c":1}', "rows.jsonl: line 1, column 'a': -Infinity is no JSON number"),
        ('{"a":"x","b":1e999}', "rows.jsonl: line 1, column 'b': a number beyond the range of a double"),
        ('{"a":"\\ud800"}', "rows.jsonl: line 1, column 'a': \\ud800 is a lone surrogate"),
        ('{"a":1,}', "rows.jsonl: line 1, character 8: "),
        ("[1]\n", "rows.jsonl: line 1: expected an object of columns, found [1]"),
        ('{"a":{"$bytes":1}}', 'rows.jsonl: line 1, $.a: the key "$bytes" is reserved'),
        ("", "rows.jsonl: the file is empty"),
    ],
)
def test_bad_json_lines_are_refused_by_line_and_column(tmp_path: Path, content: str, expected: str) -> None:
    assert refusal(tmp_path, content, "rows.jsonl").startswith(expected)


def cell(status: str, value: Any = None, error: str | None = None) -> RowCell:
    return RowCell.model_validate({"status": status, "value": value, "error": error, "run": "run-1"})


LINES = [
    ({"id": "1", "email": "a@b.example"}, {"check": cell("completed", {"ok": True, "n": 2**64})}),
    ({"id": "2", "email": "bad,\n"}, {"check": cell("failed", error="no")}),
    ({"id": "3", "email": ""}, {}),
]


def test_an_export_has_a_line_for_each_line(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert write_export(path, ["id", "email"], ["check"], LINES) == 3
    assert list(csv.reader(io.StringIO(path.read_bytes().decode(), newline=""))) == [
        ["id", "email", "check", "check_status", "check_error", "check_run"],
        ["1", "a@b.example", '{"ok":true,"n":18446744073709551616}', "completed", "", "run-1"],
        ["2", "bad,\n", "", "failed", "no", "run-1"],
        ["3", "", "", "", "", ""],
    ]


def test_an_export_as_json_lines_keeps_types(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write_export(path, ["id", "email"], ["check"], LINES)
    first, _, third = map(json.loads, path.read_text().splitlines())
    assert first["check"] == {"ok": True, "n": 2**64}
    assert third == {
        "id": "3",
        "email": "",
        "check": None,
        "check_status": None,
        "check_error": None,
        "check_run": None,
    }


@given(
    fields=st.lists(st.sampled_from(["a", "a_", "a_status", "b", "a_run"]), unique=True),
    computed=st.lists(st.sampled_from(["a", "a_status", "a_error", "b"]), unique=True),
)
def test_no_two_columns_of_an_export_share_a_name(fields: list[str], computed: list[str]) -> None:
    names = [*fields, *(name for group in export_names(fields, computed).values() for name in group)]
    assert len(names) == len(set(names))


@settings(max_examples=20)
@given(fails_at=st.integers(min_value=0, max_value=3))
def test_an_export_appears_whole_or_not_at_all(tmp_path_factory: pytest.TempPathFactory, fails_at: int) -> None:
    path = tmp_path_factory.mktemp("export") / "out.csv"
    path.write_text("before")

    def lines() -> Any:
        yield from LINES[:fails_at]
        raise RuntimeError("the broker went away")

    with pytest.raises(RuntimeError):
        write_export(path, ["id", "email"], ["check"], lines())
    assert [entry.name for entry in path.parent.iterdir()] == ["out.csv"]
    assert path.read_text() == "before"


def test_the_name_of_an_export_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"out\.xlsx: the name of an export ends with \.csv or \.jsonl"):
        write_export(tmp_path / "out.xlsx", [], [], [])
