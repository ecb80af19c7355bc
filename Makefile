# What is typed most; CONTRIBUTING says when. Everything here is one command that can be typed by hand.
.PHONY: install test quick lint bench nightly lowest release

install:  ## The package, its extras and its tools, at the tested versions.
	python -m pip install -c constraints.txt -e ".[run,app,test,dev]"

test:  ## The whole suite.
	python -m pytest

quick:  ## What a change can break, in three minutes: lint, types, contracts, the nearest tests (SINCE=HEAD).
	python tools/quick.py --since $(or $(SINCE),HEAD)

lint:  ## Style, types and the order of imports.
	ruff check . && ruff format --check .
	mypy --num-workers 2
	lint-imports

bench:  ## Plans on this machine, timed.
	python benchmarks/run.py

nightly:  ## Counts that are too long for the suite.
	MESHPLAN_NIGHTLY=1 python -m pytest tests/oracle tests/property tests/unit/costmodel/campaign tests/unit/costmodel/models/test_checkpoint_names.py tests/unit/planner/serving tests/unit/planner/audit tests/unit/planner/engines/test_default_plans.py tests/cli/test_accuracy.py tests/cli/test_brief.py tests/cli/test_help.py tests/cli/test_tutorials.py tests/cli/test_other_words.py tests/cli/test_handed_out.py tests/cli/test_counts.py tests/browser/test_sessions.py tests/executor tests/unit/test_names_decide_nothing.py tests/unit/planner/diagnose tests/unit/planner/traces tests/app/test_recipes.py tests/app/actions/test_rehearse.py tests/app/requests/test_links.py tests/cli/test_schemas.py tests/app/mcp/test_skill.py tests/unit/planner/search/test_priced_pool.py tests/cli/test_plan_files.py tests/published/costmodel/accuracy/test_unknown_engines.py tests/published/costmodel/accuracy/test_plausible_runs.py tests/unit/planner/search/test_pool.py
	python benchmarks/one_truth.py --questions 200
	python benchmarks/fuzz.py --inputs 200000
	python benchmarks/round_trip.py --plans 2000
	python benchmarks/diagnose_faults.py
	python benchmarks/diagnose_speed.py
	python benchmarks/diagnose_runs.py --seeds 20
	python benchmarks/diagnose_runs.py --seeds 20 --steps

lowest:  ## The suite without torch and browser, on the lowest versions that the wheel admits.
	python -m venv .venv-lowest
	python tools/lowest_versions.py app > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install -c .venv-lowest/constraints.txt -e ".[app]" pytest pytest-timeout pytest-xdist hypothesis pandas hatchling
	.venv-lowest/bin/python -m pip check
	.venv-lowest/bin/python -m pytest -m "not slow and not browser" tests/unit/planner tests/unit/topology tests/cli tests/app

release:  ## The wheel, the same from the same sources; what it stands on; what is known against that (needs the network).
	python -m pip install build pip-audit
	python -m build --wheel --outdir dist
	python -m venv --clear .venv-release
	.venv-release/bin/python -m pip install -c constraints.txt "$$(ls dist/meshplan-*.whl)[app]" packaging
	.venv-release/bin/python -m pip check
	.venv-release/bin/python tools/write_sbom.py app > dist/sbom.cdx.json
	pip-audit --path .venv-release/lib/python3*/site-packages
