"""Row programs: templates over a row keep types, and name what is wrong and where."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.engine.program import MissingField, TemplateError, compile_template, fields_of, look_up

ROW = {"name": "Ada", "age": 36, "none": None, "list": [1, {"a": "b"}], "deep": {"x": {"y": True}}, "two words": 2, "naïve": 3}


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ row.name }}", "Ada"),
        ("{{row.name}}", "Ada"),
        ("{{ row.age }}", 36),
        ("{{ row.none }}", None),
        ("{{ row.list }}", [1, {"a": "b"}]),
        ("{{ row.deep.x.y }}", True),
        ("{{ row.list.1.a }}", "b"),
        ("{{ row.two words }}", 2),
        ("{{ row.naïve }}", 3),
        (" {{ row.age }}", " 36"),
        ("{{ row.name }} is {{ row.age }}.", "Ada is 36."),
        ("{{ row.none }}|{{ row.deep.x }}|{{ row.deep.x.y }}", '|{"y":true}|true'),
        ("{{ row.name }}{{ row.name }}", "AdaAda"),
        ("no placeholder", "no placeholder"),
        ("", ""),
        ("{ row.name }", "{ row.name }"),
        (5, 5),
        (None, None),
        (True, True),
        ({"a": ["{{ row.age }}", {"b": "{{ row.name }}"}], "c": 1}, {"a": [36, {"b": "Ada"}], "c": 1}),
        ([], []),
    ],
)
def test_C1_a_template_takes_values_with_their_types_and_writes_them_as_text_inside_text(template: Any, value: Any) -> None:
    rendered = compile_template(template)(ROW)
    assert rendered == value
    assert type(rendered) is type(value)


def test_a_path_that_leads_nowhere_is_null_while_a_field_that_is_not_there_is_an_error() -> None:
    assert compile_template("{{ row.deep.no.such }}")(ROW) is None
    for template in ("{{ row.nobody }}", "{{ row.nobody.x }}", "text {{ row.nobody }}", {"a": ["{{ row.nobody }}"]}):
        with pytest.raises(MissingField, match="'nobody'") as caught:
            compile_template(template)(ROW)
        assert caught.value.field == "nobody"


@pytest.mark.parametrize(
    ("template", "place", "words"),
    [
        ("{{ name }}", "input", "row.field"),
        ("{{ row }}", "input", "row.field"),
        ("{{ row. }}", "input", "row.field"),
        ("{{ row..x }}", "input", "row.field"),
        ("{{ }}", "input", "row.field"),
        ("{{ row.name", "input", "unbalanced"),
        ("row.name }}", "input", "unbalanced"),
        ("{{ row.a }} {{", "input", "unbalanced"),
        ("{{{ row.a }}}", "input", "row.field"),
        ({"a": {"b": ["ok", "{{ x }}"]}}, "input.a.b.1", "row.field"),
    ],
)
def test_a_template_that_cannot_be_understood_names_its_place(template: Any, place: str, words: str) -> None:
    for function in (compile_template, fields_of):
        with pytest.raises(TemplateError, match=words) as caught:
            function(template)
        assert str(caught.value).startswith(f"{place}: ")


def test_the_fields_that_a_template_uses_are_known_before_there_is_a_row() -> None:
    template = {"a": "{{ row.name }} {{ row.age }}", "b": ["{{ row.deep.x }}", 1, {"c": "{{ row.name }}"}], "d": None}
    assert fields_of(template) == {"name", "age", "deep"}


@pytest.mark.parametrize(
    ("value", "path", "found"),
    [
        ({"a": {"b": 1}}, "a.b", 1),
        ({"a": [10, 20]}, "a.1", 20),
        ({"a": [10, 20]}, "a.2", None),
        ({"a": [10, 20]}, "a.-1", None),
        ({"a": [10, 20]}, "a.x", None),
        ([10], "0", 10),
        ([10], "²", None),
        ([10], "9" * 5_000, None),
        ({"0": "key"}, "0", "key"),
        ({"a": None}, "a.b", None),
        ("text", "a", None),
        ({}, "a", None),
    ],
)
def test_a_path_goes_through_objects_and_lists_and_never_fails(value: Any, path: str, found: Any) -> None:
    assert look_up(value, path) == found


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_a_placeholder_alone_gives_back_any_value_as_it_is(value: Any) -> None:
    rendered = compile_template({"x": "{{ row.field }}"})({"field": value})
    assert json.dumps(rendered) == json.dumps({"x": value})


@given(json_values, st.text(max_size=12))
def test_a_path_of_any_text_into_any_value_never_fails(value: Any, path: str) -> None:
    look_up(value, path)


@given(st.text(alphabet="{} row.ab", max_size=20))
def test_any_text_is_a_template_or_an_error_that_names_the_place(text: str) -> None:
    try:
        fields = fields_of(text, "here")
    except TemplateError as error:
        fault = str(error)
    else:
        compile_template(text)(dict.fromkeys(fields, 1))
        return
    assert fault.startswith("here: ")
