"""A sharded port of a whole model: a Qwen 3 decoder in plain PyTorch, with layers split by tensor-parallel plans and explicit code,
and parameters by FSDP2, or copied by DDP. Every process gets the whole batch, and computes its own rows."""

import json
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.functional import linear, silu
from torch.nn.parallel import DistributedDataParallel

dtypes = ("float64", "float32")


def copied(x, mesh):
    """Returns x, which every device has; its gradient is summed over the devices."""
    return DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])


def summed(x, mesh):
    """Returns the sum over the devices on each of them."""
    return DTensor.from_local(x, mesh, [Partial()], run_check=False).redistribute(placements=[Replicate()]).to_local()


def local(parameter):
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def rotated(x_bthk, angle_btj):  # pairs of halves
    first, second = x_bthk.chunk(2, dim=-1)
    cosine, sine = angle_btj.cos()[:, :, None], angle_btj.sin()[:, :, None]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class Block(nn.Module):
    def __init__(self, width, hidden, heads, groups, size, epsilon, bias, mesh):
        super().__init__()
        self.heads, self.groups, self.size, self.mesh = heads, groups, size, mesh
        self.before, self.between = nn.RMSNorm(width, epsilon), nn.RMSNorm(width, epsilon)
        self.query, self.key, self.value = (nn.Linear(width, count * size, bias=bias) for count in (heads, groups, groups))
        self.query_norm, self.key_norm = nn.RMSNorm(size, epsilon), nn.RMSNorm(size, epsilon)
        self.out = nn.Linear(heads * size, width, bias=bias)
        self.gate, self.up, self.down = (nn.Linear(*pair, bias=False) for pair in ((width, hidden), (width, hidden), (hidden, width)))

    def split(self):
        """Splits heads and the feed-forward over the mesh; too few key heads stay whole."""
        plan = {"query": ColwiseParallel(), "query_norm": SequenceParallel(sequence_dim=2, use_local_output=True)}
        plan |= {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        if self.whole_keys:
            plan |= {"key": ColwiseParallel(output_layouts=Replicate()), "value": ColwiseParallel(output_layouts=Replicate())}
        else:
            plan |= {
                "key": ColwiseParallel(),
                "value": ColwiseParallel(),
                "key_norm": SequenceParallel(sequence_dim=2, use_local_output=True),
            }
        parallelize_module(self, self.mesh, plan)
        self.out.weight = nn.Parameter(distribute_tensor(self.out.weight.data, self.mesh, [Shard(1)]))

    @property
    def whole_keys(self):
        return self.groups % self.mesh.size() > 0

    def own_keys(self, x_bsgk):
        """Returns the key heads of this device's query heads."""
        heads = self.heads // self.mesh.size()
        first = self.mesh.get_local_rank() * heads * self.groups // self.heads
        return copied(x_bsgk, self.mesh)[:, :, first : first + max(1, heads * self.groups // self.heads)]

    def attention(self, x_btd, angle_btj, hidden_bts):
        query, key, value = (part(x_btd).unflatten(-1, (-1, self.size)) for part in (self.query, self.key, self.value))
        query, key = (rotated(x, angle_btj) for x in (self.query_norm(query), self.key_norm(key)))
        if self.whole_keys:
            key, value = self.own_keys(key), self.own_keys(value)
        key, value = (part.repeat_interleave(query.shape[2] // part.shape[2], dim=2) for part in (key, value))
        score = torch.einsum("bthk,bshk->bhts", query, key) * self.size**-0.5
        weight = score.masked_fill(hidden_bts[:, None], -torch.inf).softmax(-1).nan_to_num()
        mixed = torch.einsum("bhts,bshk->bthk", weight, value).flatten(2)
        y_btd = summed(linear(mixed, local(self.out.weight)), self.mesh)
        return y_btd if self.out.bias is None else y_btd + self.out.bias

    def feed_forward(self, x_btd):
        x_btd = copied(x_btd, self.mesh)
        return self.down(silu(linear(x_btd, local(self.gate.weight))) * linear(x_btd, local(self.up.weight)))

    def forward(self, x_btd, angle_btj, hidden_bts):
        x_btd = x_btd + self.attention(self.before(x_btd), angle_btj, hidden_bts)
        return x_btd + self.feed_forward(self.between(x_btd))


class Decoder(nn.Module):
    def __init__(self, vocabulary, width, layers, theta, size, epsilon, mesh, **sizes):
        super().__init__()
        self.theta, self.size, self.mesh = theta, size, mesh
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, size=size, epsilon=epsilon, mesh=mesh, **sizes) for _ in range(layers))
        self.norm = nn.RMSNorm(width, epsilon)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def split(self):
        for block in self.blocks:
            block.split()
        table = RowwiseParallel(input_layouts=Replicate())
        parallelize_module(self, self.mesh, {"embedding": table, "head": ColwiseParallel()})

    def forward(self, token_bt, mask_bt):
        """Returns the logits of this device's part of the vocabulary."""
        x_btd = self.embedding(token_bt)
        frequency_j = self.theta ** (-torch.arange(0, self.size, 2, dtype=torch.float64) / self.size)
        position_bt = (mask_bt.cumsum(1) - 1).clamp(min=0)
        angle_btj = (position_bt[..., None] * frequency_j).to(x_btd.dtype)
        length = token_bt.shape[1]
        hidden_bts = ~(torch.ones(length, length, dtype=torch.bool).tril() & mask_bt[:, None])
        for block in self.blocks:
            x_btd = block(x_btd, angle_btj, hidden_bts)
        return self.head(self.norm(x_btd))


def own_rows(array, mesh):
    """Returns the rows of this process, with rows of zeros at the end to match the other processes."""
    most = -(-len(array) // mesh.size())
    missing = np.zeros((most * mesh.size() - len(array), *array.shape[1:]), array.dtype)
    return torch.from_numpy(np.concatenate([array, missing])).chunk(mesh.size())[mesh.get_local_rank()]


def gathered(x, axis, size, mesh):
    """Gathers an axis of this size from all processes; the last parts may be shorter."""
    most = -(-size // mesh.size())
    missing = x.new_zeros(*x.shape[:axis], most - x.shape[axis], *x.shape[axis + 1 :])
    padded = torch.cat([x, missing], axis).contiguous()
    parts = [torch.empty_like(padded) for _ in range(mesh.size())]
    dist.all_gather(parts, padded, group=mesh.get_group())
    return torch.cat(parts, axis).narrow(axis, 0, size)


def log_likelihood(logits_btv, label_bt, vocabulary, mesh):
    """Returns the log-probabilities of the labels from logits with a split vocabulary."""
    top_bt = logits_btv.detach().amax(-1)
    dist.all_reduce(top_bt, dist.ReduceOp.MAX, group=mesh.get_group())
    total_bt = summed((logits_btv - top_bt[..., None]).exp().sum(-1), mesh)
    own_bt = label_bt - mesh.get_local_rank() * -(-vocabulary // mesh.size())
    here_bt = (own_bt >= 0) & (own_bt < logits_btv.shape[-1])
    label_bt1 = own_bt.where(here_bt, 0)[..., None]
    label_logit_bt = summed(logits_btv.gather(-1, label_bt1)[..., 0] * here_bt, mesh)
    return label_logit_bt - top_bt - total_bt.log()


NAMES = {
    "model.embed_tokens": "embedding", "model.layers": "blocks", "input_layernorm": "before",
    "self_attn.q_proj": "query", "self_attn.k_proj": "key", "self_attn.v_proj": "value",
    "self_attn.o_proj": "out", "self_attn.q_norm": "query_norm", "self_attn.k_norm": "key_norm",
    "post_attention_layernorm": "between", "mlp.gate_proj": "gate", "mlp.up_proj": "up",
    "mlp.down_proj": "down", "model.norm": "norm", "lm_head": "head",
}  # fmt: skip


def renamed(name):
    for theirs, own in NAMES.items():
        name = name.replace(theirs, own)
    return name


class Port:
    """The function that `load` returns, with its `gradients` and `training`."""

    def __init__(self, model, folder_names, vocabulary, rows_mesh, vocabulary_mesh):
        self.model, self.folder_names, self.vocabulary = model, folder_names, vocabulary
        self.rows, self.parts = rows_mesh, vocabulary_mesh

    def logits(self, token_bt, mask_bt):
        """Returns the logits of this process's rows and vocabulary."""
        self.model.zero_grad()  # before FSDP gathers the parameters, whose own gradients would be kept
        return self.model(own_rows(token_bt, self.rows), own_rows(mask_bt, self.rows))

    def __call__(self, token_bt, mask_bt):
        with torch.no_grad():
            whole = gathered(self.logits(token_bt, mask_bt), 2, self.vocabulary, self.parts)
            return gathered(whole, 0, len(token_bt), self.rows)

    def backward(self, value):
        """Returns the gradients by the folder's names: FSDP and DDP divide by the number of processes."""
        (value * self.rows.size()).backward()
        grad = {name.removeprefix("module."): part.grad for name, part in self.model.named_parameters()}
        return {name: grad[own] for name, own in self.folder_names.items() if own in grad}

    def gradients(self, token_bt, mask_bt, cotangent_btv):
        logits_btv = self.logits(token_bt, mask_bt)
        first = self.parts.get_local_rank() * -(-self.vocabulary // self.parts.size())
        own_btv = own_rows(cotangent_btv, self.rows)[..., first : first + logits_btv.shape[-1]]
        return self.backward((logits_btv * own_btv).sum())

    def training(self, token_bt, mask_bt):
        logits_btv = self.logits(token_bt[:, :-1], mask_bt[:, :-1])
        counts = mask_bt[:, :-1] & mask_bt[:, 1:]
        label_bt, counts_bt = own_rows(token_bt[:, 1:], self.rows), own_rows(counts, self.rows)
        log_p_bt = log_likelihood(logits_btv, label_bt, self.vocabulary, self.parts)
        loss = -(log_p_bt * counts_bt).sum() / counts.sum()
        gradients = self.backward(loss)
        return summed(loss.detach(), self.rows), gradients


def load(folder, mesh):
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    devices = init_device_mesh("cpu", (mesh.data, mesh.model), mesh_dim_names=("data", "model"))
    rows, parts = devices["data"], devices["model"]
    said = json.loads(Path(folder, "config.json").read_text())
    tied, vocabulary = said["tie_word_embeddings"], said["vocab_size"]
    model = Decoder(
        vocabulary=vocabulary, width=said["hidden_size"], layers=said["num_hidden_layers"], hidden=said["intermediate_size"],
        heads=said["num_attention_heads"], groups=said["num_key_value_heads"], size=said["head_dim"], bias=said["attention_bias"],
        theta=said["rope_parameters"]["rope_theta"], epsilon=said["rms_norm_eps"], mesh=parts,
    )  # fmt: skip
    tensors = load_file(Path(folder, "model.safetensors"))
    own = {renamed(name): tensor for name, tensor in tensors.items()}
    if tied:
        own["head.weight"] = own["embedding.weight"]
    model.load_state_dict(own, strict=True, assign=True)  # assign: in the folder's dtype
    if parts.size() > 1:
        model.split()
    if tied:
        model.head.weight = model.embedding.weight
    names = {name: renamed(name) for name in tensors}
    if mesh.replicate:  # DDP takes no split parameters
        return Port(DistributedDataParallel(model, process_group=rows.get_group()), names, vocabulary, rows, parts)
    for block in model.blocks:
        fully_shard(block, mesh=rows)
    return Port(fully_shard(model, mesh=rows), names, vocabulary, rows, parts)
