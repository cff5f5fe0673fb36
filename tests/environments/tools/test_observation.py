"""Long output keeps its ends and says what it lost; only pictures are shown as pictures."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.tools.observation import IMAGE_BYTES, IMAGES, as_image, as_images, cut_middle
from tests.environments.tools.pictures import PNG


@given(st.text(alphabet="ab\n", max_size=400), st.integers(8, 500))
def test_a_cut_keeps_both_ends_and_counts_what_is_gone(text: str, limit: int) -> None:
    cut = cut_middle(text, limit)
    if len(text) <= limit:
        assert cut == text
        return
    head, rest = cut.split("[... ")
    said, tail = rest.split(" left out ...]\n")
    gone = int(said.split()[0])
    assert text.startswith(head.removesuffix("\n"))
    assert text.endswith(tail)
    assert len(text) - gone in (len(head) + len(tail), len(head) - 1 + len(tail))
    assert len(head) + len(tail) <= limit + 1
    if "lines" in said:
        assert int(said.split("(")[1].split()[0]) == text[len(text) - len(tail) - gone : len(text) - len(tail)].count("\n")


def test_a_cut_falls_on_line_ends_where_there_are_some() -> None:
    text = "".join(f"line {i}\n" for i in range(1000))
    cut = cut_middle(text, 200)
    assert all(line in text.splitlines() for line in cut.splitlines() if not line.startswith("[..."))


@pytest.mark.parametrize(("data", "kind"), [(PNG, "image/png"), (b"\xff\xd8\xff\xe0rest", "image/jpeg"), (b"GIF89a", None), (b"", None)])
def test_pictures_are_known_by_their_first_bytes(data: bytes, kind: str | None) -> None:
    image = as_image(data)
    assert (image and image.media_type) == kind
    assert image is None or base64.b64decode(image.data) == data


def test_what_cannot_be_shown_is_said() -> None:
    shown, note = as_images([PNG, b"no picture", PNG + bytes(IMAGE_BYTES), *[PNG] * IMAGES])
    assert len(shown) == IMAGES
    assert note.splitlines() == [
        "[image 2 is not shown: no PNG or JPEG]",
        f"[image 3 is not shown: {len(PNG) + IMAGE_BYTES} bytes are too many]",
        f"[image {IMAGES + 3} is not shown: an answer holds {IMAGES}]",
    ]
