"""What a training loop needs besides the model: the smoothed loss, clipping, AdamW, and the schedule with warm-up."""
import math

import torch
from torch import nn


class LabelSmoothingLoss(nn.Module):
    """KL-style loss against smoothed targets; padding positions do not count."""

    def forward(self, logits, target, mask=None, smoothing=0.0, total=None):
        vocab, target = logits.size(-1), target.long()
        log_probs = torch.log_softmax(logits, dim=-1)
        with torch.no_grad():
            true_dist = torch.full_like(log_probs, smoothing / vocab)
            true_dist.scatter_(-1, target.unsqueeze(-1), 1.0 - smoothing + smoothing / vocab)
        losses = -(true_dist * log_probs).sum(dim=-1)
        if mask is not None:
            losses = losses.masked_fill(~mask, 0.0)
        if total is None:
            total = target.numel() if mask is None else mask.sum()
        if total == 0:
            return losses.sum()
        return losses.sum() / total


def tree_items(tree, prefix=""):
    for name, value in tree.items():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(value, dict):
            yield from tree_items(value, path)
        else:
            yield path, value


def tree_map(function, tree, *rest, prefix=""):
    result = {}
    for name, value in tree.items():
        path = f"{prefix}.{name}" if prefix else name
        others = [other[name] for other in rest]
        result[name] = tree_map(function, value, *others, prefix=path) if isinstance(value, dict) else function(path, value, *others)
    return result


def no_decay(path, tensor):
    """Biases and norms are not decayed."""
    return tensor.dim() < 2 or path.endswith("bias")


def grad_norm(grads):
    # norms of norms, scaled by the largest entry
    largest = max(g.abs().max() for _, g in tree_items(grads))
    if largest == 0:
        return largest
    return largest * torch.sqrt(sum(((g / largest) ** 2).sum() for _, g in tree_items(grads)))


def clip_grad_norm(grads, max_norm):
    total_norm = grad_norm(grads)
    if total_norm <= max_norm:
        return grads
    clip_coef = max_norm / total_norm
    return tree_map(lambda path, g: g * clip_coef, grads)


def adamw(params, grads, exp_avg, exp_avg_sq, step, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
    bias_correction1 = 1 - beta1**step
    bias_correction2 = 1 - beta2**step
    new_avg = tree_map(lambda path, m, g: beta1 * m + (1 - beta1) * g, exp_avg, grads)
    new_avg_sq = tree_map(lambda path, v, g: beta2 * v + (1 - beta2) * g * g, exp_avg_sq, grads)

    def update(path, p, m, v):
        denom = (v / bias_correction2).sqrt() + eps
        delta = (m / bias_correction1) / denom
        if weight_decay and not no_decay(path, p):
            delta = delta + weight_decay * p
        return p - lr * delta

    return {"parameters": tree_map(update, params, new_avg, new_avg_sq), "first_moment": new_avg, "second_moment": new_avg_sq}


class NoamSchedule:
    def __init__(self, model_size, dtype, factor=1.0):
        self.model_size, self.dtype, self.factor = model_size, dtype, factor

    def __call__(self, step, warmup):
        step = torch.as_tensor(step, dtype=torch.float64)
        rate = self.factor * self.model_size ** (-0.5) * torch.minimum(step ** (-0.5), step * warmup ** (-1.5))
        return rate.to(self.dtype)


class InvertedDropout(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x, keep=None):
        if keep is None:
            return x
        return x * keep / (1 - self.p)


def adam_step(parameters, gradients, first_moment, second_moment, step, learning_rate, beta_1, beta_2, epsilon, weight_decay=0.0):
    return adamw(parameters, gradients, first_moment, second_moment, step, learning_rate, beta_1, beta_2, epsilon, weight_decay)


framework = "torch"
dtypes = ("float64", "float32")
components = {
    "cross_entropy": lambda c, dtype: LabelSmoothingLoss(),
    "clip_global_norm": lambda c, dtype: clip_grad_norm,
    "adam": lambda c, dtype: adam_step,
    "noam": lambda c, dtype: NoamSchedule(c.model_width, dtype),
}
weights = ()
call = {
    "cross_entropy": {"logits": "logits_btv", "target": "label_bt", "mask": "mask_bt",
                      "smoothing": lambda i: i["smoothing"] or 0.0, "total": "total"},
    "clip_global_norm": {"grads": "gradients", "max_norm": "limit"},
    "noam": {"step": "step", "warmup": "warmup"},
}
