"""What the command line says about bad input: one clear line, the right exit code, and nothing half-started.

The broker of these tests is a listener that counts who connects: a fault found at home never gets that far.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from streams.cli import global_first, main
from streams.cli.doctor import Finding

PLAY = """
name = "contacts"
key = ["id"]

[[columns]]
name = "check"
tool = "acme.email-check"
input = { email = "{{ row.email }}" }
needs = ["email"]

[[columns]]
name = "score"
tool = "acme.score"
input = { domain = "{{ row.check.domain }}" }
"""

PROVIDERS = """
[providers.acme]
base_url = "http://127.0.0.1:9"
auth = { secret = "env:ACME_KEY_THAT_NOBODY_HAS_SET" }

[providers.acme.tools.email-check]
path = "/email"

[providers.acme.tools.score]
path = "/score"
"""


class Listener:
    """Stands where a broker should be, counts connections and closes them."""

    def __init__(self) -> None:
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def broker() -> Iterator[Listener]:
    with Listener() as listener:
        yield listener


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with a play, rows and a providers file that are right."""
    (tmp_path / "play.toml").write_text(PLAY)
    (tmp_path / "rows.csv").write_text("id,email\n1,a@b.example\n2,\n")
    (tmp_path / "providers.toml").write_text(PROVIDERS)
    return tmp_path


class Said:
    """How a command ended."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code = code
        self.stdout = stdout
        self.stderr = stderr


@pytest.fixture
def submit(desk: Path, broker: Listener, capfd: pytest.CaptureFixture[str]) -> "Submit":
    return Submit(desk, broker, capfd)


class Submit:
    """`paidonce run submit` with what the test left on the desk."""

    def __init__(self, desk: Path, broker: Listener, capfd: pytest.CaptureFixture[str]) -> None:
        self.desk = desk
        self._broker = broker
        self._capfd = capfd

    def __call__(self, *more: str, rows: str = "rows.csv") -> Said:
        files = [str(self.desk / "play.toml"), "--rows", str(self.desk / rows)]
        code = main(["run", "submit", *files, "--broker", self._broker.address, *more])
        said = self._capfd.readouterr()
        return Said(code, said.out, said.err.replace(f"{self.desk}/", ""))

    def refused(self, *more: str, code: int, rows: str = "rows.csv") -> str:
        """The one line that is said, with nobody asked for anything."""
        said = self(*more, rows=rows)
        assert said.code == code, said.stderr
        assert self._broker.connections == 0, "found before anyone was asked"
        assert said.stdout == ""
        assert said.stderr.startswith("paidonce: ")
        assert said.stderr.count("\n") == 1, said.stderr
        return said.stderr.removeprefix("paidonce: ").rstrip("\n")

    def play(self, old: str, new: str) -> None:
        assert old in PLAY
        (self.desk / "play.toml").write_text(PLAY.replace(old, new))


def test_a_column_that_the_rows_lack_is_named_with_both_files(submit: Submit) -> None:
    submit.play("row.email", "row.emial")
    assert submit.refused(code=2) == (
        "rows.csv: no column 'emial', which play.toml: columns.0.input uses; did you mean 'email'? Found: id, email"
    )


def test_a_key_column_that_the_rows_lack_is_named(submit: Submit) -> None:
    submit.play('["id"]', '["crm_id", "id"]')
    assert "rows.csv: no column 'crm_id', which play.toml: key uses" in submit.refused(code=2)


def test_a_column_that_is_needed_and_not_there_is_named(submit: Submit) -> None:
    submit.play('needs = ["email"]', 'needs = ["E-Mail"]')
    assert "no column 'E-Mail', which play.toml: columns.0.needs uses" in submit.refused(code=2)


def test_every_missing_column_is_named_at_once(submit: Submit) -> None:
    submit.play('key = ["id"]', 'key = ["nr"]')
    play = (submit.desk / "play.toml").read_text().replace("row.email", "row.mail")
    (submit.desk / "play.toml").write_text(play)
    said = submit.refused(code=2)
    assert "'nr'" in said
    assert "'mail'" in said


def test_an_earlier_column_may_be_used_and_a_later_one_not(submit: Submit) -> None:
    submit.play("row.email", "row.score.value")
    assert "no column 'score', which play.toml: columns.0.input uses" in submit.refused(code=2)


def test_a_computed_column_does_not_hide_one_of_the_file(submit: Submit) -> None:
    (submit.desk / "rows.csv").write_text("id,email,check\n1,a@b.example,x\n")
    assert "play.toml: columns.0.name: 'check' is also a column of rows.csv" in submit.refused(code=2)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ email }}", "columns.0.input.email: '{{ email }}' is not of the form {{ row.field }}"),
        ("{{ row.email", "columns.0.input.email: unbalanced braces in '{{ row.email'"),
        ("{{ row. }}", "columns.0.input.email: '{{ row. }}' is not of the form {{ row.field }}"),
    ],
)
def test_a_template_that_cannot_be_read_is_named_by_its_place(submit: Submit, template: str, expected: str) -> None:
    submit.play("{{ row.email }}", template)
    assert submit.refused(code=2) == f"play.toml: {expected}"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('tool = "acme.score"', "", "play.toml: columns.1: column 'score' has neither tool nor fetch"),
        ('key = ["id"]', 'keys = ["id"]', "play.toml: keys: Extra inputs are not permitted"),
        ('name = "score"', 'name = "check"', "play.toml: column names appear twice: check"),
        ('name = "contacts"', "name = ", "play.toml: not TOML: Invalid value (at line 2, column 8)"),
        (
            "{{ row.email }}",
            '{{ row.email }}", n = nan, x = "',
            "play.toml: columns.0.input.n: nan is no JSON number",
        ),
    ],
)
def test_a_bad_play_is_named_by_its_field(submit: Submit, old: str, new: str, expected: str) -> None:
    submit.play(old, new)
    assert submit.refused(code=2) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"id,email\n1,a@b.example\n2\n", "rows.csv: line 3: 1 field, expected 2 as in line 1"),
        (b"id,email,id\n", "rows.csv: line 1: columns 1 and 3 are both named 'id'"),
        (
            b'id,email\n1,"a@b.example\n',
            "rows.csv: line 2: a quote opened in the row that begins here is never closed",
        ),
        (b"id,email\n1,\xff\n", "rows.csv: line 2, byte 3: 0xff is not UTF-8; save it as UTF-8"),
        (b"", "rows.csv: the file is empty; expected a line that names the columns, then rows"),
    ],
)
def test_a_bad_csv_is_named_by_file_and_line(submit: Submit, content: bytes, expected: str) -> None:
    (submit.desk / "rows.csv").write_bytes(content)
    assert submit.refused(code=2) == expected


def test_a_fault_in_the_last_of_many_rows_starts_nothing(submit: Submit) -> None:
    lines = "".join(f"{number},a{number}@b.example\n" for number in range(5_000))
    (submit.desk / "rows.csv").write_text(f"id,email\n{lines}last\n")
    assert submit.refused(code=2) == "rows.csv: line 5002: 1 field, expected 2 as in line 1"


def test_a_number_that_json_cannot_carry_is_named_by_line_and_column(submit: Submit) -> None:
    """case_D3: what cannot be carried exactly is refused at intake."""
    (submit.desk / "rows.jsonl").write_text('{"id":1,"email":"a@b.example"}\n{"id":NaN,"email":"x"}\n')
    said = submit.refused(code=2, rows="rows.jsonl")
    assert said == "rows.jsonl: line 2, column 'id': NaN is no JSON number"


def test_a_row_without_its_key_is_named(submit: Submit) -> None:
    (submit.desk / "rows.jsonl").write_text('{"id":1,"email":"a"}\n{"email":"b"}\n')
    assert submit.refused(code=2, rows="rows.jsonl") == (
        "rows.jsonl: row 1 (the first is 0): no field 'id', which play.toml: key uses"
    )


def test_a_key_that_is_null_is_named(submit: Submit) -> None:
    (submit.desk / "rows.jsonl").write_text('{"id":1,"email":"a"}\n{"id":null,"email":"b"}\n')
    assert submit.refused(code=2, rows="rows.jsonl") == ("rows.jsonl: row 1 (the first is 0): the key column 'id' is null")


def test_an_unknown_tool_is_named_with_those_that_are_known(submit: Submit) -> None:
    submit.play("acme.score", "acme.scores")
    said = submit.refused("--providers", str(submit.desk / "providers.toml"), code=78)
    assert said.startswith(
        "play.toml: columns.1.tool: unknown tool 'acme.scores'; known in providers.toml: acme.email-check, acme.score"
    )


def test_a_secret_that_is_not_set_is_named_by_file_and_field(submit: Submit) -> None:
    said = submit.refused("--providers", str(submit.desk / "providers.toml"), code=78)
    assert said.startswith("providers.toml: providers.acme.auth.secret: ")
    assert "ACME_KEY_THAT_NOBODY_HAS_SET" in said


def test_a_bad_providers_file_is_named_by_its_field(submit: Submit) -> None:
    path = submit.desk / "providers.toml"
    path.write_text(PROVIDERS.replace('path = "/score"', "paths = 1"))
    said = submit.refused("--providers", str(path), code=78)
    assert "providers.toml: providers.acme.tools.score.path: Field required" in said
    assert "providers.toml: providers.acme.tools.score.paths: Extra inputs are not permitted" in said


@pytest.mark.parametrize("name", ["play.toml", "rows.csv"])
def test_a_file_that_is_not_there_is_named(submit: Submit, name: str) -> None:
    (submit.desk / name).unlink()
    assert submit.refused(code=2) == f"{name}: cannot be read: No such file or directory"


def test_a_run_id_that_cannot_be_is_named(submit: Submit) -> None:
    assert submit.refused("--run", "no spaces", code=2).startswith("run id 'no spaces': expected ")


def test_a_broker_that_is_not_there_is_named_by_its_address(desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    files = [str(desk / "play.toml"), "--rows", str(desk / "rows.csv")]
    assert main(["--broker", address, "run", "submit", *files]) == 69
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("paidonce: ")
    assert address in said.err
    assert said.err.count("\n") == 1


def test_something_that_is_no_broker_is_unreachable(submit: Submit) -> None:
    said = submit()
    assert said.code == 69
    assert said.stderr.count("\n") == 1
    assert "Traceback" not in said.stderr


def test_an_address_that_cannot_be_one_is_a_bad_configuration(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "check", "--broker", "not an address"]) == 78
    assert capfd.readouterr().err == "paidonce: broker: 'not an address' is not host:port\n"


def test_a_setting_that_nobody_knows_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "streams.cli", "topics", "check"],
        env=os.environ | {"PAIDONCE_PARTITONS": "8"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 78
    assert "PAIDONCE_PARTITONS" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "submit"],
        ["run", "nosuch"],
        ["--nosuch"],
        ["run", "export", "r", "--to", "x.xlsx"],
        ["replay", "--until", "yesterday"],
        ["replay", "--strict"],
    ],
)
def test_wrong_usage_is_one_line_and_two(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("paidonce: ")
    assert said.err.count("\n") == 1


def test_doctor_says_in_a_line_each_what_is_wrong(desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Listener() as broker:
        given = ["--broker", broker.address, "--providers", str(desk / "providers.toml"), "--data", str(desk)]
        assert main(["doctor", *given]) == 69
    lines = capfd.readouterr().out.splitlines()
    assert [tuple(line.split()[:2]) for line in lines] == [
        ("FAIL", "broker"),
        ("FAIL", "topics"),
        ("ok", "providers"),
        ("FAIL", "secrets"),
        ("FAIL", "provider"),
        ("ok", "clocks"),
        ("ok", "disk"),
    ]


def test_doctor_tells_what_is_right_from_what_is_doubtful_and_what_is_wrong() -> None:
    findings = Finding("broker", "answers"), Finding("broker", "old", doubtful=True), Finding("broker", "gone", 69)
    assert [str(finding).split()[0] for finding in findings] == ["ok", "warn", "FAIL"]


def test_doctor_loads_python_tools_and_dials_no_address_for_them(desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = desk / "providers.toml"
    tool = "[providers.own.tools.{name}]\nentry_point = 'tests.support.python_tools:{function}'\n"
    file.write_text("[providers.own]\nkind = 'python'\naccount = 'a'\n" + tool.format(name="check", function="check"))
    given = ["--broker", "127.0.0.1:1", "--providers", str(file), "--data", str(desk)]
    assert main(["doctor", *given]) == 69
    right = [line for line in capfd.readouterr().out.splitlines() if line.split()[1] in ("tools", "provider")]
    assert right == []
    file.write_text(file.read_text() + tool.format(name="absent", function="absent"))
    assert main(["doctor", *given]) in (69, 78)
    (wrong,) = [line for line in capfd.readouterr().out.splitlines() if line.split()[1] in ("tools", "provider")]
    assert wrong.startswith("FAIL")
    assert f"{file}: providers.own.tools.absent.entry_point: 'tests.support.python_tools:absent' cannot be loaded" in wrong


def test_global_options_may_stand_anywhere() -> None:
    given = ["run", "list", "--broker", "b:1", "--json", "--data=d", "--", "--app"]
    assert global_first(given) == ["--broker", "b:1", "--data=d", "run", "list", "--json", "--", "--app"]
