"""The reference's calls: every call of a component, under its path, as a case with the same output."""

import dataclasses

import numpy as np
import pytest
from expectations import all_by_id
from kinds import every

import reference_numpy as reference_package
from reference_numpy import parameters
from rosettaformer.judge.catalogue import all_defects, injected
from rosettaformer.judge.expectation import components, trace

CASES = all_by_id()
CONTAINING = (
    "encoder_layer", "decoder_layer", "encoder", "decoder", "masked_language_head", "transformer", "pool", "classify",
    "masked_language_logits",
)  # fmt: skip
WHOLE = [case.id for case in CASES.values() if case.component in CONTAINING]


@pytest.mark.parametrize("name", every(6, WHOLE))
def test_every_call_is_a_case_of_the_same_output_and_every_subtree_of_parameters_that_is_a_component_is_one(name: str) -> None:
    case = CASES[name]
    calls = trace.record(case)
    for path, call in calls.items():
        np.testing.assert_allclose(components.answer(call.case())["output"], call.output, rtol=1e-12, atol=1e-13, err_msg=path)
    blocks = {tuple(parameter.split(".")[:-1]) for parameter in parameters.axes(case.config, components.model_of(case.component))}
    projections = {"query", "key", "value", "output", "hidden", "gate", "shared_gate"}
    projections |= {"query_norm", "key_norm"} if case.config.query_key_norm == "each_head" else set()  # of no component
    expected = {".".join(block[:-1] if block[-1] in projections else block) for block in blocks if "experts" not in block}
    assert expected <= {path for path, call in calls.items() if call.parameters}


def test_calls_finish_in_order_each_within_its_parent_under_canonical_paths() -> None:
    record = trace.record(CASES["transformer/nn_transformer"])
    order = list(record)
    assert next(path for path in order if "_embedding" in path) == "source_embedding"
    assert order[-1] == ""
    assert all(order.index(path) < order.index(call.parent) for path, call in record.items() if call.parent is not None)
    assert record["decoder.layers.1.cross_attention"].parent == "decoder.layers.1"
    assert record["decoder.layers.1.self_attention.scaled_dot_product_attention.softmax"].component == "softmax"
    assert record["target_embedding"].parent == ""
    assert {
        path for path, call in record.items() if call.component == "dropout" and path.startswith(("encoder.layers.0", "encoder.emb"))
    } == {
        "encoder.embedding_dropout",
        "encoder.layers.0.self_attention.weights_dropout",
        "encoder.layers.0.self_attention_dropout",
        "encoder.layers.0.feed_forward.hidden_dropout",
        "encoder.layers.0.feed_forward_dropout",
    }
    assert record["encoder.layers.0.feed_forward.activation"].component == "activation"


def test_shared_tables_and_equal_layers_keep_their_paths_and_embeddings_their_vocabulary() -> None:
    case = CASES["transformer/unscaled_embedding"]
    record = trace.record(case)
    assert np.array_equal(record["source_embedding"].inputs["token"], case.inputs["source"])
    assert np.array_equal(record["target_embedding"].inputs["token"], case.inputs["target"])
    kernel = record["logits"].parameters["kernel"]
    assert np.array_equal(kernel, case.parameters["source_embedding.table"].T)
    assert kernel.flags.c_contiguous
    assert not np.shares_memory(kernel, case.parameters["source_embedding.table"])
    case = CASES["encoder/final_norm"]
    same = {name: case.parameters[name.replace("layers.1.", "layers.0.")] for name in case.parameters}
    record = trace.record(dataclasses.replace(case, parameters=same))
    first, second = record["layers.0.self_attention"], record["layers.1.self_attention"]
    assert np.array_equal(first.inputs["query_btd"], case.inputs["x_bsd"])
    assert np.array_equal(second.inputs["query_btd"], record["layers.0"].output)
    call = trace.record(CASES["transformer/nn_transformer"])["target_embedding"]
    assert parameters.shapes(call.config, "embedding") == {"table": call.parameters["table"].shape}
    record = trace.record(CASES["encoder_layer/post"].at("bfloat16"))
    assert str(record["self_attention"].output.dtype) == "bfloat16"
    assert str(record["self_attention.scaled_dot_product_attention.softmax"].output.dtype) == "float32"


def test_the_reference_is_recorded_as_it_is_and_left_as_it_was() -> None:
    before = reference_package.attention.multi_head_attention
    with pytest.raises(ValueError, match="x"):
        trace.record(dataclasses.replace(CASES["encoder_layer/post"], inputs={"x_btd": np.ones((1, 2, 3))}))
    assert reference_package.attention.multi_head_attention is before
    case = CASES["decoder_layer/post"]
    clean = trace.record(case)
    with injected(all_defects()["MHA11"]):
        altered = trace.record(case)
    assert not np.allclose(altered["cross_attention"].inputs["query_btd"], clean["cross_attention"].inputs["query_btd"])
