"""Plan how to split a model across GPUs: the names below are the library, and all that is promised to stay.

>>> import meshplan
>>> meshplan.plan("8b", gpus=8, top=1).layout.num_gpus
8

Every name is imported when it is first used, so that `import meshplan` takes no time. Verbs take names,
counts and units as the command line does, or typed values; see `docs/library.md`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from meshplan.guard import require_own_packages

if TYPE_CHECKING:
    from costmodel.job import ServingJob, TrainingJob
    from costmodel.models.catalog import model
    from costmodel.stack import stack
    from meshplan.serving import predict, serve
    from meshplan.verbs import diagnose, diff, estimate, explain, ladder, plan, plan_module, sweep, validate
    from planner.plan import Plan, PlanRequest
    from topology.base.errors import InputError, NoFeasiblePlanError
    from topology.catalog import cluster

__all__ = [
    "InputError",
    "NoFeasiblePlanError",
    "Plan",
    "PlanRequest",
    "ServingJob",
    "TrainingJob",
    "cluster",
    "diagnose",
    "diff",
    "estimate",
    "explain",
    "ladder",
    "model",
    "plan",
    "plan_module",
    "predict",
    "serve",
    "stack",
    "sweep",
    "validate",
]

_HOMES: Final = {
    "costmodel.job": ("ServingJob", "TrainingJob"),
    "costmodel.models.catalog": ("model",),
    "costmodel.stack": ("stack",),
    "meshplan.serving": ("predict", "serve"),
    "meshplan.verbs": (
        *("Plan", "PlanRequest", "diagnose", "diff", "estimate", "explain", "ladder", "plan"),
        *("plan_module", "sweep", "validate"),
    ),
    "topology.base.errors": ("InputError", "NoFeasiblePlanError"),
    "topology.catalog": ("cluster",),
}
_HOME_OF_NAME: Final = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name: str) -> Any:
        """Import a name when it is first used."""
        if name not in _HOME_OF_NAME:
            raise AttributeError(f"module 'meshplan' has no attribute {name!r}")
        require_own_packages()
        value = globals()[name] = getattr(import_module(_HOME_OF_NAME[name]), name)
        return value


def __dir__() -> list[str]:
    """The names of the library."""
    return list(__all__)
