def write(family, path, *, seed=0, size="tiny", dtype="float32", max_shard_bytes=None, settings={}):
    raise NotImplementedError
