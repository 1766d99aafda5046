"""A pre-norm feed-forward block in NumPy: trained, saved."""

# region module
import numpy as np

from reference_numpy import dropout, feed_forward, normalization, optimizer, schedule


def block(parameters, x_btd, keep_btd=None, rate=0.1):
    """`x + dropout(FFN(norm(x)))`; drops by a keep mask."""
    normed_btd = normalization.layer_norm(parameters["norm"], x_btd, epsilon=1e-5)
    update_btd = feed_forward.feed_forward(parameters, normed_btd, "gelu_erf")
    return x_btd + dropout.dropout(update_btd, keep_btd, rate)


# endregion


# region weights
def load(weights):
    parameters: dict = {}
    for name, array in weights.items():
        part, leaf = name.split(".")
        parameters.setdefault(part, {})[leaf] = array
    return parameters


# endregion


# region training
def gradients(parameters, x_btd, y_btd):
    """Returns the loss and its gradients, computed backwards component by component."""
    normed_btd = normalization.layer_norm(parameters["norm"], x_btd, epsilon=1e-5)
    error_btd = x_btd + feed_forward.feed_forward(parameters, normed_btd, "gelu_erf") - y_btd
    cotangent = 2 * error_btd / np.float32(error_btd.size)
    inner = feed_forward.feed_forward_vjp(parameters, normed_btd, "gelu_erf", cotangent=cotangent)
    norm = normalization.layer_norm_vjp(parameters["norm"], x_btd, 1e-5, cotangent=inner["x_btd"])
    return np.mean(error_btd**2), {**inner["parameters"], "norm": norm["parameters"]}


def train(parameters, batches):
    zeros = {part: {leaf: np.zeros_like(array) for leaf, array in leaves.items()} for part, leaves in parameters.items()}
    state = {"parameters": parameters, "first_moment": zeros, "second_moment": zeros}
    losses = []
    for step, (x_btd, y_btd) in enumerate(batches, 1):
        loss, gradient = gradients(state["parameters"], x_btd, y_btd)
        losses.append(float(loss))
        clipped = optimizer.clip_global_norm(gradient, 1.0)
        rate = schedule.noam(step, width=8, warmup=10)
        state = optimizer.adam(
            state["parameters"], clipped, state["first_moment"], state["second_moment"], step, float(rate), 0.9, 0.98, 1e-9, 0.01
        )
    return state["parameters"], losses


# endregion


# region checkpoint
def save(parameters, file):
    np.savez(file, **{f"{part}.{leaf}": array for part, leaves in parameters.items() for leaf, array in leaves.items()})


def restore(file):
    return load(np.load(file))


# endregion


def results(weights, batches, x_btd):
    trained, losses = train(load(weights), batches)
    save(trained, "block.npz")
    return {
        "before": block(load(weights), x_btd),
        "losses": losses,
        "after": block(trained, x_btd),
        "restored": block(restore("block.npz"), x_btd),
    }
