# What is typed most; CONTRIBUTING says when. Everything here is one command that can be typed by hand.
.PHONY: install test quick lint bench

install:  ## The package, its extras and its tools, at the tested versions.
	python -m pip install -c constraints.txt -e ".[run,app,test,dev]"

test:  ## The whole suite.
	python -m pytest

quick:  ## Without the slow tests and the browser.
	python -m pytest -m "not slow and not browser"

lint:  ## Style, types and the order of imports.
	ruff check . && ruff format --check .
	mypy
	lint-imports

bench:  ## Plans on this machine, timed.
	python benchmarks/run.py
