"""Answers and errors of tools as MCP results, and back.

Our own two ends agree on more than the protocol says: `_meta` carries the class, message and fix of an error, so that an agent
reads the same words over every transport. An outside server's results are read by the protocol alone.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from mcp import types
from mcp.shared.exceptions import MCPError

from environments import errors
from environments.environment import Answer
from environments.errors import AgentError, BadArgumentsError, InfrastructureError, NinefoldError
from environments.harness.interfaces import json_schema
from environments.protocols import Observation
from environments.task import Image, ToolSpec

ERROR = "ninefold/error"
"""Key in `_meta` of a refused call's result, and in the data of a JSON-RPC error."""
MALFORMED = "ninefold/malformed"
"""Key in `_meta` of a call whose arguments could not be read: what the agent wrote."""
PLAIN = "ninefold/plain"
"""Key in `_meta` of a result that is a text and no `Observation`."""


def as_tool(spec: ToolSpec) -> types.Tool:
    """A tool as `tools/list` shows it."""
    return types.Tool(name=spec.name, description=spec.description, input_schema=json_schema(spec))


def as_result(answer: Answer) -> types.CallToolResult:
    """What a call returned."""
    seen = Observation(text=answer) if isinstance(answer, str) else answer
    content: list[Any] = [types.TextContent(text=seen.text)] if seen.text or not seen.images else []
    content += [types.ImageContent(data=i.data, mime_type=i.media_type) for i in seen.images]
    meta = {PLAIN: True} if isinstance(answer, str) else None
    return types.CallToolResult(content=content, is_error=seen.failed, _meta=meta)


def as_refusal(error: AgentError) -> types.CallToolResult:
    """A call that was refused: the agent reads the text and may try again."""
    return types.CallToolResult(content=[types.TextContent(text=f"error: {error}")], is_error=True, _meta={ERROR: _spell(error)})


def as_failure(error: InfrastructureError) -> MCPError:
    """A machine part that failed: no result, a JSON-RPC error."""
    return MCPError(types.INTERNAL_ERROR, str(error), {ERROR: _spell(error)})


def _spell(error: NinefoldError) -> dict[str, str]:
    return {"kind": type(error).__name__, "message": error.message, "fix": error.fix}


def _read(data: Any, root: type[NinefoldError]) -> NinefoldError | None:
    """The error that our own server spelled, when it is one of `root`."""
    spelled = data.get(ERROR) if isinstance(data, dict) else None
    if not isinstance(spelled, dict):
        return None
    kind = getattr(errors, str(spelled.get("kind")), None)
    if not (isinstance(kind, type) and issubclass(kind, root)):
        return None
    return kind(str(spelled.get("message", "")), str(spelled.get("fix", "")))


def read_result(result: types.CallToolResult, server: str) -> Answer:
    """What a call returned. A result that an outside server marks as an error is a failed `Observation`.

    Raises:
        AgentError: our own server refused the call.
    """
    if (refused := _read(result.meta, AgentError)) is not None:
        raise refused
    texts: list[str] = []
    images: list[Image] = []
    for block in result.content:
        if isinstance(block, types.TextContent):
            texts.append(block.text)
        elif isinstance(block, types.ImageContent) and block.mime_type in ("image/png", "image/jpeg"):
            images.append(Image.model_validate({"data": block.data, "media_type": block.mime_type}))
        elif isinstance(block, types.EmbeddedResource) and isinstance(block.resource, types.TextResourceContents):
            texts.append(block.resource.text)
        elif isinstance(block, types.ResourceLink):
            texts.append(f"[{block.name}: {block.uri}]")
        else:
            size = len(base64.b64decode(getattr(block, "data", ""))) if hasattr(block, "data") else 0
            texts.append(f"[{getattr(block, 'mime_type', block.type)} of {size} bytes, which {server} returned and cannot be shown]")
    if not result.content and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n".join(texts)
    if (result.meta or {}).get(PLAIN) and not images:
        return text
    return Observation(text=text, images=tuple(images), failed=result.is_error)


def read_failure(error: MCPError, tool: str, server: str) -> NinefoldError:
    """What a JSON-RPC error means: arguments that an outside server does not take are the agent's, all else is the machine's."""
    if (known := _read(error.data, InfrastructureError)) is not None:
        return known
    if error.code == types.INVALID_PARAMS:
        return BadArgumentsError(f"{tool} does not take this: {error.message:.200}", "see its parameters")
    reasons = {types.CONNECTION_CLOSED: "its connection is closed", types.REQUEST_TIMEOUT: "it did not answer in time"}
    reason = reasons.get(error.code, f"{error.message:.200} ({error.code})")
    return InfrastructureError(f"MCP server {server} failed at {tool}: {reason}", "start it again, or raise timeout_s")
