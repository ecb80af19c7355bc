"""Two pools whose requests break a limit even when they meet nobody are not asked again at every lower rate."""

import pytest

from planner.analysis.serving.fleets import find_fleet
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving
from planner.serving import search


def test_a_fleet_of_four_gpus_is_found_in_some_dozen_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary question, whose pairs of pools are late to the first token at any rate: 940 were simulated."""
    simulated = []

    def counted(*arguments: object, **words: object) -> object:
        simulated.append(arguments)
        return simulate(*arguments, **words)  # type: ignore[arg-type]  # as they came

    simulate = search.run_fleet
    monkeypatch.setattr(search, "run_fleet", counted)
    words = {"gpus": "4", "input_tokens": "1000", "output_tokens": "200", "ttft": "500ms", "tpot": "30ms"}
    plan = find_fleet(understand_serving(ServeFlags(model="8b", gpu="h100-sxm", **words)))
    assert plan.num_gpus == 4
    assert len(simulated) < 100
