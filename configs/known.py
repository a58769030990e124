"""Names that exist elsewhere in the tree, as data, so that configs can be judged without importing torch."""

from __future__ import annotations

MODELS: dict[str, tuple[str, ...]] = {"llama3": ("tiny", "debug", "bench", "1B", "8B", "70B", "405B")}
"""Model -> flavors."""
LATER_MODELS = ("llama3_ft", "llama4", "qwen3", "deepseek_v3", "gpt_oss", "flux")
LATER_FLAVORS: dict[str, tuple[str, ...]] = {
    "llama3": ("debugmodel", "debugmodel_flex_attn", "debugmodel_varlen_attn", "8B_flex", "8B_varlen", "3B")
}

DATASETS = ("python_stdlib", "text", "jsonl")
PATH_DATASETS = ("text", "jsonl")
"""Data sets that need ``training.dataset_path``."""
LATER_DATASETS = ("c4", "c4_test", "c4_validation")
