"""A command on the devices of a mesh: the processes that it starts or is one of, and how they fail together."""
