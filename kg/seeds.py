"""Seeds of the laptop run: coarse fields that installed scientific packages document at length."""

from __future__ import annotations

DEFAULT_SEEDS: tuple[str, ...] = (
    "statistics",
    "graph algorithms",
    "signal processing",
    "image processing",
    "interpolation",
    "numerical optimization",
    "linear algebra",
    "Fourier transforms",
    "numerical integration",
    "polynomials",
    "clustering",
)
