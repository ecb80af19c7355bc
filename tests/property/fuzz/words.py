"""What is typed, set or linked: command lines, variables of the environment, the dashboard's URL."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from random import Random

from tests.property.fuzz import commands
from tests.property.fuzz.clusters import clusters
from tests.property.fuzz.mutate import TEXTS, hostile_value, json_of, mutated_text, mutated_tree, toml_of
from tests.property.fuzz.surface import Box, answer_of_command, run_command
from tests.unit.costmodel.models.test_hf_config import CONFIGS


def run_words(text: str, box: Box) -> object:
    words = [word.replace("CANARY", str(box.folder / "canary")) for word in json.loads(text)]
    os.chdir(box.folder)
    box.file("config.json", json.dumps(CONFIGS["qwen3-8b"]))
    box.file("cluster.toml", toml_of(clusters()[0]))
    return answer_of_command(words)


def words_asked(text: str) -> frozenset[str]:
    return frozenset(json.loads(text))


LAUNCHERS: Mapping[str, str] = {
    "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "prterun-vm-18357@1", "PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALNRANKS": "1",
    "JOB_COMPLETION_INDEX": "1", "PET_NNODES": "1:2", "PET_NODE_RANK": "1", "RAY_JOB_ID": "02000000", "RANK": "1",
    "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_TASK_ID": "sky-1_a_1", "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}  # fmt: skip
SLURM: Mapping[str, str] = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_NODEID": "1",
    "SLURM_JOB_NODELIST": "gpu[03-04,07],cpu1", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "0",
}  # fmt: skip


def make_environment(random: Random, story: list[str]) -> str:
    names = (
        *SLURM,
        *LAUNCHERS,
        "LC_ALL",
        "COLUMNS",
        "NO_COLOR",
        "TERM",
        "HOME",
        "XDG_DATA_HOME",
        "MESHPLAN_DATA",
        "PYTHONPATH",
        "OMP_NUM_THREADS",
    )
    found = {**SLURM} if random.random() < 0.7 else {}
    if random.random() < 0.3:
        found = {name: value for name, value in LAUNCHERS.items() if random.random() < 0.7}
    for _ in range(random.choice((1, 1, 2, 3))):
        name = random.choice(names)
        value = random.choice(
            (
                *TEXTS,
                str(hostile_value(random))[:3000],
                "2(x3)",
                "1",
                "0",
                "-1",
                "a[",
                "[",
                "[1",
                "a[1-",
                "gpu[1-2]x",
            )
        )
        found[name] = value.replace("\x00", "")  # which no environment can hold
        story.append(f"{name} = {value[:60]!r}")
    return json.dumps(found)


def read_environment(text: str, box: Box) -> object:
    from costmodel.accuracy.kept_anchors import kept_anchors
    from costmodel.kernels.saved import saved_measurements
    from executor.launch.schedulers import nodes_here

    given = {name: value.replace("CANARY", str(box.folder)) for name, value in json.loads(text).items()}
    kept = dict(os.environ)
    try:
        os.environ.update({name: value.encode(errors="replace").decode() for name, value in given.items()})
        kept_anchors()
        saved_measurements()
        if not given.keys() <= SLURM.keys() | LAUNCHERS.keys():
            run_command(["models", "8b"])
    finally:
        os.environ.clear()
        os.environ.update(kept)
    nodes = nodes_here(given)
    if not 0 <= nodes.rank < nodes.count:
        raise AssertionError(f"nodes of no sense: {nodes}")
    return None


def make_query(random: Random, story: list[str]) -> str:
    from urllib.parse import urlencode

    flags = {"model": "8b", "gpus": "8", "gpu": "h100-sxm", "sequence_length": "4k", "global_batch_size": "64", "tokens": "1T",
             "precision": "bf16", "stack": "megatron-core", "objective": "step-time", "top": "2", "memory_headroom": "5%",
             "deadline": "30d", "set": "layout.tp=8", "without": "node[2-3]", "degraded": "node1:gpu3"}  # fmt: skip
    found = {
        name: value for name, value in flags.items() if name in ("model", "gpus") or random.random() < 0.4
    }
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice((*flags, "cluster", "anchor"))
        found[name] = commands.setting(random) if name == "set" else commands.word(random)
        story.append(f"{name} = {found[name][:60]!r}")
    for name, value in _packed_specs().items():
        if random.random() < 0.3:
            found[name] = (
                mutated_text(value, random, story) if random.random() < 0.5 else _packed(random, story)
            )
    text = urlencode(found, errors="replace")
    return mutated_text(text, random, story) if random.random() < 0.2 else text


@functools.cache
def _packed_specs() -> Mapping[str, str]:
    from app.requests.links import pack
    from costmodel.models.catalog import model
    from topology.builders import default_cluster

    return {"model_spec": pack(model("8b")), "cluster_spec": pack(default_cluster("h100-sxm", 8).spec)}


def _packed(random: Random, story: list[str]) -> str:
    """A packed spec with a mutated inside; sometimes one that unpacks to a great deal."""
    import base64
    import zlib

    inside = (
        json_of(mutated_tree(random.choice(clusters()), random, story))
        if random.random() < 0.95
        else "[" * 10**7
    )
    return base64.urlsafe_b64encode(zlib.compress(inside.encode(errors="replace"), 9)).decode().rstrip("=")


def read_query(text: str, box: Box) -> object:
    from urllib.parse import parse_qs

    from app.requests.links import MOST_PACKED_CHARACTERS, unpack
    from costmodel.models.catalog import model_names
    from costmodel.models.spec import ModelSpec
    from planner.questions.flags import Flags, command_line
    from planner.questions.training import understand
    from topology.base.errors import InputError
    from topology.builders import build
    from topology.catalog import cluster_names, gpus
    from topology.spec import ClusterSpec

    os.chdir(box.folder)
    read = parse_qs(text[:MOST_PACKED_CHARACTERS])
    known = {field.name for field in fields(Flags)} & read.keys() - {"settings"}
    flags = Flags(settings=tuple(read.get("set", ())), **{name: read[name][-1] for name in known})
    command_line(flags)
    answers: list[object] = []
    for name, kind in (("model_spec", ModelSpec), ("cluster_spec", ClusterSpec)):
        for packed in parse_qs(text).get(name, ())[:3]:
            try:
                spec = unpack(packed, kind)
                answers.append(build(spec).spec if isinstance(spec, ClusterSpec) else spec)
            except InputError:
                continue
    chosen = {  # by widgets that offer these only
        "model": flags.model if flags.model in model_names() else "8b", "anchor": None,
        "gpu": flags.gpu if flags.gpu in gpus() else None,
        "cluster": flags.cluster if flags.cluster in cluster_names() else None,
    }  # fmt: skip
    answers.append(understand(replace(flags, **chosen)).request)
    return answers
