"""Where the engines of the ports differ: read from their traces and compiled programs."""

from typing import NamedTuple


class Engine(NamedTuple):
    """What an engine does; what is not said here is the same for all.

    uneven: along data it splits what the declaration leaves whole, too, in parts of the first axis of its own layout, the last shorter.
    each_use: it adds up a sum for each kernel that reads an input, and for each use of a table, where one sum of them all would do.
    sums_at_end: gradients are added up once, after the last microbatch; they stay whole along data.
    skips_added: the backward pass gathers no bias and no offset, whose values no gradient needs, unless it computes again
    what comes behind it in its layer.
    repeats_dropped: recomputation repeats the last sum of a layer if dropout follows it.
    asks_for_each: data parallelism adds up, too, which parameters have a gradient, and an empty one that never has.
    """

    uneven: bool
    each_use: bool
    sums_at_end: bool
    skips_added: bool
    repeats_dropped: bool
    asks_for_each: bool


ENGINES = {
    # DDP, FSDP2 and DTensor
    "torch": Engine(uneven=True, each_use=False, sums_at_end=True, skips_added=False, repeats_dropped=True, asks_for_each=True),
    # XLA for CPUs; those of GPUs and TPUs join the sums of `each_use`
    "jax": Engine(uneven=False, each_use=True, sums_at_end=False, skips_added=True, repeats_dropped=False, asks_for_each=False),
}
