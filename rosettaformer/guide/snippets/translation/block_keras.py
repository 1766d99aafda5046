"""A pre-norm feed-forward block in Keras on TensorFlow: trained, saved, exported."""

# region module
import keras
import tensorflow as tf
from keras import ops


@keras.saving.register_keras_serializable("guide")
class Block(keras.layers.Layer):
    """`x + dropout(FFN(norm(x)))`."""

    def __init__(self, width, hidden, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.sizes = {"width": width, "hidden": hidden, "rate": rate}
        self.norm = keras.layers.LayerNormalization(epsilon=1e-5)
        self.hidden = keras.layers.Dense(hidden, activation=keras.activations.gelu)
        self.output_projection = keras.layers.Dense(width)
        self.dropout = keras.layers.Dropout(rate)

    def build(self, shape):
        self.norm.build(shape)
        self.hidden.build(shape)
        self.output_projection.build((*shape[:-1], self.sizes["hidden"]))

    def call(self, x, training=None):
        return x + self.dropout(self.output_projection(self.hidden(self.norm(x))), training=training)

    def get_config(self):
        return {**super().get_config(), **self.sizes}


# endregion


# region weights
def load(block, weights):
    """Loads canonical arrays into the layer; the layouts agree."""
    block.build((None, None, 8))
    block.norm.gamma.assign(weights["norm.scale"])
    block.norm.beta.assign(weights["norm.offset"])
    for name, layer in (("hidden", block.hidden), ("output", block.output_projection)):
        layer.kernel.assign(weights[f"{name}.kernel"])
        layer.bias.assign(weights[f"{name}.bias"])


# endregion


# region training
class Noam(keras.optimizers.schedules.LearningRateSchedule):
    """The schedule; count starts at 0."""

    def __call__(self, count):
        n = ops.cast(count, "float32") + 1
        return 8**-0.5 * ops.minimum(n**-0.5, n * 10**-1.5)


def train(block, batches):
    # epsilon is added before the bias correction, which is invisible at 1e-9
    optimizer = keras.optimizers.AdamW(Noam(), weight_decay=0.01, beta_1=0.9, beta_2=0.98, epsilon=1e-9, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    variables = block.trainable_variables

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(block(x, training=True) - y))
        optimizer.apply(tape.gradient(loss, [variable.value for variable in variables]), variables)
        return loss

    return [float(step(x, y)) for x, y in batches]


# endregion


# region checkpoint
def save(block, file):
    x = keras.Input((None, 8))
    keras.Model(x, block(x)).save(file)


def restore(file):
    return keras.saving.load_model(file)


# endregion


# region export
def export(block, folder):
    """Exports for any number of rows, as a SavedModel."""
    x = keras.Input((None, 8))
    keras.Model(x, block(x)).export(folder, verbose=False)


# endregion


def results(weights, batches, x):
    block = Block(8, 16, rate=0.0)
    load(block, weights)
    before = block(x)
    losses = train(block, batches)
    save(block, "block.keras")
    export(block, "block")
    exported = tf.saved_model.load("block")
    return {"before": before, "losses": losses, "after": block(x), "restored": restore("block.keras")(x), "exported": exported.serve(x)}
