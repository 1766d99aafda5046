"""A pre-norm feed-forward block in PyTorch: trained, saved, exported."""

# region module
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """`x + dropout(FFN(norm(x)))`."""

    def __init__(self, width, hidden, rate=0.1):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.hidden = nn.Linear(width, hidden)
        self.output = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(rate)

    def forward(self, x):
        return x + self.dropout(self.output(F.gelu(self.hidden(self.norm(x)))))


# endregion


# region weights
def load(block, weights):
    """Loads canonical arrays into the module; nn.Linear stores outputs first."""
    names = {"norm.scale": "norm.weight", "norm.offset": "norm.bias"}
    state = {}
    for name, array in weights.items():
        native = names.get(name, name.replace("kernel", "weight"))
        tensor = torch.from_numpy(array)
        state[native] = tensor.T if name.endswith("kernel") else tensor
    block.load_state_dict(state)


# endregion


# region training
def train(block, batches):
    kernels = [p for p in block.parameters() if p.ndim == 2]
    others = [p for p in block.parameters() if p.ndim != 2]
    groups = [{"params": kernels, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    # the schedule counts from 0 and multiplies the rate 1.0
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 8**-0.5 * min((count + 1) ** -0.5, (count + 1) * 10**-1.5))
    block.train()
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(block(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        nn.utils.clip_grad_norm_(block.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


# endregion


# region checkpoint
def save(block, file):
    torch.save(block.state_dict(), file)


def restore(file):
    block = Block(8, 16)
    block.load_state_dict(torch.load(file))
    return block.eval()


# endregion


# region export
def export(block, file):
    """Exports for any number of rows."""
    example = torch.zeros(2, 3, 8)
    program = torch.export.export(block.eval(), (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, file)


# endregion


def results(weights, batches, x):
    block = Block(8, 16, rate=0.0)
    load(block, weights)
    x = torch.from_numpy(x)
    before = block(x)
    losses = train(block, batches)
    save(block, "block.pt")
    export(block, "block.pt2")
    exported = torch.export.load("block.pt2").module()(x)
    return {"before": before, "losses": losses, "after": block(x), "restored": restore("block.pt")(x), "exported": exported}
