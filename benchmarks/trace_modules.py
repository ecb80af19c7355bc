"""How long modules take to trace, in which memory, and to plan on 64 GPUs afterwards.

    python benchmarks/trace_modules.py

Asked: at most 15 s and 2 GB of resident memory to trace each, in a process of its own; 2 s to plan.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
VIT = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 1024,
    "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
}  # fmt: skip
MODULES = {
    "ResNet-50": ("examples.modules:resnet50", "8x3x224x224"),
    "BERT-large": ("examples.modules:bert_large", "8x512:long"),
    "ViT-L": (VIT, ""),
    "SDXL U-Net": ("examples.diffusion:sdxl_unet", "2x4x128x128,2,2x77x2048,2x2816"),
    "Llama-8B": (LLAMA, "1x8192:long"),
}


def main() -> int:
    """Trace each in a process that says its peak, then plan it here."""
    sys.path.insert(0, str(ROOT))
    if len(sys.argv) > 1:
        return _one(*sys.argv[1:])
    import meshplan
    from costmodel.models.traced import TracedModule
    from costmodel.ops.module_spec import spec_of_module
    from topology.base.decode import read_json, structure

    print("| module | trace, s | peak, GB | plan on 64 GPUs, s |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, (what, inputs) in MODULES.items():
            file, builder = Path(folder) / "config.json", what
            if isinstance(what, dict):
                file.write_text(json.dumps(what), encoding="utf-8")
                builder = f"transformers:{file}"
            table = Path(folder) / "table.json"
            words = [sys.executable, __file__, str(builder), inputs, str(table)]
            begin = time.perf_counter()
            peak = float(subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
            traced = time.perf_counter() - begin
            found = read_json(table)
            model = spec_of_module(structure(found["module"], TracedModule, name))
            begin = time.perf_counter()
            meshplan.plan(model, gpus=64, seq=1, batch=1024, stack="torchtitan", engine="any")
            print(f"| {name} | {traced:.1f} | {peak:.2f} | {time.perf_counter() - begin:.2f} |", flush=True)
    return 0


def _one(builder: str, inputs: str, table: str) -> int:
    """Trace in this process, and print its largest resident memory in GB."""
    from executor.tracing.process import MOST_BYTES
    from executor.tracing.worker import main as trace

    trace(builder, inputs, table, str(int(MOST_BYTES)))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9)
    return 0


if __name__ == "__main__":
    sys.exit(main())
