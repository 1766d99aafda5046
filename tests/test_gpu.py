"""The same matrix on a CUDA device: float32 without and with TF32, and the other dtypes."""

import pytest

from rosettaformer.conformance import runner
from rosettaformer.conformance.case import DTYPES
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.port import PORTS


@pytest.mark.gpu
@pytest.mark.parametrize(("device", "dtypes"), [("cuda", DTYPES), ("cuda-tf32", ("float32",))])
@pytest.mark.parametrize("port", PORTS)
def test_every_case_conforms_on_cuda(port: str, device: str, dtypes: tuple[str, ...]) -> None:
    kind, about = runner.describe_ports([port])[port]
    if kind != "ready" or not any(name.startswith("cuda") for name in about["devices"]):
        pytest.skip(f"{port} is {kind} and sees no CUDA device")
    results = runner.run(all_cases(), [port], dtypes, devices=[device])
    assert [result for result in results if result.status not in ("pass", "unsupported")] == []
    assert any(result.status == "pass" for result in results)


@pytest.mark.gpu
def test_the_whole_model_conforms_compiled_on_cuda() -> None:
    cases = [case for case in all_cases() if case.component == "transformer" and case.core]
    ports = [name for name, (kind, about) in runner.describe_ports(list(PORTS)).items()
             if kind == "ready" and any(device.startswith("cuda") for device in about["devices"])]  # fmt: skip
    results = runner.run(cases, ports, ("float32", "bfloat16"), devices=["cuda"], modes=["compiled"], limit=600)
    assert [result for result in results if result.status != "pass"] == []
    assert results
