"""A pre-norm feed-forward block in Flax NNX: trained, saved, exported."""

# region module
import jax
import jax.export
import jax.numpy as jnp
import optax
from flax import nnx


class Block(nnx.Module):
    """`x + dropout(FFN(norm(x)))`."""

    def __init__(self, width, hidden, rate=0.1, *, rngs):
        self.norm = nnx.LayerNorm(width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.hidden = nnx.Linear(width, hidden, rngs=rngs)
        self.output = nnx.Linear(hidden, width, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(self.output(jax.nn.gelu(self.hidden(self.norm(x)), approximate=False)))


# endregion


# region weights
def load(block, weights):
    """Loads canonical arrays into the module; the layouts agree."""
    tree: dict = {}
    for name, array in weights.items():
        part, leaf = name.split(".")
        tree.setdefault(part, {})["bias" if leaf == "offset" else leaf] = jnp.asarray(array)
    nnx.update(block, tree)


# endregion


# region training
def noam(count):
    """The schedule; count starts at 0."""
    n = count + 1.0
    return 8**-0.5 * jnp.minimum(n**-0.5, n * 10**-1.5)


def decays(parameters):
    """Weight decay for kernels, not for biases and norm scales."""
    return jax.tree.map(lambda parameter: parameter.ndim == 2, parameters)


def train(block, batches):
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(noam, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.01, mask=decays))
    optimizer = nnx.Optimizer(block, tx, wrt=nnx.Param)

    @nnx.jit
    def step(block, optimizer, x, y):
        loss, gradients = nnx.value_and_grad(lambda block: jnp.mean(jnp.square(block(x) - y)))(block)
        optimizer.update(block, gradients)
        return loss

    block.train()
    return [float(step(block, optimizer, x, y)) for x, y in batches]


# endregion


# region checkpoint
def save(block, folder):
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, nnx.state(block, nnx.Param))


def restore(folder):
    import orbax.checkpoint as ocp

    block = Block(8, 16, rngs=nnx.Rngs(0))
    with ocp.StandardCheckpointer() as checkpointer:
        nnx.update(block, checkpointer.restore(folder, nnx.state(block, nnx.Param)))
    block.eval()
    return block


# endregion


# region export
def export(block):
    """Exports for any number of rows, as bytes; the parameters are part of the program."""
    block.eval()
    (batch,) = jax.export.symbolic_shape("b")
    return jax.export.export(jax.jit(block))(jax.ShapeDtypeStruct((batch, 3, 8), jnp.float32)).serialize()


# endregion


def results(weights, batches, x):
    from pathlib import Path

    block = Block(8, 16, rate=0.0, rngs=nnx.Rngs(0))
    load(block, weights)
    before = block(x)
    losses = train(block, batches)
    save(block, Path("block").absolute())
    exported = jax.export.deserialize(export(block)).call(x)
    return {"before": before, "losses": losses, "after": block(x), "restored": restore(Path("block").absolute())(x), "exported": exported}
