"""What holds for every test and doctest of the suite."""

pytest_plugins = ("tests.guard",)
