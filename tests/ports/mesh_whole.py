"""A port of a whole model that `load` splits by rows: the reference on the rows of each device. Only `data` splits."""

import sys
from pathlib import Path

import numpy as np

from reference_numpy import loss
from reference_numpy.sharding import chunks

sys.path.insert(0, str(Path(__file__).parent))
from whole_numpy import load as right


def load(folder, mesh):
    """Returns the function of the folder's model, with its gradients and its loss."""
    own = right(folder)

    def logits(token_bt, mask_bt):
        return np.concatenate([own(token_bt[rows], mask_bt[rows]) for rows in _rows(len(token_bt))])

    def gradients(token_bt, mask_bt, cotangent_btv):
        parts = [own.gradients(token_bt[rows], mask_bt[rows], None, cotangent_btv[rows]) for rows in _rows(len(token_bt))]
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def training(token_bt, mask_bt):
        input_bt, label_bt = loss.teacher_forcing(token_bt)
        counts_bt, given = mask_bt[:, :-1] & mask_bt[:, 1:], mask_bt[:, :-1]
        logits_btv = logits(input_bt, given)
        value = loss.cross_entropy(logits_btv, label_bt, counts_bt)
        one = np.ones((), logits_btv.dtype)
        return value, gradients(input_bt, given, loss.cross_entropy_vjp(logits_btv, label_bt, counts_bt, cotangent=one)["logits_btv"])

    def _rows(count):
        return [rows for rows in chunks(count, mesh.data) if rows.start < rows.stop]

    logits.gradients, logits.training = gradients, training
    return logits
