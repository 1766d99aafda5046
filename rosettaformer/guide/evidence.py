"""Links to the places in which a defect was seen."""

import re
from typing import Any

# repositories that the catalogue's evidence names without their owner
REPOSITORIES = {
    "CLIP4Clip": "ArrowLuo/CLIP4Clip",
    "FARM": "deepset-ai/FARM",
    "Megatron-LM": "NVIDIA/Megatron-LM",
    "OpenNMT-py": "OpenNMT/OpenNMT-py",
    "PaddleNLP": "PaddlePaddle/PaddleNLP",
    "TransformerEngine": "NVIDIA/TransformerEngine",
    "TransformerLens": "TransformerLensOrg/TransformerLens",
    "allennlp": "allenai/allennlp",
    "annotated-transformer": "harvardnlp/annotated-transformer",
    "fairseq": "facebookresearch/fairseq",
    "flash-attention": "Dao-AILab/flash-attention",
    "flax": "google/flax",
    "ggml": "ggml-org/ggml",
    "gpt-neox": "EleutherAI/gpt-neox",
    "jax": "jax-ml/jax",
    "keras": "keras-team/keras",
    "keras-hub": "keras-team/keras-hub",
    "keras-io": "keras-team/keras-io",
    "llama.cpp": "ggml-org/llama.cpp",
    "mlx": "ml-explore/mlx",
    "mlx-examples": "ml-explore/mlx-examples",
    "mlx-lm": "ml-explore/mlx-lm",
    "nanoGPT": "karpathy/nanoGPT",
    "optax": "google-deepmind/optax",
    "pytorch": "pytorch/pytorch",
    "pytorch-image-models": "huggingface/pytorch-image-models",
    "tensor2tensor": "tensorflow/tensor2tensor",
    "tensorflow": "tensorflow/tensorflow",
    "transformers": "huggingface/transformers",
    "vllm": "vllm-project/vllm",
    "xformers": "facebookresearch/xformers",
}


def linked(evidence: str) -> Any:
    """Returns the evidence as HTML: `transformers#7552` and `owner/repository#7552` link to that issue or pull request."""
    from markupsafe import Markup, escape

    def link(found: re.Match[str]) -> str:
        name, number = found.groups()
        repository = name if "/" in name else REPOSITORIES.get(name)
        return f'<a href="https://github.com/{repository}/issues/{number}">{found[0]}</a>' if repository else found[0]

    return Markup(re.sub(r"([\w.-]+(?:/[\w.-]+)?)#(\d+)", link, str(escape(evidence))))
