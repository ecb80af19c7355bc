"""Fixtures every test may use, and what Hypothesis tries.

Examples are the same in every run, so a red test shows a fault and not a draw. `HYPOTHESIS_PROFILE=random`
looks for new ones; a case that it finds is kept as an `@example`, or in `tests/oracle/planner/search/found_cases.json`.
"""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("random", derandomize=False, deadline=None, print_blob=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# Two workers and their ranks share two cores: threads that wait must sleep, as those of ranks do. Read by libgomp
# when torch is imported, which is later.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Libraries of products choose their kernels, when they are loaded, by how many threads there are: one that splits a sum
# adds its terms in another order, and what is compared to the last bit would depend on the machine.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"

# readline, which a worker loads, writes the width of no screen: answers would fold to it.
os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of large measured tables beside the checkout; tests that need it skip without it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the large measured tables (../shared/data) are not beside this checkout")
    return folder
