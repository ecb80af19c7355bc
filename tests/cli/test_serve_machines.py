"""Fleets in whole machines of named providers, with spare workers, as a program on the command line."""

import json
import subprocess
from typing import Any

import pytest

from tests.cli.commands import plan

SMALL = ("--model", "8b", "--input", "500", "--output", "50", "--ttft", "300ms")


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `plan serve`."""
    return plan("serve", *arguments, "--full")


def plan_of(*arguments: str) -> dict[str, Any]:
    """The document of a fleet."""
    done = serve(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_gpu_kinds_are_ranked_by_the_bill_of_whole_machines() -> None:
    """Three machines of B200 cost more than four of 32 × H100, which stages keep within the limit by a half."""
    load = ("--model", "70b", "--rate", "84/s", "--input", "1000", "--output", "200", "--ttft", "500ms")
    load += ("--input-p99", "alike", "--output-p99", "alike")
    plan = plan_of(*load, "--weights", "fp8", "--mode", "aggregated", "--gpu", "h100-sxm,b200-sxm")
    assert plan["rental"]["machines"] == plan["optimality"]["value"] == plan["optimality"]["bound"] == 3
    assert plan["estimate"]["usd_per_hour"] == pytest.approx(3 * 113.9328)
    (other,) = (fleet for fleet in plan["other_fleets"] if not fleet["kv_dtype"])
    assert (other["gpu"], other["num_gpus"], other["rental"]["machines"]) == ("h100-sxm", 32, 4)
    assert other["usd_per_hour"] == pytest.approx(4 * 55.04)
    assert other["chance"] < 0.9
    assert plan["daring"]["gpu"] == "h100-sxm"
    assert plan["daring"]["saved"] == pytest.approx(1 - 4 * 55.04 / (3 * 113.9328))


@pytest.fixture(scope="module")
def rented() -> subprocess.CompletedProcess[str]:
    """A fleet of a provider that rents one of the two kinds asked for."""
    asked = ("--rate", "5/s", "--gpu", "h100-sxm,l40s", "--weights", "bf16", "--mode", "aggregated")
    done = serve(*SMALL, *asked, "--provider", "lambda")
    assert done.returncode == 0, done.stderr
    return done


def test_the_price_line_names_provider_machine_price_and_date(
    rented: subprocess.CompletedProcess[str],
) -> None:
    """And the GPUs that stay idle and are paid for."""
    told = " ".join(rented.stdout.split())
    assert "1 × lambda-8x-h100-sxm5 (Lambda" in told
    assert "at $31.9 an hour each, on demand" in told
    assert "7 of 8 GPUs idle" in told


def test_own_gpus_are_priced_one_by_one() -> None:
    """Nothing is rented, so nothing is rounded."""
    plan = plan_of(
        *SMALL,
        "--rate",
        "5/s",
        "--gpu",
        "h100-sxm",
        "--provider",
        "own",
        "--usd-per-gpu-hour",
        "2",
        "--weights",
        "bf16",
        "--mode",
        "aggregated",
    )
    assert plan["rental"] is None
    assert plan["estimate"]["usd_per_hour"] == 2 * plan["num_gpus"]


def test_kinds_that_a_provider_does_not_rent_are_left_out_and_said(
    rented: subprocess.CompletedProcess[str],
) -> None:
    """Lambda lists no L40S."""
    assert "not rented by Lambda, left out: l40s" in rented.stderr


def test_limits_hold_with_the_spare_workers_lost() -> None:
    """Two spare workers are two more GPUs of the same fleet; what is told is the fleet without them."""
    asked = (
        *SMALL, "--rate", "60/s", "--gpu", "h100-sxm", "--set", "layout.tp=1", "--set", "layout.pp=1",
        "--weights", "bf16", "--mode", "aggregated",
    )  # fmt: skip
    plain, spared = plan_of(*asked), plan_of(*asked, "--spare", "2")
    assert spared["num_gpus"] == plain["num_gpus"] + 2
    assert spared["decode"]["workers"] == plain["decode"]["workers"] + 2
    assert spared["estimate"]["ttft"] == plain["estimate"]["ttft"]
    assert spared["request"]["spare"] == 2


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("--provider", "aws,own", "--rate", "5/s"), "--provider aws,own"),
        (("--provider", "aws", "--usd-per-gpu-hour", "2", "--rate", "5/s"), "--usd-per-gpu-hour"),
        (("--provider", "lambda", "--gpu", "l40s", "--rate", "5/s"), "no dated price"),
        (("--provider", "acme", "--rate", "5/s"), "acme"),
        (("--spare", "1", "--concurrency", "8"), "--spare 1 beside --concurrency 8"),
        (("--spare", "x", "--rate", "5/s"), "x"),
    ],
)
def test_a_wrong_choice_is_answered_in_three_lines(arguments: tuple[str, ...], cause: str) -> None:
    """What, why, and the change that fixes it."""
    done = serve(*SMALL, *arguments)
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "help"]
    assert cause in done.stderr


def test_without_a_load_and_gpus_the_answer_is_for_one_machine() -> None:
    """The default GPU's; a model that is larger gets as many as hold it."""
    sizes = {
        name: plan_of("--model", name, "--weights", "bf16", "--mode", "aggregated") for name in ("8b", "405b")
    }
    assert {name: (plan["request"]["gpu"], plan["request"]["num_gpus"]) for name, plan in sizes.items()} == {
        "8b": ("h100-sxm", 8),
        "405b": ("h100-sxm", 16),
    }
    assert sizes["405b"]["rental"]["machines"] == 2
    assert sizes["8b"]["estimate"]["headroom"]["served_per_s"] > 0


def test_a_gpu_without_a_price_says_how_to_give_one() -> None:
    """No catalog of a cloud has an RTX 4090."""
    done = serve(*SMALL, "--gpus", "1", "--gpu", "rtx-4090", "--rate", "0.2/s", "--weights", "fp8")
    assert done.returncode == 0
    assert "no price of rtx-4090: add for example --usd-per-gpu-hour" in " ".join(done.stdout.split())


def test_the_router_of_a_thousand_workers_is_told_by_its_beginning() -> None:
    """The folder has it whole."""
    sizes = (
        "--gpus",
        "1024",
        "--weights",
        "bf16",
        "--mode",
        "aggregated",
        "--set",
        "layout.tp=1",
        "--set",
        "layout.pp=1",
    )
    done = serve("--model", "8b", *sizes)
    assert done.returncode == 0
    (router,) = [line for line in done.stdout.splitlines() if line.lstrip().startswith("router ")]
    assert len(router) < 2200
    assert "words; --save-dir DIR writes all)" in router
