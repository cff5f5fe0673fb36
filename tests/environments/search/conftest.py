"""A real small corpus, built once a session from three pure-Python packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.search import Corpus, CorpusConfig, build_corpus

SMALL = CorpusConfig(packages=("toolz", "sortedcontainers", "networkx"), foldoc=False, python_manual=False, linux_manual=False)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return build_corpus(tmp_path_factory.mktemp("corpus") / "small", SMALL)


@pytest.fixture
def fake_package(tmp_path: Path) -> Path:
    """A package with a private implementation module, a re-export, a constant default, a class and a test module."""
    root = tmp_path / "demo"
    (root / "tests").mkdir(parents=True)
    (root / "__init__.py").write_text(
        '"""Demo package for solving equations, with a docstring."""\nfrom ._impl import solve\nfrom .shapes import *\n'
    )
    (root / "_impl.py").write_text(
        "_ITER = 100\n"
        "def solve(f, a: float, b=2, *args, maxiter=_ITER, rtol=4 * eps, **kw):\n"
        '    """Find a root of a function.\n\n    Parameters\n    ----------\n    f : callable\n'
        "\n    See Also\n    --------\n    newton : Another method\n"
        '    brent, ridder\n\n    Notes\n    -----\n    Uses :func:`~demo.shapes.area` inside.\n    """\n'
        "def helper():\n    '''A helper that is not re-exported anywhere in the package.'''\n"
    )
    (root / "shapes.py").write_text(
        '__all__ = ["Circle", "area"]\n'
        'class Circle:\n    """A circle that is given by its radius."""\n    def __init__(self, radius=1): pass\n'
        '    def scale(self, factor, times=3):\n        """Scale the circle by a factor, several times."""\n'
        "    def bare(self): pass\n"
        'def area(shape, /, digits=2):\n    """The area of a shape, rounded to digits."""\n'
        'def hidden():\n    """Not in the module list of public names."""\n'
    )
    (root / "tests" / "test_x.py").write_text('def test_a():\n    """A test function that has a docstring."""\n')
    (root / "broken.py").write_text("def f(:\n")
    return root
