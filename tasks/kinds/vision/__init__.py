"""Vision tasks: pictures drawn from known data, looked at by cropping and zooming through the Python tool."""

from __future__ import annotations

import random

from environments.task import Budgets, InitialState
from kg.concept import Passage
from tasks.kinds.draft import Demonstration, Draft, KindSpec, Material, call
from tasks.kinds.vision.picture_source import PICTURE, png_text
from tasks.kinds.vision.pictures import PICTURES


def draft(rng: random.Random, material: Material, level: int, kind: str = "") -> Draft | None:
    """A picture of one of `PICTURES` (drawn unless named). The reference works on the pixels, but for small print, which it shows."""
    asked = PICTURES[kind or rng.choice(sorted(PICTURES))](rng, level)
    if asked is None:
        return None
    files = {"picture.png.b64": png_text(*asked.image.size, asked.image.tobytes()), "picture.py": PICTURE}
    about = f"A picture for notes on {material.names[0]} lies" if material.names else "A picture lies"
    return Draft(
        kind="vision",
        family="vision",
        domain="general",
        level=level,
        prompt=f"{about} in the working directory: `from picture import load` shows it whole, cropped and zoomed. {asked.prompt}",
        tools=("python", "submit"),
        budgets=Budgets(steps=20, output_tokens=4_000, wall_s=240, submissions=1),
        verifier_kind="vision",
        payload=asked.payload,
        passages=tuple(Passage.of(d, d.text[:200]) for d in material.documents[:1]),
        demonstrations=(Demonstration("pixels", tuple(call("python", code=cell) for cell in asked.cells)),),
        initial_state=InitialState(files=files),
    )


VISION = KindSpec("vision", "vision", "general", (1, 2, 3), draft)
