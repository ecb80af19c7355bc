"""Files of options of servers: what they state, which keys nothing reads, and whose word holds."""

import pytest

from planner.audit.read import Reading, read_texts
from planner.audit.serving.audit import _start
from planner.audit.serving.server import Server, server_of

TRT = "# 8x H200\ntrtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8"
VLLM = "# 4x H100\nvllm serve --config o.yaml"
SGLANG = "# 4x H100\npython -m sglang.launch_server --config o.yaml"


def written(options: str, command: str) -> str:
    """A script that writes its server's file of options."""
    return f"cat > o.yaml <<EOF\n{options}\nEOF\n{command}"


def server(*texts: str) -> Server:
    """The server of a script, and of its file of options where that is another file."""
    found = server_of(reading(*texts), model=None, gpu=None)
    assert isinstance(found, Server)
    return found


def reading(*texts: str) -> Reading:
    """What files say."""
    return read_texts(dict(zip(("s.sh", "o.yaml"), texts, strict=False)))


MODEL = "model: meta-llama/Llama-3.3-70B-Instruct\ntensor-parallel-size: 4"
PATH = "model-path: meta-llama/Llama-3.3-70B-Instruct\ntp-size: 4"


@pytest.mark.parametrize(("command", "options"), [(VLLM, MODEL), (SGLANG, PATH)])
def test_a_server_is_what_its_file_of_options_says(command: str, options: str) -> None:
    """Whether its script writes the file or it is given beside it."""
    for texts in ((written(options, command),), (command, options)):
        told = server(*texts)
        assert (told.model.name, told.layout.tp) == ("llama-3.3-70b", 4)


@pytest.mark.parametrize(
    ("command", "options", "key"),
    [
        (VLLM, f"{MODEL}\nmax-num-seq: 64", "max_num_seq"),
        (SGLANG, f"{PATH}\nmem-fraction-statics: 0.8", "mem_fraction_statics"),
        (f"{TRT} --config o.yaml", "enable_chunked_prefil: true", "enable_chunked_prefil"),
        (f"{TRT} --config o.yaml", "kv_cache_config:\n  dtypes: fp8", "kv_cache_config.dtypes"),
        (f"{TRT} --extra_llm_api_options o.yaml", "cuda_graph_configs:\n  max: 8", "cuda_graph_configs"),
    ],
)
def test_a_misspelt_option_stops_the_engine(command: str, options: str, key: str) -> None:
    """Every engine refuses keys that it does not have, TensorRT-LLM in its tables, too."""
    for texts in ((written(options, command),), (command, options)):
        start = _start(server(*texts))
        assert start.starts is False
        assert f"has the option {key}," in start.why


def test_flags_of_trtllm_are_known_without_its_parser() -> None:
    """A misspelt one stops it, a shortened one too; those that move nothing are named as such."""
    misspelt = _start(server(TRT.replace("--tp_size", "--tp_sise")))
    assert misspelt.starts is False
    assert misspelt.finding is not None
    assert misspelt.finding[1] == "write --tp_size"
    quiet = server(f"{TRT} --backend pytorch --log_level info").unread
    assert quiet.neutral == ("--backend", "--log_level")
    assert quiet.uncounted == ()
    assert server(f"{TRT} --max_num_tok 8192").unread.unknown == ("--max_num_tok",)


def test_options_that_nothing_reads_are_named_by_what_they_do() -> None:
    """A verdict of memory stands beside none that moves it."""
    options = (
        "print_iter_log: true\nattn_backend: TRTLLM\nkv_cache_config:\n  max_attention_window: [8]\nzoo: 1"
    )
    unread = server(written(options, f"{TRT} --config o.yaml")).unread
    assert unread.neutral == ("print_iter_log",)
    assert unread.speed == ("attn_backend",)
    assert unread.memory == ("kv_cache_config.max_attention_window",)
    assert unread.unknown == ("zoo",)


def test_sizes_of_graphs_and_of_expert_kernels_are_no_limits_of_the_batch() -> None:
    """They have the same last word."""
    options = "cuda_graph_config:\n  max_batch_size: 16\nmoe_config:\n  max_num_tokens: 4096"
    told = server(written(options, f"{TRT} --config o.yaml"))
    assert (told.max_batch, told.token_budget) == (None, None)


@pytest.mark.parametrize(("image", "tp"), [("", 8), ("# tensorrt-llm/release:1.2.0\n", 4)])
def test_a_file_of_options_overwrites_the_command_of_older_trtllm_alone(image: str, tp: int) -> None:
    """Its pull request 14812 turned that round; either way the word that does not hold is said."""
    text = image + written("tensor_parallel_size: 4", f"{TRT} --config o.yaml")
    said = reading(text)
    assert said.facts.count("layout.tp") == tp
    assert any("holds over" in doubt for doubt in said.doubts)


def test_another_file_that_a_script_writes_is_no_file_of_options() -> None:
    """What goes to another name is not judged as one."""
    text = f"cat > bench.yaml <<EOF\nconcurrencies: 4\nEOF\n{TRT} --config o.yaml"
    assert server(text).unread.unknown == ()
