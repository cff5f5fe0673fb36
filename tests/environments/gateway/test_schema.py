"""JSON schemas as our six types."""

from __future__ import annotations

from typing import Any

import pytest

from environments.errors import ConfigError
from environments.gateway.schema import tool_spec


@pytest.mark.parametrize(
    ("schema", "kind", "told"),
    [
        ({"type": "integer"}, "integer", ""),
        ({"type": "array", "items": {"type": "string"}}, "array", '"items": {"type": "string"}'),
        (
            {"type": "string", "enum": ["a", "b"], "description": "Which."},
            "string",
            'Which. JSON schema: {"type": "string", "enum": ["a", "b"]}',
        ),
    ],
)
def test_narrower_types_are_told_to_the_agent(schema: dict[str, Any], kind: str, told: str) -> None:
    spec = tool_spec("t", "", {"type": "object", "properties": {"x": schema}, "required": ["x"]})
    assert (spec.parameters[0].type, spec.parameters[0].required) == (kind, True)
    assert told in spec.parameters[0].description


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "integer"),
        ({"type": ["null", "boolean"]}, "boolean"),
        ({"enum": ["a", "b"]}, "string"),
        ({"$ref": "#/$defs/Point"}, "object"),
        (True, "object"),
    ],
)
def test_types_that_are_none_of_ours_are_refused_or_shown_as_the_nearest(schema: Any, kind: str) -> None:
    whole = {"type": "object", "properties": {"x": schema}, "$defs": {"Point": {"type": "object"}}}
    with pytest.raises(ConfigError, match="no single type"):
        tool_spec("t", "", whole)
    parameter = tool_spec("t", "", whole, lenient=True).parameters[0]
    assert parameter.type == kind
    assert ('"Point"' in parameter.description) == (isinstance(schema, dict) and "$ref" in schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {}, "required": ["x"]},
        {"type": "object", "properties": {}, "required": [{}]},
    ],
)
def test_what_is_no_object_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="tool 't'"):
        tool_spec("t", "", schema, lenient=True)
