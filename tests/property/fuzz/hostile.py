"""The corpus: every hostile case that a review found once, as it was found."""

from __future__ import annotations

import json

from tests.property.fuzz.mutate import CANARY, toml_of
from tests.unit.costmodel.accuracy.test_serving_runs import ROW
from tests.unit.costmodel.calibration.test_bench_files import HOSTILE
from tests.unit.costmodel.models.test_hf_config import CONFIGS as BASES
from tests.unit.topology.discover.test_discover import XML, ib_dump


def _config(name: str, **change: object) -> str:
    return json.dumps({**BASES[name], **change})


_NESTED = "[" * 100_000
CONFIGS = (
    *(_config(name, num_hidden_layers=10**8) for name in ("mistral-7b-v0.1", "gemma-2-9b", "gpt-oss-20b", "qwen3-8b")),
    _config("gpt-oss-20b", num_hidden_layers=20_000, layer_types=["full_attention", *["sliding_attention"] * 3, "full_attention"] * 4000),
    _config("gpt-oss-20b", num_hidden_layers=20_000, layer_types=["sliding_attention"] * 19_999 + ["full_attention"]),
    _config("gpt-oss-20b", layer_types=["full_attention"]),
    *(_config("llama-3.1-8b", **{key: 10**400}) for key in ("rope_theta", "rms_norm_eps", "hidden_size")),
    *(_config("llama-3.1-8b", **{key: float(word)}) for key in ("rope_theta", "rms_norm_eps", "vocab_size") for word in ("nan", "inf", "1e308")),
    _config("llama-3.1-8b", architectures=["\ud800"], model_type="\ud800"),
    "", "[]", "{}", "null", "\x00", _NESTED, '{"a":' * 100_000, '{"hidden_size": ' + "9" * 5000 + "}",
)  # fmt: skip
BENCHES = HOSTILE
DUMPS: dict[str, tuple[str, ...]] = {
    "NCCL XML": (
        XML.format(nvlink="", extra='<nic><net name="a" speed="N/A"/></nic>'),
        XML.format(nvlink='<nvlink target="9:99" count="" tclass="0x068000"/>', extra=""),
        XML.format(
            nvlink='<nvlink target="9:99" count="-9" tclass="0x068000"/>',
            extra='<nic><net speed="-1"/></nic>',
        ),
        XML.format(nvlink="", extra='<nic><net name="a" speed="1e400"/></nic>'),
        '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><system>&b;</system>',
        "<system>" + "<cpu>" * 100_000,
    ),
    "ibnetdiscover": (
        ib_dump(units=2, hosts=3, rails=1, spines=0),
        ib_dump(units=2, hosts=3, rails=1, spines=1).replace("node-", "MT4129 ConnectX7   Mellanox "),
        ib_dump(units=2, hosts=3, rails=1, spines=0).replace("node-", "MT4129 ConnectX7   Mellanox "),
    ),
    "topograph": (
        "switches:\n  a:\n    switches:\n    - b\n  b:\n    switches:\n    - a\nblocks:\n- switch: a\n  nodes:\n  - n1\n",
        "switches:\n  a:\n    switches:\n    - a\nblocks:\n- switch: a\n  nodes:\n  - n1\n",
        'blocks:\n- switch: a\n  nodes: ["n[0-99999999]"]\n',
        'blocks:\n- switch: a\n  nodes: ["n[9-0]", "n[00000000000000001-2]"]\n',
        "switches:\n  - b\n  a:\n    switches:\nblocks:\n- switch: a\n  nodes:\n  - n1\n",
        "switches:\n  a:\n    switches:\nblocks:\n- switch: a\n  nodes:\n",
    ),
    "allocation": (
        "SwitchName=a Nodes=n[0-999999999]\n",
        "SwitchName=a Nodes=n[1-999][1-999][1-999]\n",
        "BlockName=b Nodes=" + "n," * 100_000,
        "".join(f"SwitchName=s{i} Switches=s{i + 1}\n" for i in range(5000)),
        "SwitchName=a Switches=a\n",
        "SwitchName= Nodes=\n",
        "SwitchName=a Nodes=n[0-131071]\n",
        "".join(f"SwitchName=s{i} Nodes=n{i}-[1-{i % 7 + 1}]\n" for i in range(9000)),
        "a: &a [b]\nblocks: *a\n",
        "- topology: a\n" * 50_000,
        "blocks: " + "[" * 100_000,
        "[" * 100_000,
        "{" * 100_000,
        "- " * 50_000,
        "SLURM_JOB_NODELIST=n[0-99999999]\n",
        "SLURM_TOPOLOGY_ADDR=" + "s." * 50_000 + "n\n",
        "n1\n" * 200_000,
        "n[" * 50_000 + "1\n",
        '{"Instances": [{"InstanceId": "i", "NetworkNodes": ["a"], "InstanceType": "p5.48xlarge"}, {"InstanceId": "i", "NetworkNodes": ["b"]}]}',
        "===== Link Type between two GPUs =====\n" + "GPU0 " + "XGMI " * 100_000 + "\n",
    ),
}
_NODE: dict[str, object] = {"gpu": "h100-sxm", "count": 2}
CLUSTERS = (
    *(toml_of({"nodes": [{**_NODE, key: value}]}) for key in ("nics_per_node", "gpus_per_node", "count", "nodes_per_domain") for value in (10**6, 2**31, 10**18, 0, -1, 1e308)),
    toml_of({"nodes": [_NODE], "gpus": [{"name": ["x"]}]}),
    toml_of({"nodes": [{**_NODE, "nic_bandwidth_bytes_per_s": "1e400 GB/s"}]}),
    toml_of({"nodes": [{**_NODE, "switch": "a"}], "switches": [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]}),
    toml_of({"nodes": [{**_NODE, "switch": "a"}], "switches": [{"name": "a", "parent": "a"}]}),
    "nodes = " + _NESTED, "a = " + "9" * 5000, "", "\x00",
)  # fmt: skip

LOGS = (
    "", "\x00", _NESTED, "step: 1 tps: 0\n", "step: 1 tps: 1e400\n", '{"step": 1, "step_time_s": 1e-320}\n' * 3,
    '{"step": 1, "step_time_s": NaN}\n', '{"step": 1, "step_time_s": 1, "at_s": 1e308}\n{"step": 2, "step_time_s": 1, "at_s": -1e308}\n',
    "[9999-99-99 99:99:99] iteration 1/ 9 | elapsed time per iteration (ms): 1 |\n", "iteration " + "9" * 5000 + "/ 9 | elapsed time",
    "step: 1 " + "x" * 100_000 + "\n",
)  # fmt: skip
EVENTS = (
    "", "\x00", _NESTED, "{}", "null", '{"items": 3}', '{"items": [{"reason": null}]}', '{"items": [{"reason": "Evicted", "lastTimestamp": 1e400}]}',
    '{"items": [{"reason": "Evicted", "lastTimestamp": "2026-01-01T00:00:00Z", "involvedObject": "x"}]}',
    "State|Start|End\n|||\n", "State|Start|End\nFAILED|0001-01-01T00:00:00+23:59|9999-12-31T23:59:59\n",
    "State|Start|End\n|2026-01-01\n", 'State|Start|End\n"' + "x" * 200_000, "State|Start|End\nFAILED|" + "9" * 5000 + "|x\n",
)  # fmt: skip
_STORE = {"name": "x", "write_bytes_per_s": 1e11, "read_bytes_per_s": 1e11}
FAILURES = (
    *(toml_of({"storage": {**_STORE, key: value}}) for key in ("write_bytes_per_s", "read_bytes_per_s") for value in (0, -1, 1e-300, 1e308, "fast")),
    *(toml_of({"times": {name: {"seconds": value}}}) for name in ("swap", "repair", "hang_notice") for value in (0, -1, 1e-9, 1e9, 1e308)),
    *(toml_of({"stragglers": {"prevalence": share, "slowdown": 1e3, "spell": {"seconds": 60}}}) for share in (0, 0.999999, 1, -1)),
    *(toml_of({"site": site}) for site in ("nowhere", "", 7, {}, {"name": "x", "gpu": "x", "gpus": 8, "days": 1, "causes": []})),
    *(toml_of({"min_gpus": count}) for count in (0, -8, 2**31, 10**18)),
    "site = " + _NESTED, "", "\x00",
)  # fmt: skip


def _row(**cells: str) -> str:
    row = {**ROW, **cells}
    return ",".join(row) + "\n" + ",".join(row.values()) + "\n"


SERVING = (
    *(_row(tp=value) for value in ("four", "inf", "nan", "-1", "7.5", "1e308", "", "0")),
    *(_row(moe_ep=value, moe_tp="1") for value in ("-1", "four", "1e18")),
    *(_row(batch=value) for value in ("four", "inf", "1e308")),
    *(
        _row(**{name: value})
        for name in ("concurrency", "input_tokens", "output_tokens")
        for value in ("1e18", "1e308", "inf", "-3")
    ),
    *(_row(cluster=place) for place in (CANARY, "/dev/zero")),
    _row(attention_dp="1_000"),
)


def _training(**cells: str) -> str:
    row = {
        "id": "a", "source": "own", "model": "", "num_layers": "24", "hidden_size": "2304", "intermediate_size": "9216",
        "num_attention_heads": "24", "num_key_value_heads": "24", "vocab_size": "51200", "gated_mlp": "0", "tie_word_embeddings": "1",
        "sequence_length": "2048", "gpu": "a100-sxm-80gb", "num_gpus": "32", "gpus_per_node": "8", "framework": "Megatron-LM",
        "precision": "bf16", "dp": "32", "tp": "1", "pp": "1", "microbatch_size": "16", "global_batch_size": "512", "recompute": "full",
        "step_time_s": "3.5", **cells,
    }  # fmt: skip
    return ",".join(row) + "\n" + ",".join(row.values()) + "\n"


TRAINING = (
    *(_training(gpus_per_node=value) for value in ("999999999", "1e308", "-8", "0", "7.5")),
    *(_training(hidden_size=value) for value in ("1e308", "1e18", "nan", "-1")),
    *(_training(num_layers=value) for value in ("1e8", "1e18")),
    *(_training(cluster=place) for place in (CANARY, "/dev/zero", "/etc/passwd", "\x00", "../x")),
    "id\n", "", "a,b\n" + '"' + "x" * 200_000,
)  # fmt: skip
_ESTIMATE = ("estimate", "--model", "llama-3.2-1b", "--gpus", "8", "--json")
COMMANDS = tuple(
    json.dumps(words)
    for words in (
        ["models", "/dev/zero"], ["models", "x" * 3000], ["models", "x" * 3000 + "/config.json"], ["models", "/"], ["models", "."],
        ["topology", "--cluster", "/dev/zero"], ["topology", "--discover", "/dev/zero"], ["topology", "--cluster", "x" * 3000 + ".toml"],
        ["accuracy", "/dev/zero"], ["diff", "/dev/zero", "/dev/null"], ["export", "/dev/zero", "--to", "slurm"],
        [*_ESTIMATE, "--set", "cluster.nodes=[]"], [*_ESTIMATE, "--set", "cluster.gpus_per_node=0"], [*_ESTIMATE, "--set", "layout.axis_order=tp,tp"],
        ["serve", "--model", "8b", "--gpus", "8", "--input", "1000", "--output", "200", "--rate", "1e18"],
        ["serve", "--model", "8b", "--gpu", "h100-sxm", "--input", "1000", "--output", "200", "--concurrency", "1000000", "--tpot", "12ms"],
        ["models", "8b", "--output", "/dev/full"], ["models", "--format", "xml"], ["nosuch"], ["--nosuch"], [""], ["-"], ["train"],
        ["topology", "--gpus", "1000000", "--json"],
    )
)  # fmt: skip
ENVIRONMENTS = tuple(
    json.dumps({"SLURM_JOB_ID": "7", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "a[1-2]", **change})
    for change in (
        *({"SLURM_JOB_NUM_NODES": value} for value in ("abc", "", "2(x3)", "0", "-1", "9" * 400, "1e3", "٢")),
        *({"SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": value} for value in ("abc", "", "-1", "2", "9" * 400)),
        *(
            {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": value}
            for value in ("", "[", "a[", "a[1-", "--x", "a b")
        ),
    )
)
QUERIES = (
    "model=/dev/zero&gpus=8", f"model={CANARY}&gpus=8", f"gpus=8&cluster={CANARY}", "gpus=8&set=cluster.nodes=[]", "gpus=8&anchor=../x.csv",
    "model=8b&gpus=" + "9" * 400, "model=" + "x" * 3000, "model_spec=x&model=8b&gpus=8", "&" * 100_000, "set=" * 5000, "%ff=%00",
)  # fmt: skip
KEPT = (
    "",
    "{",
    "[1]",
    "[null]",
    _NESTED,
    '{"name": "a", "levels": [{"stack": "a", "level": -1, "deviation": 0, "runs": 1}]}',
    "\x00",
)
