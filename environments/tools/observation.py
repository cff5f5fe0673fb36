"""What tools share in how they answer: output cut in the middle, pictures checked and encoded."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Literal

from environments.task import Image

OUTPUT_CHARS = 16_000
"""Kept of one answer, some 4,000 tokens; the harness may cut further."""
IMAGE_BYTES = 4 << 20
"""Larger pictures are refused: base64 and the messages' copies multiply them."""
IMAGES = 8
"""Pictures in one answer."""

_MAGIC: tuple[tuple[bytes, Literal["image/png", "image/jpeg"]], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
)


def cut_middle(text: str, limit: int = OUTPUT_CHARS) -> str:
    """`text`, or its beginning and end, at line ends where possible, with a mark that says how much is left out between."""
    if len(text) <= limit:
        return text
    start, end = limit // 2, len(text) - (limit - limit // 2)
    if (newline := text.rfind("\n", start // 2, start)) >= 0:
        start = newline + 1
    if (newline := text.find("\n", end, end + (len(text) - end) // 2)) >= 0:
        end = newline + 1
    lines = text.count("\n", start, end)
    left_out = f"{end - start} characters" + (f" ({lines} lines)" if lines else "")
    head = text[:start]
    return f"{head}{'' if head.endswith(chr(10)) else chr(10)}[... {left_out} left out ...]\n{text[end:]}"


def as_image(data: bytes) -> Image | None:
    """A PNG or JPEG file as a picture of a message; None when it is neither."""
    for magic, media_type in _MAGIC:
        if data.startswith(magic):
            return Image(data=base64.b64encode(data).decode(), media_type=media_type)
    return None


def as_images(files: Iterable[bytes]) -> tuple[tuple[Image, ...], str]:
    """Pictures that can be shown, and a note about those that cannot; '' when there are none."""
    shown: list[Image] = []
    notes: list[str] = []
    for i, data in enumerate(files, 1):
        image = as_image(data) if len(data) <= IMAGE_BYTES else None
        if image is None:
            notes.append(f"[image {i} is not shown: {'no PNG or JPEG' if len(data) <= IMAGE_BYTES else f'{len(data)} bytes are too many'}]")
        elif len(shown) == IMAGES:
            notes.append(f"[image {i} is not shown: an answer holds {IMAGES}]")
        else:
            shown.append(image)
    return tuple(shown), "\n".join(notes[:IMAGES])
