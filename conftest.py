"""What holds for every test and doctest of the suite."""

import gc

gc.set_threshold(
    100_000
)  # what imports make stays: to look through it at every 700 objects is a fifth of the suite

pytest_plugins = ("tests.guard", "tests.answers", "tests.pages", "tests.parser_server")
collect_ignore_glob = ["planner/parsers/*.py"]
"""Programs of other interpreters: they put stubs into theirs."""
