"""Containers whose entry point makes an engine's flags of variables: what they start, as a script.

SageMaker's images of vLLM and SGLang take each flag as a variable (``SM_VLLM_MAX_MODEL_LEN``), LMI's as
``OPTION_MAX_MODEL_LEN`` or, in its file of properties, as ``option.max_model_len``; NIM's take some as
``NIM_MAX_MODEL_LEN``. Files of any language give them: what counts is a name and its value. Of LMI the
engine is its rolling batch, of NIM its profile: another than vLLM is not read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planner.audit.server_flags import server_flags
from planner.formats.settings import whole_or_none
from topology.hardware.datasheets import machines_in_text

_ASSIGNED = re.compile(
    r"(?P<name>SM_(?:VLLM|SGLANG)_[A-Z][A-Z0-9_]*|OPTION_[A-Z][A-Z0-9_]*|NIM_[A-Z][A-Z0-9_]*|HF_MODEL_ID"
    r"|TENSOR_PARALLEL_DEGREE|\boption\.[a-z][a-z0-9_]*)[\"']?"
    r"(?:[ \t]{0,60}[:=][ \t]{0,8}"
    r"|[ \t]{0,8},?[ \t]{0,8}\n?[ \t]{0,60}[\"']?[vV]alue[\"']?[ \t]{0,8}[:=][ \t]{0,8})"
    r"(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s,;}\"'#\\]+)"
)
"""A variable and its value: an assignment, a row of a table, or the two rows of a pod's."""
_COMMENT = re.compile(r"^[ \t]*(?:#|//)")
_STARTS = re.compile(r"vllm serve|api_server|sglang[. ]|trtllm-serve")
"""Commands of engines: a file that has one says itself what it starts."""
_VARIABLE = re.compile(r"\$(?:\w+|\{[^{}\n]*\})")
_LITERAL = re.compile(r"[\w./:@{}\"\[\]-]+")
_GPUS = re.compile(r"(?:nvidia|amd)\.com/gpu[\"']?[ \t]*[:=][ \t]*[\"']?(\d{1,2})\b")
_NIM_IMAGE = re.compile(
    r"nvcr\.io/nim/(?P<model>[\w.-]+/[\w.-]+?)[\"']?"
    r"(?:[:@]\S{0,200}|\s{1,60}tag:[ \t]{0,8}\S{0,200})?(?=\s|$)"
)
_MODELS = ("SM_VLLM_MODEL", "SM_SGLANG_MODEL_PATH", "SM_SGLANG_MODEL", "OPTION_MODEL_ID", "HF_MODEL_ID")
_OWN_BATCHES = ("vllm", "lmi-dist", "auto", "disable", "")
"""Rolling batches of LMI that are vLLM's: as a thread beside it, or as its own engine."""
_OTHER_PROGRAMS = re.compile(r"neuron|deepspeed|trtllm|tensorrt", re.IGNORECASE)
_SPELLED = {
    "tensor_parallel_degree": "tensor_parallel_size",
    "pipeline_parallel_degree": "pipeline_parallel_size",
    "max_rolling_batch_size": "max_num_seqs",
    "max_rolling_batch_prefill_tokens": "max_num_batched_tokens",
    "quantize": "quantization",
    "kvcache_percent": "gpu_memory_utilization",
    "gpu_mem_fraction": "gpu_memory_utilization",
}
"""Words of LMI and NIM that are a flag of vLLM under another name."""
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
_PROFILE = re.compile(r"vllm-(?P<dtype>\w+)-tp(?P<tp>\d{1,3})(?:-pp(?P<pp>\d{1,3}))?")
"""A profile of NIM that is vLLM's, with its precision and degrees."""
_MOST_GPUS = 64


@dataclass(frozen=True, slots=True)
class _Variables:
    """Variables of a container by name, where each has one value, and the line of the model's."""

    values: Mapping[str, str]
    line: int


def script_of_container(text: str) -> str:
    r"""The script of what a container of a file starts; "" where its variables start no engine.

    The lines of the file stay, as comments: they name images, machines and GPUs.

    >>> print(script_of_container("# on L4\nSM_VLLM_MODEL=a/b\nSM_VLLM_TENSOR_PARALLEL_SIZE=2"))
    #!/bin/sh
    vllm serve a/b --tensor-parallel-size 2  # # on L4 SM_VLLM_MODEL=a/b
    # SM_VLLM_TENSOR_PARALLEL_SIZE=2
    >>> script_of_container("option.rolling_batch=trtllm\noption.model_id=a/b")
    ''
    """
    if _STARTS.search(text) or (variables := _variables(text)) is None:
        return ""
    command = _command(text, variables.values)
    if not command:
        return ""
    given = text.split("\n")
    place = max(variables.line, 2)
    given += [""] * (place - len(given))
    lines = [f"# {line}".rstrip(" \\") for line in given]
    started = " ".join((*_shown(text), command))
    behind = " ".join(lines[at][2:] for at in sorted({0, place - 1}) if lines[at] != "#")
    lines[0], lines[place - 1] = "#!/bin/sh", f"{started}  # {behind}"
    return "\n".join(lines)


def _variables(text: str) -> _Variables | None:
    """The variables of a file's container; None where they name no model, or several."""
    values: dict[str, set[str]] = {}
    lines: dict[str, int] = {}
    for match in _ASSIGNED.finditer(text):
        begins = text.rfind("\n", 0, match.start()) + 1
        if _COMMENT.match(text[begins : match.start()]):
            continue
        name = match["name"].upper().replace("OPTION.", "OPTION_")
        value = match["value"]
        literal = value[0] in "\"'" or _LITERAL.fullmatch(value)
        word = value.strip("\"'") if literal and not value.startswith(("var.", "local.")) else f"${name}"
        values.setdefault(name, set()).add(word)
        if name in _MODELS and name not in lines:
            lines[name] = text.count("\n", 0, match.start()) + 1
    single = {name: next(iter(words)) for name, words in values.items() if len(words) == 1}
    model = next((name for name in _MODELS if name in values), "")
    image = _NIM_IMAGE.search(text)
    if model not in single and (image is None or not any(name.startswith("NIM_") for name in single)):
        return None
    line = lines.get(model) or (text.count("\n", 0, image.start()) + 1 if image is not None else 1)
    return _Variables(single, line)


def _command(text: str, values: Mapping[str, str]) -> str:
    """The command that a container's entry point starts; "" of another engine than vLLM and SGLang."""
    model = next((values[name] for name in _MODELS if name in values), "")
    for prefix, start in (("SM_VLLM_", "vllm serve"), ("SM_SGLANG_", "python3 -m sglang.launch_server")):
        flags = {
            name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)
        }
        if flags and model:
            flags = {name: value for name, value in flags.items() if name not in ("MODEL", "MODEL_PATH")}
            named = _word(model) if start.startswith("vllm") else f"--model-path {_word(model)}"
            return " ".join((start, named, *_flags(flags)))
    batch = values.get("OPTION_ROLLING_BATCH", "").lower()
    options = {name for name in values if name.startswith("OPTION_")}
    if model and options and batch in _OWN_BATCHES and not _OTHER_PROGRAMS.search(text):
        return " ".join(("vllm serve", _word(model), *_flags(_of_vllm(values, "OPTION_"))))
    profile, image = _PROFILE.fullmatch(values.get("NIM_MODEL_PROFILE", "")), _NIM_IMAGE.search(text)
    if profile is not None and image is not None:
        flags = {"TENSOR_PARALLEL_SIZE": profile["tp"], "PIPELINE_PARALLEL_SIZE": profile["pp"] or "1"}
        flags |= _of_vllm(values, "NIM_")
        precision = {"fp8": "-FP8", "nvfp4": "-NVFP4", "fp4": "-NVFP4"}.get(profile["dtype"], "")
        extra = values.get("NIM_PASSTHROUGH_ARGS", "")
        return " ".join(("vllm serve", f"{image['model']}{precision}", *_flags(flags), extra)).strip()
    return ""


def _of_vllm(values: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Variables of a prefix that are flags of vLLM, by their flags; others are the container's own."""
    parser = server_flags("vLLM")
    known = frozenset[str]() if parser is None else parser.all
    options = {}
    for name, value in values.items():
        bare = "TENSOR_PARALLEL_DEGREE" if name == "TENSOR_PARALLEL_DEGREE" else name.removeprefix(prefix)
        flag = _SPELLED.get(bare.lower(), bare.lower())
        if (name.startswith(prefix) or name == "TENSOR_PARALLEL_DEGREE") and flag in known - {"model"}:
            options[flag.upper()] = _DTYPES.get(value, value) if flag == "dtype" else value
    return options


def _flags(flags: Mapping[str, str]) -> Iterator[str]:
    """Words of a command; what is false is not said, and only a run knows a degree of all GPUs."""
    for name, value in flags.items():
        flag = f"--{name.lower().replace('_', '-')}"
        if value.lower() == "false":
            continue
        yield flag
        if value.lower() == "max":
            yield "$GPUS_OF_MACHINE"
        elif value.lower() != "true":
            yield _word(value)


def _word(value: str) -> str:
    """A value as one word of a command; a variable that only a run knows stays one.

    >>> _word("a/b"), _word("a b"), _word("$NAME")
    ('a/b', "'a b'", '$NAME')
    """
    return value if _VARIABLE.fullmatch(value) else shlex.quote(value)


def _shown(text: str) -> Iterator[str]:
    """The GPUs that its pod or its machine gives a container, where a file names one of either."""
    pods = {whole_or_none(count) for count in _GPUS.findall(text)} - {None, 0}
    machines = machines_in_text(text)
    count = pods.pop() if len(pods) == 1 else machines[0].gpus_per_node if len(machines) == 1 else 0
    if 0 < (count or 0) <= _MOST_GPUS:
        yield f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(count or 0)))}"
