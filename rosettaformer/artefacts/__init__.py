"""Models as files: ONNX, torch.export, AOTInductor, SavedModel, LiteRT and StableHLO, opened by their runtimes, judged and made."""
