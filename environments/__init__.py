"""What a task is, where it runs, how it is judged, and whether it can be cheated.

The contracts every other package speaks live here: :mod:`environments.task`, :mod:`environments.trace`,
:mod:`environments.verdict`, :mod:`environments.protocols` and :mod:`environments.errors`.
"""
