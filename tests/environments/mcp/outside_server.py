"""A user's own app as an MCP server, written with the SDK alone; it can fail in several ways."""

from __future__ import annotations

import os
from typing import Any

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

PNG = "iVBORw0KGgo="
TOOLS = {
    "add": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"type": "integer", "description": "The other."}},
        "required": ["a", "b"],
    },
    "picture": {"type": "object", "properties": {}},
    "sound": {"type": "object"},
    "fail": {"type": "object", "properties": {}},
    "refuse": {"type": "object", "properties": {}},
    "crash": {"type": "object", "properties": {}},
    "hang": {"type": "object", "properties": {}},
}
ODD: dict[str, Any] = {"type": "object", "properties": {"x": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}


def make_server(odd: bool = False) -> Server[Any]:
    schemas = {**TOOLS, **({"odd": ODD} if odd else {})}

    async def list_tools(_: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        names = list(schemas)
        at = int(params.cursor or 0) if params else 0
        page = [types.Tool(name=n, description=f"To {n}.", input_schema=schemas[n]) for n in names[at : at + 3]]
        return types.ListToolsResult(tools=page, next_cursor=str(at + 3) if at + 3 < len(names) else None)

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        given = params.arguments or {}
        if params.name == "crash":
            os._exit(3)
        if params.name == "hang":
            await anyio.sleep(60)
        if params.name == "refuse":
            raise MCPError(types.INVALID_PARAMS, "not like this")
        if params.name == "fail":
            return types.CallToolResult(content=[types.TextContent(text="no such thing")], is_error=True)
        if params.name == "picture":
            return types.CallToolResult(content=[types.TextContent(text="see"), types.ImageContent(data=PNG, mime_type="image/png")])
        if params.name == "sound":
            return types.CallToolResult(content=[types.AudioContent(data=PNG, mime_type="audio/wav")])
        return types.CallToolResult(content=[types.TextContent(text=str(given["a"] + given["b"]))])

    return Server("outside", on_list_tools=list_tools, on_call_tool=call_tool)


async def main() -> None:
    server = make_server()
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
