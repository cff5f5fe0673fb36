"""`python -m environments.sandbox.supervisor`: what `start_supervisor` runs."""

from environments.sandbox.supervisor.process import main

main()
