"""JSON schemas of tools as `ToolSpec`, which knows six types: what it can say, and what it cannot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from environments.errors import ConfigError
from environments.task import ToolParameter, ToolSpec

TYPES: tuple[str, ...] = get_args(ToolParameter.model_fields["type"].annotation)
_PLAIN = frozenset({"type", "description", "title", "default", "examples"})
"""Keywords that a parameter's type and description already say, or that narrow nothing."""


def tool_spec(name: str, description: str, schema: Mapping[str, Any], *, lenient: bool = False) -> ToolSpec:
    """A tool from its JSON schema. What narrows a type (items, enum, ranges) is told to the agent in the description.

    Args:
        lenient: show a parameter without one definite type as the nearest one instead of refusing the tool.

    Raises:
        ConfigError: the tool takes no object, or a parameter has no single type among the six.
    """
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ConfigError(f"tool {name!r:.60} takes no object: {_short(schema)}", "give its parameters as an object schema")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not (isinstance(required, list) and all(isinstance(r, str) for r in required)):
        raise ConfigError(f"tool {name!r:.60} has a broken schema: {_short(schema)}", "give properties (object) and required (list)")
    if missing := [r for r in required if r not in properties]:
        raise ConfigError(f"tool {name!r:.60} requires {missing[0]!r:.60}, which it does not describe", "describe every required parameter")
    definitions = {k: schema[k] for k in ("$defs", "definitions") if k in schema}
    parameters = [_parameter(name, key, value, definitions, key in required, lenient) for key, value in properties.items()]
    return ToolSpec(name=name, description=description, parameters=tuple(parameters))


def _parameter(tool: str, name: str, schema: Any, definitions: Mapping[str, Any], required: bool, lenient: bool) -> ToolParameter:
    value = schema if isinstance(schema, Mapping) else {}
    kind = value.get("type")
    if kind not in TYPES:
        if not lenient:
            raise ConfigError(
                f"{tool}.{name} has no single type that can be expressed: {_short(schema)}", f"declare one of: {', '.join(TYPES)}"
            )
        kind = _nearest(value)
    description = str(value.get("description") or "")
    if not value.keys() <= _PLAIN or value.get("type") not in TYPES:
        narrow = {k: v for k, v in value.items() if k != "description"}
        if definitions and "$ref" in json.dumps(narrow):
            narrow.update(definitions)
        description = f"{description} JSON schema: {json.dumps(narrow, ensure_ascii=False)}".strip()
    return ToolParameter.model_validate({"name": name, "type": kind, "description": description, "required": required})


def _nearest(schema: Mapping[str, Any]) -> str:
    """The first type that a union names, else that of its enumerated values, else object."""
    kinds = schema.get("type")
    named = [k for k in kinds if k in TYPES] if isinstance(kinds, list) else []
    unions = [schema.get("anyOf"), schema.get("oneOf")]
    for branch in [branch for union in unions if isinstance(union, list) for branch in union]:
        if isinstance(branch, Mapping) and branch.get("type") in TYPES:
            named.append(branch["type"])
    if named:
        return str(named[0])
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    return "string" if isinstance(values, list) and values and all(isinstance(v, str) for v in values) else "object"


def _short(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=False, default=str):.80}"
