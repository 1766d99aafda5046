"""On a CUDA device: all cases in float32 with and without TF32 and in the other dtypes, gradients, compiled searches, runs and the bench.

`test_training.py` compares each Trainer's steps with the reference. `test_impl_jax_lowering.py` shows without a GPU that JAX compiles for
one and asks the host for nothing; these tests check the numbers.
"""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from expectations import suite
from training_runs import TINY, log, over, process, train

from bench.workloads import WORKLOADS
from reference_numpy import preset
from reference_numpy.scores import Scores
from rosettaformer.common.backends import PORTS
from rosettaformer.judge import runner
from rosettaformer.judge.case import DTYPES
from rosettaformer.judge.expectation.components import SEARCHES, forward_of, is_layout
from rosettaformer.judge.suite import all_cases

pytestmark = [pytest.mark.gpu, pytest.mark.product]
DEVICE = "cuda"


def need(port: str) -> None:
    kind, about = runner.describe_ports([port])[port]
    if kind != "ready" or not any(name.startswith(DEVICE) for name in about["devices"]):
        pytest.skip(f"{port} is {kind} and sees no CUDA device")


def done(*arguments: object, module: str = "rosettaformer") -> str:
    """Returns a command's output; it runs in its own process, which frees the device's memory, and must exit with 0."""
    running = process(*arguments, module=module, stdin=subprocess.DEVNULL)
    out, errors = running.communicate(timeout=600)
    assert running.returncode == 0, out + errors
    return out


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("backend", ["MATH", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "FLASH_ATTENTION"])
def test_EMPTY_rows_are_zero_with_every_kernel_of_torch_forward_and_backward(backend: str, dtype: str, grad: bool) -> None:
    """Complements `test_torch_devices`, where no kernel is known and every empty row is filled: checks the GPU kernels."""
    need("torch")
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from impl_torch.attention import scaled_dot_product_attention
    from impl_torch.values import Heads

    kind = getattr(torch, dtype)
    served = 0
    for target, source in ((3, 7), (64, 64), (192, 192), (128, 64)):
        query, key, value = (
            torch.randn(2, length, 4, 64, dtype=kind, device=DEVICE, requires_grad=grad) for length in (target, source, source)
        )
        mask = torch.ones(2, 1, target, source, dtype=torch.bool, device=DEVICE)
        mask[0, :, 1] = False
        for options in (
            {"mask_bhts": mask},
            {"mask_bhts": torch.where(mask, 0.0, -torch.inf).to(kind)},
            {"mask_bhts": mask, "scores": Scores(causal=True)},
        ):
            try:
                with sdpa_kernel(getattr(SDPBackend, backend)), torch.set_grad_enabled(grad):
                    output = scaled_dot_product_attention(Heads(query, key, value), **options)
            except RuntimeError as error:
                assert "No available kernel" in str(error), error
                continue
            served += 1
            assert not output[0, 1].any()
            assert output[1, 1:].any()
            if grad:
                gradients = torch.autograd.grad(output.float().square().sum(), (query, key, value))
                assert all(gradient.isfinite().all() for gradient in gradients)
                assert not gradients[0][0, 1].any()
    if not served:
        pytest.skip(f"{backend} serves no mask in {dtype} on this device")


@pytest.mark.parametrize(("device", "dtypes"), [(DEVICE, DTYPES), ("cuda-tf32", ("float32",))])
@pytest.mark.parametrize("port", PORTS)
def test_every_case_conforms_on_cuda(port: str, device: str, dtypes: tuple[str, ...]) -> None:
    """Checks the numbers of GPU kernels in every dtype and in TF32; without a GPU only devices and shapes are checked."""
    need(port)
    results = runner.run(suite(), [port], dtypes, devices=[device])
    assert [result for result in results if result.status not in ("pass", "empty", "unsupported")] == []
    assert any(result.status == "pass" for result in results)


@pytest.mark.parametrize("port", PORTS)
def test_gradients_conform_on_cuda(port: str) -> None:
    """Checks backward kernels, which `test_torch_devices` only runs on the meta device, without numbers."""
    need(port)
    cases = [case for case in all_cases(grad=True) if forward_of(case.component) and case.core and not is_layout(case.component)]
    results = runner.run(cases, [port], DTYPES, devices=[DEVICE], limit=300)
    assert [result for result in results if result.status not in ("pass", "empty", "unsupported")] == []
    assert {result.case for result in results if result.status == "pass"} == {case.id for case in cases}


@pytest.mark.parametrize("port", PORTS)
def test_the_whole_model_and_its_searches_conform_compiled_on_cuda(port: str) -> None:
    """Compiles programs for the GPU and runs searches to their end; on the meta device a search can take one step."""
    need(port)
    whole = ("transformer", "classify", "masked_language_logits", "states", "decode_in_steps", *SEARCHES)
    cases = [case for case in suite() if case.component in whole and case.core]
    results = runner.run(cases, [port], ("float32", "bfloat16"), devices=[DEVICE], modes=["compiled"], limit=600)
    assert [result for result in results if result.status not in ("pass", "empty")] == []
    assert {result.component for result in results} == set(whole)


@pytest.mark.parametrize("port", PORTS)
def test_a_run_on_cuda_has_the_losses_of_the_references_is_resumed(port: str, tmp_path: Path) -> None:
    """A run of many steps with the device's own generator, determinism and memory, and its files."""
    need(port)
    folder, reference = tmp_path / port, tmp_path / "numpy"
    still = ("--set", "dropout_rate=0", "--loop", "save_every=2")
    train(reference, *still, "--steps", 6)
    done("train", "--out", folder, *over(TINY, *still), "--backend", f"{port}:{DEVICE}", "--steps", 4)
    done("train", "--out", folder, "--resume", "--steps", 6)
    steps, expected = log(folder), log(reference)
    assert [entry["step"] for entry in steps] == [entry["step"] for entry in expected] == [*range(1, 7)]
    np.testing.assert_allclose([entry["loss"] for entry in steps], [entry["loss"] for entry in expected], rtol=1e-4)


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_folder_gives_on_cuda_what_it_gives_on_a_cpu(backend: str, tmp_path: Path) -> None:
    """`generate` on the device breaks ties between logits as on a CPU."""
    need(backend)
    folder = tmp_path / "gpt2"
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(["once upon a time"], vocab_size=270, show_progress=False)
    sizes = {"n_embd": 12, "n_layer": 2, "n_head": 3, "vocab_size": tokenizer.get_vocab_size(), "bos_token_id": 0, "eos_token_id": 0}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(initializer_range=1.0, **sizes)).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    for options in ((), ("--num-beams", 3), ("--do-sample", "--seed", 5)):
        given = ("generate", folder, "--prompt", "once upon", "--prompt", "a", "--json", "--backend", backend, *options)
        found, wanted = (
            [json.loads(line)["tokens"] for line in done(*given, "--device", device).splitlines()] for device in (DEVICE, "cpu")
        )
        assert found == wanted
        assert len(found) == 2


def test_int8_on_cuda_is_refused_by_torch() -> None:
    """The error on a real device; `test_torch_in_use` has the meta device."""
    need("torch")
    from impl_torch.decoding import Searcher
    from impl_torch.transformer import Transformer

    with pytest.raises(ValueError, match="int8 needs a CPU"):
        Searcher(Transformer(preset("tiny")).to(DEVICE), dtype="int8")


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_the_bench_times_what_is_right_on_cuda(framework: str, tmp_path: Path) -> None:
    """Timing waits for the device, and outputs are compared there."""
    need(framework)
    chosen = ("--framework", framework, "--row", "impl_", "--size", "tiny", "--rounds", 1, "--workload", "W1,W2,W3")
    done("--device", DEVICE, *chosen, "--json", tmp_path / "numbers.json", module="bench")
    tasks = json.loads((tmp_path / "numbers.json").read_text())["tasks"]
    shares = [f"{name} {share} %" for name in ("W1", "W2") for share in (0, 20, 50)]
    assert [task["name"] for task in tasks] == [*shares, "W3"]
    for task in tasks:
        assert {row["status"] for row in task["rows"]} == {"timed"}
        assert {row["precision"] for row in task["rows"]} == set(WORKLOADS[task["name"]][0].precisions_on(DEVICE))
