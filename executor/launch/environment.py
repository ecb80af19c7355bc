"""What ranks know of the user's environment: names on a list, and those that the user gives."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from executor.launch.nodes import sockets_on
from topology.base.errors import InputError

NAMES = frozenset(
    (
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_CACHE_HOME",
        "XDG_DATA_HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME",
        "PYTHONNOUSERSITE", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONWARNINGS",
        "TOKENIZERS_PARALLELISM",
    )
)  # fmt: skip
PREFIXES = (
    "LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "OMP_",
    "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "UCX_", "FI_", "IBV_", "RDMAV_", "HSA_", "HIP_", "ROCR_", "MIOPEN_",
    "MESHPLAN_",
)  # fmt: skip
# What torch is told unless the user says otherwise, by its name of today (2.13) or an older one: an allocator
# that joins what is free, and a recorder of NCCL's operations, which names the one that hung (torchfrtrace),
# and connections of gloo when two ranks first talk: each group would open one between every two of its ranks.
TORCH_DEFAULTS = {
    ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"): "expandable_segments:True",
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"): "2000",
    ("TORCH_NCCL_DUMP_ON_TIMEOUT",): "1",
    ("TOKENIZERS_PARALLELISM",): "false",  # of a rank: one thread keeps up, and does not crowd out the others
    ("TORCH_GLOO_LAZY_INIT",): "1",
}
# Threads of a rank on a CPU: one unless the rank has more cores, and asleep while they wait. libgomp's spin
# by default, which on cores that something else wants too takes ten times as long as the work.
THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
RECORD_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
WANDB = "WANDB_"  # with --wandb, which cannot log in otherwise
HUB = "HF_"  # with data from a hub: where it is, its cache, its token, whether it may be asked
WAYS_OUT = frozenset(
    (
        "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy",
        "all_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    )
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def environment_of_ranks(
    environment: Mapping[str, str],
    *,
    interface: str,
    named: Sequence[str] = (),
    wandb: bool = False,
    hub: bool = False,
    records: Path | None = None,
) -> dict[str, str]:
    """Environment of every rank: what is listed and named, sockets on one interface, our packages found.

    `hub` says whether ranks read from a Hugging Face hub. `records` is the folder in which each rank leaves
    its last NCCL operations when one has hung.
    """
    prefixes = (*PREFIXES, *((WANDB,) if wandb else ()), *((HUB,) if hub else ()))
    names = NAMES | WAYS_OUT if hub else NAMES
    passed = {
        name: value
        for name, value in environment.items()
        if name in names or name.startswith(prefixes) or name in named
    }
    values = TORCH_DEFAULTS | ({} if records is None else {RECORD_FILE: str(records / "nccl-rank")})
    defaults = {names[0]: value for names, value in values.items() if not passed.keys() & set(names)}
    return {
        **THREADS,
        **defaults,
        **passed,
        **sockets_on(interface),
        "PYTHONPATH": import_path(environment.get("PYTHONPATH", "")),
        "PYTHONSAFEPATH": "1",
    }


def import_path(path: str) -> str:
    """Our packages first, then the user's folders; none that depends on where the run was started."""
    ours = str(Path(__file__).resolve().parents[2])
    theirs = [part for part in path.split(os.pathsep) if Path(part).is_absolute() and not _is_here(part)]
    return os.pathsep.join(dict.fromkeys((ours, *theirs)))


def _is_here(folder: str) -> bool:
    """Whether a folder is the one we were started in."""
    try:
        return Path(folder).samefile(os.curdir)
    except OSError:
        return False


def check_named(named: Sequence[str], environment: Mapping[str, str]) -> None:
    """Refuse names that are none: a value on a command line would be seen by everybody on the machine."""
    wrong = next((name for name in named if _NAME.fullmatch(name) is None), None)
    if wrong is not None:
        raise InputError(
            what="--env takes the name of a variable",
            cause=f"{wrong.partition('=')[0][:80]!r} is not a name, or is followed by a value",
            fix="set the variable first, and give its name: --env NAME",
        )
    unset = next((name for name in named if name not in environment), None)
    if unset is not None:
        raise InputError(
            what=f"--env names a variable that is not set: {unset}",
            cause="ranks are to be given it",
            fix=f"export {unset} first, or leave --env {unset} out",
        )
