"""Files that are no job of their own: of a model, a cluster, a machine, measured runs, a server of others.

The only file of an audit is refused then, with the command that takes it. Beside a launch file a model's
configuration says its sizes.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

from planner.formats.nccl_tests import collective_test
from topology.base.errors import InputError, shortened
from topology.base.units import format_bandwidth

_CLUSTER = re.compile(r"^\[\[(?:nodes|links)\]\][ \t]{0,40}$", re.MULTILINE)
_TOPOLOGY = re.compile(r"^[ \t]{0,40}GPU0[ \t]{1,40}GPU1\b", re.MULTILINE)
_RUNS = frozenset(
    {"tp", "pp", "dp", "step_time_s", "measured_step_time_s", "gpus", "num_gpus", "model", "stack"}
)
LEAST_COLUMNS = 3
"""Columns of a table of runs by which it is known."""
_SERVERS = {
    "llama.cpp": r"(?:\S{0,200}/)?llama-(?:server|cli)\b|\S{0,200}/llama\.cpp[:@]\S{0,200}server",
    "Ollama": r"(?:\S{0,200}/)?ollama (?:serve|run)\b|(?:\S{0,200}/)?ollama/ollama\b",
    "Text Generation Inference": r"text-generation-launcher\b|\S{0,200}/text-generation-inference\b"
    r"|tgi_config\b",
    "LMDeploy": r"lmdeploy serve\b|\S{0,200}openmmlab/lmdeploy\b",
    "MLC": r"mlc_llm serve\b",
    "TabbyAPI": r"\S{0,200}tabbyapi\S{0,200}",
    "KTransformers": r"ktransformers\b",
    "DeepSpeed-MII": r"mii\.(?:serve|pipeline)\b",
    "MLX": r"mlx_lm\.server\b|mlx_lm serve\b",
    "Aphrodite": r"aphrodite run\b",
    "Triton Inference Server": r"(?:\S{0,200}/)?tritonserver\b|\S{0,200}launch_triton_server\.py",
    "Text Embeddings Inference": r"text-embeddings-router\b|\S{0,200}/text-embeddings-inference\b",
    "NVIDIA NIM": r"nvcr\.io/nim/\S{1,200}",
    "LMI": r"\S{0,200}djl-inference[:@]\S{0,200}",
}
"""Servers that nothing here prices, by the words of commands and images that start them."""
_STARTS_SERVER = re.compile(
    r"^[ \t]{0,40}(?:(?:[A-Z_]{1,40}=\S{0,80} |exec |nohup |sudo |image: |repository: |python3? (?:-m )?)"
    r" ?[\"']?){0,4}"
    r"(?:(?:docker|podman) run (?:[^\n\\]|\\\n?){0,900}?[\"' ])?(?:"
    + "|".join(f"(?P<n{at}>{words})" for at, words in enumerate(_SERVERS.values()))
    + ")",
    re.MULTILINE | re.IGNORECASE,
)
_PRICED_SERVERS = re.compile(r"\b(?:vllm|sglang|trtllm-serve)\b", re.IGNORECASE)
_MODEL, _SIZES = (
    frozenset({"model_type", "architectures"}),
    ("hidden_size", "n_embd", "d_model", "text_config"),
)
_OF_JOBS = re.compile(
    r"batch_size|parallel_size|parallel_degree|zero_optimization|gradient_accumulation|num_processes|learning_rate"
)


def refuse_no_job(path: str, text: str) -> None:
    """Refuse a file that says nothing of a job, and name the command that takes it.

    Raises:
        InputError: It is of a model, a cluster, a machine, measured runs, or a server that nothing prices.
    """
    name = shortened(Path(path).name)
    if (server := _server_of_others(text)) is not None:
        like = command_like(text)
        narrow = "plan serve --model NAME --gpu GPU --gpus N --weights int4"
        asked = narrow + (f', or plan audit "{like}",' if like else "")
        raise InputError(
            f"{name} starts {server}, which is not covered",
            "servers of vLLM, SGLang and TensorRT-LLM are read and priced; formats, caches and kernels of "
            f"{server} are its own",
            f"ask {asked} what one of those would hold and carry on the same GPUs; what {server} takes "
            "stands in its own log",
        )
    for what, cause, fix in _known(name, path, text):
        raise InputError(f"{name} is {what}, not a job", cause, fix)


def refuse_measured_links(path: str, text: str) -> None:
    """Refuse what nccl-tests print, also beside a launch file, which it says a rate for: that is a flag.

    Raises:
        InputError: It is a measured collective.
    """
    test = collective_test(text)
    if test is None:
        return
    each, rate = test.ranks // test.hosts, format_bandwidth(test.bytes_per_s)
    if test.hosts > 1:
        per_nic = f"nic_bandwidth_bytes_per_s={test.bytes_per_s / max(1, each):.3g}"
        flag = f"--set cluster.{per_nic}, {rate} over {each} NICs, or over as many as a node has"
    else:
        flag = f"--set cluster.scaleup_bandwidth_bytes_per_s={test.bytes_per_s:.3g}"
    raise InputError(
        f"{shortened(Path(path).name)} is a measurement of nccl-tests, not a job",
        f"{test.ranks} ranks on {test.hosts} hosts reach {rate} of bus bandwidth at the largest message",
        f"name the launch file alone, with {flag}",
    )


def _known(name: str, path: str, text: str) -> list[tuple[str, str, str]]:
    """What a file is in words, how that is known, and what takes it; empty where it may be of a job."""
    if _is_model(text):
        fix = f"plan estimate --model {name} --gpus 8, or name the launch file and --model {name}"
        return [("a model's configuration", "it states sizes of layers, and neither batch nor degrees", fix)]
    if path.endswith(".toml") and _CLUSTER.search(text):
        return [
            ("a cluster", "it has a table [[nodes]]", f"name the launch file, and --cluster {name} beside it")
        ]
    if _TOPOLOGY.search(text[:4_000]):
        fix = f"plan topology --cluster {name} --gpu h100-sxm, with the GPU of that machine"
        return [("a machine's topology", "it has the matrix that nvidia-smi topo -m prints", fix)]
    if path.endswith(".csv"):
        header = next(csv.reader(text[:4_000].splitlines()), [])
        if len(_RUNS & {column.strip().lower() for column in header}) >= LEAST_COLUMNS:
            return [("a table of runs", f"its columns are {', '.join(header[:6])}", f"plan accuracy {name}")]
    return []


def _server_of_others(text: str) -> str | None:
    """A server that a text starts and nothing here prices; None where it starts a known one, or none."""
    match = None if _PRICED_SERVERS.search(text) else _STARTS_SERVER.search(text[:MOST_STARTS])
    groups = {} if match is None else match.groupdict()
    return next((name for at, name in enumerate(_SERVERS) if groups.get(f"n{at}")), None)


_IS = r"(?:[\"' :=]{1,30}|[\"']?,?\s{1,60}value[\"']?[ :=]{1,4}[\"']?)"
"""Between a variable and its value: of an assignment, of a table, of the two rows of a pod's."""
_SPELLINGS = {
    "": r"--model[-_]id[ =]+(\S{1,120})|\bapi_server[ ]+([\w./-]{1,120})"
    r"|nvcr\.io/nim/[\w-]{1,40}/([\w.-]{1,80})|--model[ =]+(\S{1,120})"
    rf"|(?:NIM_MODEL_NAME|HF_MODEL_ID|MODEL_ID|hf_model_id){_IS}([\w./-]{{1,120}})",
    "--tensor-parallel-size": r"--(?:num-shard|tp|tensor-parallel-size)[ =]+(\d{1,4})"
    rf"|(?:NIM_TENSOR_PARALLEL_SIZE|SM_NUM_GPUS|NUM_SHARD|TENSOR_PARALLEL_DEGREE){_IS}(\d{{1,4}})",
    "--pipeline-parallel-size": rf"NIM_PIPELINE_PARALLEL_SIZE{_IS}(\d{{1,4}})",
    "--max-model-len": r"--(?:max-total-tokens|session-len|max-model-len)[ =]+(\d{1,8})"
    rf"|(?:NIM_MAX_MODEL_LEN|MAX_TOTAL_TOKENS|OPTION_MAX_MODEL_LEN|max_total_tokens){_IS}(\d{{1,8}})",
    "--max-num-seqs": rf"NIM_MAX_NUM_SEQS{_IS}(\d{{1,6}})",
    "--gpu-memory-utilization": r"NIM_(?:KVCACHE_PERCENT|GPU_MEM_FRACTION|GPU_MEMORY_UTILIZATION)"
    rf"{_IS}(0?\.\d{{1,4}})",
}
"""What other servers are told that vLLM would be, by its flags: words of their commands and variables."""


def command_like(text: str) -> str:
    r"""The command of vLLM that is told what a text tells another server; "" where it names no model.

    >>> command_like("text-generation-launcher --model-id a/b --num-shard 2 --max-total-tokens 8192")
    'vllm serve a/b --tensor-parallel-size 2 --max-model-len 8192'
    >>> command_like("model=a/b\ntext-generation-launcher --model-id $model --num-shard 4")
    'vllm serve a/b --tensor-parallel-size 4'
    """
    words: dict[str, str] = {}
    for flag, pattern in _SPELLINGS.items():
        match = re.search(pattern, text[:MOST_STARTS])
        if match is not None:
            words[flag] = next(part for part in match.groups() if part).strip("'\"")
    if words.get("", "").startswith("$"):
        variable = re.escape(words[""].strip("${}"))
        assigned = re.search(rf"^[ \t]*(?:export )?{variable}=[\"']?([\w./-]{{1,120}})", text, re.MULTILINE)
        words[""] = "" if assigned is None else assigned[1]
    if not words.get("") or "$" in words[""]:
        return ""
    return " ".join(("vllm serve", *(f"{flag} {value}".strip() for flag, value in words.items())))


MOST_STARTS = 100_000
"""Characters of a text in which a command that starts a server is looked for."""


def _is_model(text: str) -> bool:
    """Whether a text is the configuration of a checkpoint, as the hub has it."""
    if not text.lstrip().startswith("{") or _OF_JOBS.search(text):
        return False
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(document, dict) or not _MODEL & document.keys():
        return False
    return any(size in document for size in _SIZES)
