# onnx_port.py
import tempfile
from pathlib import Path

import onnxruntime
import torch
from transformers import AutoModelForCausalLM

dtypes = ("float32",)


class Exported(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids):
        given = {"attention_mask": attention_mask, "position_ids": position_ids}
        return self.model(input_ids=input_ids, use_cache=False, **given).logits


def load(folder):
    options = {"dtype": "auto", "attn_implementation": "eager"}
    model = Exported(AutoModelForCausalLM.from_pretrained(folder, **options).eval())
    row, length = torch.export.Dim("row"), torch.export.Dim("length")
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "model.onnx")
        given = tuple(torch.ones(2, 8, dtype=torch.long) for _ in range(3))
        shapes = ({0: row, 1: length},) * 3
        options = {"dynamo": True, "dynamic_shapes": shapes, "external_data": False}
        torch.onnx.export(model, given, file, **options)
        session = onnxruntime.InferenceSession(file.read_bytes())
    names = [one.name for one in session.get_inputs()]

    def logits(token_bt, mask_bt):
        position_bt = (mask_bt.cumsum(1) - 1).clip(0)
        given = (token_bt, mask_bt.astype("int64"), position_bt)
        return session.run(None, dict(zip(names, given, strict=True)))[0]

    return logits
