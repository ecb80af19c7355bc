"""The parameter counts we compute are the published ones, exactly where those are printed exactly."""

import pytest

from costmodel.models.catalog import model, model_names
from costmodel.models.parameters import (
    active_parameter_count,
    embedding_parameters,
    encoder_parameters,
    parameter_count,
)

SAFETENSORS = "total of the safetensors index on the model's page at huggingface.co"

EXACT = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "gpt-2": 124_439_808,
    "distilgpt2": 81_912_576,
    "opt-1.3b": 1_315_758_080,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "starcoder-15b": 15_517_456_384,
    "starcoder2-15b": 15_957_889_024,
    "dbrx": 131_596_523_520,
    "solar-10.7b": 10_731_524_096,
    "baichuan-7b": 7_000_559_616,
    "gpt-2-medium": 354_823_168,
    "gpt-2-large": 774_030_080,
    "gpt-2-xl": 1_557_611_200,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b": 7_248_023_552,
    "mamba2-1.3b": 1_343_757_312,
    "mamba2-2.7b": 2_702_599_680,
    "mamba-codestral-7b": 7_285_403_648,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mistral-large-123b": 122_610_069_504,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-vl-30b-a3b": 30_532_122_624,
    "qwen3-vl-235b-a22b": 235_093_634_560,
    "qwen2.5-vl-7b": 7_615_616_512,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,  # without the multi-token prediction module
    "deepseek-r1": 671_026_419_200,
    "kimi-k2": 1_026_408_232_448,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "phi-4": 14_659_507_200,
    "smollm3-3b": 3_075_098_624,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "codellama-7b": 6_738_546_688,
    "codellama-13b": 13_016_028_160,
    "codellama-34b": 33_743_970_304,
    "codellama-70b": 68_976_910_336,
    "tinyllama-1.1b": 1_100_048_384,
    "mistral-7b-v0.2": 7_241_732_096,
    "mistral-small-22b": 22_247_282_688,
    "mistral-small-3.1-24b": 23_572_403_200,
    "ministral-8b": 8_019_808_256,
    "qwen1.5-0.5b": 463_987_712,
    "qwen1.5-1.8b": 1_836_828_672,
    "qwen1.5-4b": 3_950_369_280,
    "qwen1.5-7b": 7_721_324_544,
    "qwen1.5-14b": 14_167_290_880,
    "qwen1.5-32b": 32_512_218_112,
    "qwen1.5-72b": 72_287_920_128,
    "qwen1.5-110b": 111_209_914_368,
    "deepseek-r1-distill-qwen-1.5b": 1_777_088_000,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-3-270m": 268_098_176,
    "phi-3-mini-4k": 3_821_079_552,
    "phi-3-mini-128k": 3_821_079_552,
    "phi-3-medium-14b": 13_960_238_080,
    "phi-4-mini": 3_836_021_760,
    "yi-6b": 6_061_035_520,
    "yi-1.5-9b": 8_829_407_232,
    "yi-34b": 34_388_917_248,
    "internlm2.5-7b": 7_737_708_544,
    "internlm2-20b": 19_861_149_696,
    "internlm3-8b": 8_804_241_408,
    "baichuan2-7b": 7_505_973_248,
    "deepseek-llm-7b": 6_910_365_696,
    "deepseek-llm-67b": 67_425_001_472,
    "deepseek-coder-1.3b": 1_346_471_936,
    "deepseek-coder-6.7b": 6_740_512_768,
    "deepseek-coder-33b": 33_342_991_360,
    "deepseek-moe-16b": 16_375_728_128,
    "glm-4-9b": 9_399_951_360,
    "glm-4-9b-0414": 9_400_279_040,
    "seed-oss-36b": 36_151_104_512,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "granite-3.1-2b": 2_533_531_648,
    "granite-3.1-8b": 8_170_848_256,
    "falcon3-3b": 3_227_655_168,
    "falcon3-7b": 7_455_550_464,
    "falcon3-10b": 10_305_653_760,
    "exaone-3.5-7.8b": 7_818_448_896,
    "exaone-3.5-32b": 32_003_200_000,
    "kimi-k2.5": 1_026_408_232_448,
    "kimi-k2-thinking": 1_026_408_232_448,
    # Language models alone: what sees is checked with them in test_catalogued_models_that_see_have_their_parameters.
    "qwen2-vl-2b": 1_543_714_304,
    "qwen2-vl-7b": 7_615_616_512,
    "qwen2-vl-72b": 72_706_203_648,
    "qwen2.5-vl-3b": 3_085_938_688,
    "qwen2.5-vl-32b": 32_763_876_352,
    "qwen2.5-vl-72b": 72_706_203_648,
    "qwen3-vl-2b": 1_720_574_976,
    "qwen3-vl-4b": 4_022_468_096,
    "qwen3-vl-8b": 8_190_735_360,
    "internvl3.5-8b": 8_190_735_360,
    "internvl3.5-14b": 14_768_307_200,
    "internvl3.5-30b-a3b": 30_532_122_624,
    "internvl3.5-38b": 32_762_123_264,
    "internvl3.5-241b-a28b": 235_093_634_560,
    "ling-mini-2.0": 16_255_643_392,
    "granite-4.0-h-tiny": 6_939_037_248,
    "granite-4.0-h-small": 32_207_337_984,
    "aya-expanse-8b": 8_028_033_024,
    "command-r-32b": 32_296_476_672,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "falcon-180b": 179_522_565_120,
    "bielik-11b": 11_168_796_672,
    "nemotron-nano-9b-v2": 8_888_227_328,
}

ROUNDED = {
    # name: (published, unit it is rounded to, source)
    # Without the norm of embeddings, and without shifts of logits.
    "bloom-7b1": (7_069_016_064, 10_000, "huggingface.co/bigscience/bloom-7b1"),
    "bloom-176b": (176_247_271_424, 100_000, "huggingface.co/bigscience/bloom"),
    "gpt-j-6b": (6_050_882_784, 200_000, "huggingface.co/EleutherAI/gpt-j-6b"),
    "phi-3.5-moe": (41_873_153_344, 100_000, "huggingface.co/microsoft/Phi-3.5-MoE-instruct"),
    "opt-2.7b": (2.7e9, 1e8, "arXiv 2205.01068 table 1"),
    "opt-30b": (30e9, 1e9, "arXiv 2205.01068 table 1"),
    "opt-66b": (66e9, 1e9, "arXiv 2205.01068 table 1"),
    "opt-175b": (175e9, 1e9, "arXiv 2205.01068 table 1"),
    "grok-1": (314e9, 4e9, "huggingface.co/xai-org/grok-1: 314B"),
    "command-r-plus-104b": (103.8e9, 1e8, "huggingface.co/CohereLabs/c4ai-command-r-plus: 104B"),
    "gpt-3-1.3b": (1.3e9, 1e8, "arXiv 2005.14165 table 2.1"),
    "gpt-3-2.7b": (2.7e9, 1e8, "arXiv 2005.14165 table 2.1"),
    "gpt-3-6.7b": (6.7e9, 1e8, "arXiv 2005.14165 table 2.1"),
    "gpt-3-175b": (175e9, 1e9, "arXiv 2005.14165 table 2.1"),
    "megatron-22b": (22e9, 1e9, "arXiv 2205.05198 table 3"),
    "megatron-175b": (175e9, 1e9, "arXiv 2205.05198 table 3"),
    "megatron-530b": (530e9, 1e9, "arXiv 2205.05198 table 3"),
    "megatron-1t": (1.008e12, 1e9, "arXiv 2104.04473 table 1, the same sizes"),
    "glm-4.5": (355e9, 3e9, "arXiv 2508.06471 table 1"),
    "glm-4.5-air": (106e9, 1e9, "arXiv 2508.06471 table 1"),
    "glm-4.6": (355e9, 3e9, "arXiv 2508.06471 table 1, the same sizes"),
    # Their norms over all heads together are a ten-thousandth of the parameters.
    "olmo-2-7b": (7.3e9, 1e8, "huggingface.co/allenai/OLMo-2-1124-7B"),
    "olmo-2-13b": (13.7e9, 1e8, "huggingface.co/allenai/OLMo-2-1124-13B"),
    "olmo-2-32b": (32.2e9, 1e8, "huggingface.co/allenai/OLMo-2-0325-32B"),
    "olmo-3-7b": (7.3e9, 1e8, "huggingface.co/allenai/Olmo-3-1025-7B"),
    "olmo-3-32b": (32.2e9, 1e8, "huggingface.co/allenai/Olmo-3-1125-32B"),
    "minimax-m2": (230e9, 2e9, "huggingface.co/MiniMaxAI/MiniMax-M2: 230B total"),
    # Without the modules that predict further tokens, and without towers that see.
    "qwen3-next-80b-a3b": (80e9, 1e9, "huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct: 80B in total"),
    "qwen3.5-0.8b": (0.8e9, 1e8, "huggingface.co/Qwen/Qwen3.5-0.8B"),
    "qwen3.5-2b": (2e9, 2e8, "huggingface.co/Qwen/Qwen3.5-2B"),
    "qwen3.5-4b": (4e9, 5e8, "huggingface.co/Qwen/Qwen3.5-4B"),
    "qwen3.5-9b": (9e9, 1e9, "huggingface.co/Qwen/Qwen3.5-9B"),
    "qwen3.5-27b": (27e9, 1e9, "huggingface.co/Qwen/Qwen3.5-27B"),
    "qwen3.5-35b-a3b": (35e9, 1e9, "huggingface.co/Qwen/Qwen3.5-35B-A3B"),
    "qwen3.5-122b-a10b": (122e9, 1e9, "huggingface.co/Qwen/Qwen3.5-122B-A10B"),
    "qwen3.5-397b-a17b": (397e9, 1e9, "huggingface.co/Qwen/Qwen3.5-397B-A17B"),
    "nemotron-h-8b": (8.1e9, 1e8, "huggingface.co/nvidia/Nemotron-H-8B-Base-8K: 8.1B"),
    "nemotron-h-47b": (46.8e9, 1e8, "huggingface.co/nvidia/Nemotron-H-47B-Base-8K: 46.8B"),
    "nemotron-h-56b": (56.3e9, 1e8, "huggingface.co/nvidia/Nemotron-H-56B-Base-8K: 56.3B"),
    "nemotron-3-nano-30b-a3b": (31.6e9, 1e8, "the Nemotron 3 Nano report: 31.6B total"),
    "nemotron-3-super-120b-a12b": (120.6e9, 1e8, "the Nemotron 3 Super report: 120.6B total"),
    "nemotron-3-ultra-550b-a55b": (550e9, 1e9, "huggingface.co/nvidia: 550B total"),
    "minimax-m3": (
        426_174_572_928,
        100,
        "huggingface.co/MiniMaxAI/MiniMax-M3: its tensors, those of its tower apart",
    ),
    "kimi-k3": (2.78e12, 1e10, "huggingface.co/moonshotai/Kimi-K3: 2.78T"),
    "kimi-linear-48b-a3b": (49.1e9, 1e8, "huggingface.co/moonshotai/Kimi-Linear-48B-A3B-Instruct: 49B"),
    "minimax-text-01": (456e9, 1e9, "arXiv 2501.08313: 456B total"),
    "deepseek-v3.2": (671e9, 1e9, "arXiv 2412.19437, and an indexer of 14 million a layer"),
    "deepseek-v4-flash": (284e9, 1e9, "huggingface.co/deepseek-ai/DeepSeek-V4-Flash: 284B"),
    "deepseek-v4-pro": (1.6e12, 1e11, "huggingface.co/deepseek-ai/DeepSeek-V4-Pro: 1.6T"),
    "glm-5": (744e9, 1e9, "huggingface.co/zai-org/GLM-5: 744B"),
    "glm-5.2": (744e9, 1e9, "z.ai: 744B, the backbone of GLM-5"),
    "llama-4-scout": (109e9 - 0.9e9, 1e9, "huggingface.co/meta-llama: 109B, of which 0.9B see"),
    "llama-4-maverick": (400e9, 1e9, "huggingface.co/meta-llama: 400B"),
    "command-r-35b": (35e9, 1e8, "huggingface.co/CohereLabs/c4ai-command-r-v01: 35B"),
    "command-r7b": (8.03e9, 1e7, "huggingface.co/CohereLabs/c4ai-command-r7b-12-2024: 8.03B"),
    "command-a": (111e9, 1e8, "huggingface.co/CohereLabs/c4ai-command-a-03-2025: 111B"),
    "qwen2-57b-a14b": (57.4e9, 1e8, "huggingface.co/Qwen/Qwen2-57B-A14B: 57B"),
    "mimo-7b": (7.62e9, 1e7, "huggingface.co/XiaomiMiMo/MiMo-7B-Base: 7.83B with its predicting layer"),
    "hunyuan-a13b": (80.4e9, 1e8, "huggingface.co/tencent/Hunyuan-A13B-Instruct: 80B in total"),
    "moonlight-16b-a3b": (15.96e9, 2e7, "huggingface.co/moonshotai/Moonlight-16B-A3B: 16B"),
    "glm-4-32b-0414": (32.6e9, 1e8, "huggingface.co/zai-org/GLM-4-32B-0414"),
    "glm-4.7-flash": (30e9, 1e9, "huggingface.co/zai-org/GLM-4.7-Flash: 30B-A3B"),
    "ernie-4.5-21b-a3b": (21.8e9, 1e8, "huggingface.co/baidu/ERNIE-4.5-21B-A3B-PT: 21.8B"),
    "ernie-4.5-300b-a47b": (300e9, 1e9, "huggingface.co/baidu/ERNIE-4.5-300B-A47B-PT: 300B"),
    "ministral-3-3b": (
        3.4e9,
        1e8,
        "huggingface.co/mistralai/Ministral-3-3B-Instruct-2512: 3.4B language model",
    ),
    "ministral-3-8b": (
        8.4e9,
        1e8,
        "huggingface.co/mistralai/Ministral-3-8B-Instruct-2512: 8.4B language model",
    ),
    "ministral-3-14b": (
        13.5e9,
        1e8,
        "huggingface.co/mistralai/Ministral-3-14B-Instruct-2512: 13.5B language model",
    ),
    "devstral-2-123b": (125e9, 1e9, "huggingface.co/mistralai/Devstral-2-123B-Instruct-2512: 125B"),
    "devstral-small-2-24b": (
        23.57e9,
        1e7,
        "huggingface.co/levara/Devstral-Small-2-24B-TextOnly-FP8: 23.57B, its tensors without the tower",
    ),
    "mistral-large-3-675b": (
        673e9,
        1e9,
        "huggingface.co/mistralai/Mistral-Large-3-675B-Instruct-2512: 673B without its tower",
    ),
    "gemma-4-26b-a4b": (25.2e9, 1e8, "huggingface.co/google/gemma-4-26B-A4B: 25.2B, 3.8B active"),
    "qwen3-vl-32b": (32.76e9, 1e7, "huggingface.co/Qwen/Qwen3-32B: 32.8B, its language model"),
    "gemma-4-31b": (30.7e9, 1e8, "huggingface.co/google/gemma-4-31B: 30.7B"),
    "olmoe-1b-7b": (6.92e9, 1e7, "arXiv 2409.02060 table 1: 6.9B"),
    "internvl3-8b": (
        7.94e9 - 0.33e9,
        2e7,
        "huggingface.co/OpenGVLab/InternVL3-8B: 7.94B, of which 0.33B see",
    ),
    "internvl3-78b": (
        78.41e9 - 5.71e9,
        2e7,
        "huggingface.co/OpenGVLab/InternVL3-78B: 78.41B, of which 5.71B see",
    ),
    "ling-flash-2.0": (103e9, 5e8, "huggingface.co/inclusionAI/Ling-flash-2.0: 103B"),
    "ling-1t": (1e12, 1e9, "huggingface.co/inclusionAI/Ling-1T: 1T"),
    "hunyuan-0.5b": (0.539e9, 1e6, "huggingface.co/tencent/Hunyuan-0.5B-Instruct: 539M"),
    "hunyuan-1.8b": (1.79e9, 1e7, "huggingface.co/tencent/Hunyuan-1.8B-Instruct: 1.79B"),
    "hunyuan-4b": (4.22e9, 1e7, "huggingface.co/tencent/Hunyuan-4B-Instruct: 4.22B"),
    "hunyuan-7b": (7.50e9, 1e7, "huggingface.co/tencent/Hunyuan-7B-Instruct: 7.5B"),
    "ernie-4.5-0.3b": (0.36e9, 1e6, "huggingface.co/baidu/ERNIE-4.5-0.3B-PT: 0.36B"),
    "granite-4.0-micro": (3.40e9, 1e7, "huggingface.co/ibm-granite/granite-4.0-micro: 3.4B"),
    "granite-4.0-h-micro": (3.19e9, 1e7, "huggingface.co/ibm-granite/granite-4.0-h-micro: 3.19B"),
    "trinity-nano": (6.12e9, 1e7, "huggingface.co/arcee-ai/Trinity-Nano-Preview: 6.12B"),
    "trinity-mini": (26.12e9, 1e7, "huggingface.co/arcee-ai/Trinity-Mini: 26.1B"),
    "trinity-large": (398.6e9, 1e8, "huggingface.co/arcee-ai/Trinity-Large-Thinking: 398.6B"),
    "exaone-4.0-1.2b": (1.28e9, 1e7, "huggingface.co/LGAI-EXAONE/EXAONE-4.0-1.2B: 1.28B"),
    "exaone-4.0-32b": (32.0e9, 1e7, "huggingface.co/LGAI-EXAONE/EXAONE-4.0-32B: 32.0B"),
    "solar-open-100b": (102.6e9, 1e8, "huggingface.co/upstage/Solar-Open-100B: 102.6B"),
    "a.x-k1": (518_983_059_456, 2e4, "huggingface.co/skt/A.X-K1: 518,983,059,456, without biases"),
    "dots.llm1": (142e9, 1e9, "huggingface.co/rednote-hilab/dots.llm1.inst: 142B"),
    "hy3": (295e9, 1e8, "huggingface.co/tencent/Hy3-preview: 295B, its predicting layer apart"),
    "mistral-small-4-119b": (119e9, 1e8, "huggingface.co/mistralai/Mistral-Small-4-119B-2603: 119B"),
    "apertus-8b": (8.05e9, 1e7, "huggingface.co/swiss-ai/Apertus-8B-Instruct-2509: 8.05B"),
    "minicpm4-8b": (8.19e9, 1e7, "huggingface.co/openbmb/MiniCPM4-8B: 8.19B"),
    "reka-flash-3": (20.9e9, 1e7, "huggingface.co/RekaAI/reka-flash-3: 20.9B"),
    "eurollm-9b": (9.15e9, 1e7, "huggingface.co/utter-project/EuroLLM-9B-Instruct: 9.15B"),
    "grok-2": (269.5e9, 1e8, "huggingface.co/xai-org/grok-2: 269.5B"),
    "nemotron-nano-12b-v2": (12.31e9, 1e7, "huggingface.co/nvidia/NVIDIA-Nemotron-Nano-12B-v2: 12.31B"),
    "granite-3.1-3b-a800m": (3.30e9, 1e7, "huggingface.co/ibm-granite/granite-3.1-3b-a800m-instruct: 3.3B"),
    "granite-3.1-1b-a400m": (1.33e9, 1e7, "huggingface.co/ibm-granite/granite-3.1-1b-a400m-instruct: 1.33B"),
    "minitron-8b": (8.41e9, 1e7, "huggingface.co/nvidia/Mistral-NeMo-Minitron-8B-Instruct: 8.41B"),
    "mellum2-12b-a2.5b": (12.1e9, 1e8, "huggingface.co/JetBrains/Mellum2-12B-A2.5B-Base: 12B"),
    "glm-4.1v-9b": (
        9.4e9,
        1e7,
        "huggingface.co/zai-org/GLM-4.1V-9B-Thinking: the language model of GLM-4-9B-0414",
    ),
    "glm-4.5v": (106e9, 1e9, "huggingface.co/zai-org/GLM-4.5V: 106B"),
    "pixtral-12b": (
        12.25e9,
        1e7,
        "huggingface.co/mistralai/Mistral-Nemo-Instruct-2407: 12.25B, its language model",
    ),
    "pixtral-large-124b": (
        122.6e9,
        1e8,
        "huggingface.co/mistralai/Mistral-Large-Instruct-2411: 122.6B, its language model",
    ),
    "iquest-coder-v1-40b": (39.8e9, 1e8, "huggingface.co/IQuestLab/IQuest-Coder-V1-40B-Instruct: 39.8B"),
    "internvl3-38b": (
        38.39e9 - 5.63e9,
        2e7,
        "huggingface.co/OpenGVLab/InternVL3-38B: 38.39B, of which 5.63B see",
    ),
    "intern-s1": (240.7e9 - 5.6e9, 1e8, "huggingface.co/internlm/Intern-S1: 240.7B, of which 5.6B see"),
    "intern-s1-mini": (
        8.54e9 - 0.34e9,
        2e7,
        "huggingface.co/internlm/Intern-S1-mini: 8.54B, of which 0.34B see",
    ),
    "kimi-vl-a3b": (15.96e9, 2e7, "huggingface.co/moonshotai/Moonlight-16B-A3B: 16B, its language model"),
    "afm-4.5b": (4.62e9, 1e7, "huggingface.co/arcee-ai/AFM-4.5B: 4.62B"),
    "minicpm-v-4.5": (8.19e9, 1e7, "huggingface.co/Qwen/Qwen3-8B: 8.19B, its language model"),
    "llava-1.5-7b": (6.74e9, 1e7, "huggingface.co/meta-llama/Llama-2-7b-hf: 6.74B, its language model"),
    "glm-5.3": (743e9, 1e9, "huggingface.co/zai-org/GLM-5.3: 743B"),
}

WITHOUT_AND_WITH_EMBEDDING = {
    # name: (outside the embeddings, in the embeddings, unit both are rounded to, source)
    "gemma-2-27b": (26_047_480_320, 1_180_237_824, 1_000_000, "arXiv 2408.00118 table 2"),
    "gemma-3-1b": (698e6, 302e6, 1e6, "arXiv 2503.19786 table 1"),
    "gemma-3-4b": (3_209e6, 675e6, 1e7, "arXiv 2503.19786 table 1"),
    "gemma-3-12b": (10_759e6, 1_012e6, 1e7, "arXiv 2503.19786 table 1"),
    "gemma-3-27b": (25_600e6, 1_416e6, 1e7, "arXiv 2503.19786 table 1"),
    "nemotron-4-15b": (12.5e9, 3.1e9, 1e8, "arXiv 2402.16819 §2"),
    "nemotron-4-340b": (331.6e9, 9.4e9, 1e8, "arXiv 2406.11704 §2"),
}


@pytest.mark.parametrize("name", EXACT)
def test_parameters_equal_the_published_total(name: str) -> None:
    """Every checkpoint's total is reproduced to the last parameter."""
    assert parameter_count(model(name)) == EXACT[name], SAFETENSORS


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_round_to_the_published_figure(name: str) -> None:
    """Papers that print rounded sizes are met at their own precision."""
    published, unit, source = ROUNDED[name]
    assert abs(parameter_count(model(name)) - published) < unit, source


WITH_WHAT_SEES = {
    "qwen2-vl-2b": 2_208_985_600,
    "qwen2-vl-7b": 8_291_375_616,
    "qwen2-vl-72b": 73_405_560_320,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen2.5-vl-32b": 33_452_718_336,
    "qwen2.5-vl-72b": 73_410_777_344,
    "qwen3-vl-2b": 2_127_532_032,
    "qwen3-vl-4b": 4_437_815_808,
    "qwen3-vl-8b": 8_767_123_696,
    "internvl3.5-8b": 8_528_318_464,
    "llava-1.5-7b": 7_063_427_072,
}


@pytest.mark.parametrize("name", WITH_WHAT_SEES)
def test_catalogued_models_that_see_have_their_parameters(name: str) -> None:
    """Exactly, the tower that a server loads beside the language model included."""
    spec = model(name)
    assert spec.encoder is not None
    assert parameter_count(spec) + sum(encoder_parameters(spec.encoder)) == WITH_WHAT_SEES[name], SAFETENSORS


@pytest.mark.parametrize(
    ("name", "active", "unit"),
    [
        ("ling-mini-2.0", 1.4e9, 1e8), ("ling-flash-2.0", 6.1e9, 1e8), ("granite-4.0-h-small", 9e9, 1e9), ("grok-2", 115e9, 1e9),
        ("hy3", 21e9, 1e9), ("solar-open-100b", 12e9, 1e9), ("a.x-k1", 33e9, 1e9), ("dots.llm1", 14e9, 1e9),
        ("trinity-large", 13e9, 1e9), ("mistral-small-4-119b", 6.5e9, 2e8), ("mellum2-12b-a2.5b", 2.5e9, 1e8),
    ],
)  # fmt: skip
def test_a_token_meets_as_many_parameters_as_are_published(name: str, active: float, unit: float) -> None:
    """Experts of a token and their widths are checked apart from how many there are."""
    assert abs(active_parameter_count(model(name)) - active) < unit


@pytest.mark.parametrize("name", WITHOUT_AND_WITH_EMBEDDING)
def test_embedding_and_other_parameters_match_the_report(name: str) -> None:
    """Reports that print embedding and other parameters apart are met in both."""
    others, embedding, unit, source = WITHOUT_AND_WITH_EMBEDDING[name]
    spec = model(name)
    ends = embedding_parameters(spec) * (1 if spec.tie_word_embeddings else 2)
    assert (abs(ends - embedding) < unit, abs(parameter_count(spec) - ends - others) < unit) == (
        True,
        True,
    ), source


def test_every_catalogued_model_has_a_published_count() -> None:
    """No model enters the catalog without a published number that checks it."""
    published = {*EXACT, *ROUNDED, *WITHOUT_AND_WITH_EMBEDDING, "gpt-3-13b"}  # the paper's 13B row says 13.0B
    assert set(model_names()) == published


def test_gpt3_13b_has_the_size_its_sizes_make() -> None:
    """The GPT-3 paper prints 13.0 B for 40 layers of 5140; at the 5120 everyone trains it is 12.85 B."""
    assert parameter_count(model("gpt-3-13b")) == 12_853_386_240


def test_megatron_counts_follow_their_papers_formula() -> None:
    """Narayanan et al. 2021, equation 2: P = 12·l·h²·(1 + 13/(12h) + (V + s)/(12·l·h)), and a final norm of 2h."""
    spec = model("megatron-1t")
    layers, h, V, s = spec.num_layers, spec.hidden_size, spec.vocab_size, spec.max_sequence_length
    assert parameter_count(spec) == 12 * layers * h**2 + 13 * layers * h + (V + s) * h + 2 * h


@pytest.mark.parametrize(
    ("name", "billions", "source"),
    [
        ("mixtral-8x7b", 12.9, "arXiv 2401.04088 §1: 13B active"),
        ("mixtral-8x22b", 39.2, "mistral.ai/news/mixtral-8x22b: 39B active"),
        ("deepseek-v3", 37.6, "arXiv 2412.19437: 37B activated, embeddings once"),
        ("deepseek-v2", 21.4, "arXiv 2405.04434: 21B activated"),
        ("qwen3-30b-a3b", 3.4, "arXiv 2505.09388: 3.3B activated"),
        ("qwen3-235b-a22b", 22.2, "arXiv 2505.09388: 22B activated"),
        ("qwen3-next-80b-a3b", 3.9, "Qwen/Qwen3-Next-80B-A3B-Instruct: 3B activated, 0.6B in the embeddings"),
        ("qwen3.5-397b-a17b", 17.3, "Qwen/Qwen3.5-397B-A17B: 17B activated"),
        ("nemotron-3-nano-30b-a3b", 3.6, "the Nemotron 3 Nano report: 3.6B with embeddings"),
        ("nemotron-3-super-120b-a12b", 12.8, "the Nemotron 3 Super report: 12.7B with embeddings"),
        ("qwen3.5-122b-a10b", 9.8, "Qwen/Qwen3.5-122B-A10B: 10B activated"),
        ("deepseek-v4-flash", 13.8, "deepseek-ai: 13B activated, 0.5B in the embeddings"),
        ("deepseek-v4-pro", 49.8, "deepseek-ai: 49B activated, 0.9B in the embeddings"),
        ("kimi-linear-48b-a3b", 3.5, "Kimi-Linear-48B-A3B: 3B activated, 0.8B in the embeddings"),
        ("llama-4-scout", 17.2, "meta-llama: 17B activated"),
        ("llama-4-maverick", 17.2, "meta-llama: 17B activated"),
    ],
)
def test_active_parameters_match_the_reports(name: str, billions: float, source: str) -> None:
    """A token passes through as many parameters as the report says, embedding and head included."""
    assert round(active_parameter_count(model(name)) / 1e9, 1) == billions, source


def test_gpt_oss_active_parameters_leave_out_the_embedding() -> None:
    """The gpt-oss model card counts the output projection but not the embedding: 5.13 B and 3.61 B active."""
    active = {
        name: active_parameter_count(model(name)) - embedding_parameters(model(name))
        for name in ("gpt-oss-120b", "gpt-oss-20b")
    }
    assert {name: round(count / 1e9, 2) for name, count in active.items()} == {
        "gpt-oss-120b": 5.13,
        "gpt-oss-20b": 3.61,
    }


def test_minimax_text_01_activates_what_its_report_says_outside_the_embeddings() -> None:
    """The report (arXiv 2501.08313) says 45.9B activated, which leaves out the embedding and the head."""
    spec = model("minimax-text-01")
    ends = 2 * embedding_parameters(spec)
    assert round((active_parameter_count(spec) - ends) / 1e9, 1) == 45.9
