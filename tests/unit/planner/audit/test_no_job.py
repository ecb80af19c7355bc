"""Files that are no job are refused with the command that takes them."""

from __future__ import annotations

import pytest

from planner.audit.job import audited_job
from planner.audit.read import read_texts
from planner.audit.serving.server import Unknown, server_of
from planner.questions.flags import Flags
from topology.base.errors import InputError

MODEL = '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32}'
CLUSTER = 'name = "lab"\nfabric = "ethernet"\n[[nodes]]\nmachine = "dgx-h100"\ncount = 4\n'
TOPOLOGY = "        GPU0    GPU1    NIC0    CPU Affinity\nGPU0     X      NV18    PIX     0-47\nGPU1    NV18     X      SYS     0-47\n"
RUNS = "id,model,gpus,tp,pp,step_time_s\na,llama-3-8b,8,1,1,4.2\n"


@pytest.mark.parametrize(
    ("name", "text", "what", "fix"),
    [
        ("config.json", MODEL, "a model's configuration", "--model config.json"),
        ("lab.toml", CLUSTER, "a cluster", "--cluster lab.toml"),
        ("topo.txt", TOPOLOGY, "a machine's topology", "plan topology --cluster topo.txt"),
        ("runs.csv", RUNS, "a table of runs", "plan accuracy runs.csv"),
    ],
)
def test_a_file_that_is_no_job_is_named_with_the_command_that_takes_it(name, text, what, fix):
    with pytest.raises(InputError) as refused:
        read_texts({name: text})
    assert refused.value.what == f"{name} is {what}, not a job"
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ds.json", '{"zero_optimization": {"stage": 3}, "hidden_size": 1, "model_type": "x"}'),
        ("job.toml", "[parallelism]\ntensor_parallel_degree = 8\n[training]\nlocal_batch_size = 1\n"),
    ],
)
def test_a_job_is_none_of_them(name, text):
    assert read_texts({name: text}).settings


def test_beside_a_launch_file_the_sizes_of_a_model_count():
    run = "torchrun --nproc_per_node 8 train.py --fsdp full_shard --per_device_train_batch_size 1 --bf16\n"
    reading = read_texts({"run.sh": run, "config.json": MODEL})
    assert reading.facts.count("model.num_layers") == 32


def test_values_of_a_chart_name_the_configuration_that_they_mount():
    """What is launched stands in another file: its name is in the reason."""
    text = "workload:\n  gpus: 576\n  configFile: nemo-config.yaml\n  image: x/y:1\nqueue:\n"
    job = audited_job(read_texts({"values.yaml": text}), Flags())
    assert job.missing[0].startswith("a job of an engine that is known")
    assert job.missing[0].endswith("name nemo-config.yaml too")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("empty.sh", "", "nothing is written there"),
        ("blank.yaml", " \n\n", "nothing is written there"),
        ("note.sh", "#!/bin/bash\nCITY=Bern\necho hello\n", "no line starts an engine"),
    ],
)
def test_a_file_without_any_engine_is_refused(name, text, why):
    with pytest.raises(InputError) as refused:
        read_texts({name: text})
    assert refused.value.what == f"no engine and no job was recognised in {name}"
    assert refused.value.cause.startswith(why)


@pytest.mark.parametrize(
    ("text", "server"),
    [
        (
            "#!/bin/bash\n# 2 x RTX 3090\nllama-server -m ./m-70B-Q4_K_M.gguf -ngl 99 -c 32768 --port 8080",
            "llama.cpp",
        ),
        (
            "docker run --gpus all -p 8080:80 ghcr.io/o/text-generation-inference:3.0 --model-id a/b",
            "Text Generation",
        ),
        ("ollama serve --port 1", "Ollama"),
        ("lmdeploy serve api_server a/b --tp 2", "LMDeploy"),
    ],
)
def test_a_server_that_nothing_prices_is_refused_by_its_name(text: str, server: str) -> None:
    """With the command that asks what a server of another engine would hold on the same GPUs."""
    with pytest.raises(InputError, match=f"s.sh starts {server}") as refused:
        read_texts({"s.sh": text})
    assert "plan serve --model" in refused.value.fix
    assert read_texts({"s.sh": f"# not ollama\nvllm serve Qwen/Qwen3-8B\n{text}"}).family.serves


def test_a_server_of_an_unknown_model_says_how_it_is_told() -> None:
    """Near names, and the configuration of any other."""
    reading = read_texts({"s.sh": "vllm serve nobody/Knows-1B --max-model-len 4096"})
    found = server_of(reading, model=None, gpu="h100-sxm")
    assert isinstance(found, Unknown)
    assert "config.json" in found.missing[0]


HEAD = "# nThread 1 nGpus 1 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n#\n"
RANKS = "#  Rank {rank:2d} Group  0 Pid 9{rank} on  n{host} device  {rank} [0x18] NVIDIA H100 80GB HBM3\n"
ROW = "  {size}   {count}   float   sum   -1   166100.0   {rate}   {bus}   0   166090.0   12.93   24.24   0\n"


@pytest.mark.parametrize("beside", [{}, {"run.sh": "torchrun --nproc_per_node 8 pretrain_gpt.py --bf16\n"}])
@pytest.mark.parametrize(
    ("hosts", "flag"),
    [(2, "nic_bandwidth_bytes_per_s=6e+09"), (1, "scaleup_bandwidth_bytes_per_s=2.4e+10")],
)
def test_measured_links_are_a_flag_and_never_left_out(hosts: int, flag: str, beside: dict[str, str]) -> None:
    """The largest message counts; of several hosts the rate is that of the NICs of one together."""
    ranks = "".join(RANKS.format(rank=rank, host=rank % hosts) for rank in range(4 * hosts))
    rows = "".join(
        ROW.format(size=size, count=size // 4, rate=12.0, bus=bus)
        for size, bus in ((4096, 24.0), (1024, 3.0))
    )
    with pytest.raises(InputError, match="a measurement of nccl-tests, not a job") as refused:
        read_texts({**beside, "perf.txt": HEAD + ranks + rows})
    assert flag in refused.value.fix
