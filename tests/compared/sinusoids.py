"""Whisper's table of positions, sines before cosines; interleaved: alternately."""

import numpy as np


def sinusoids(length, width, interleaved):
    angles = np.arange(length)[:, None] * 10000.0 ** -np.linspace(0, 1, width // 2)
    parts = np.sin(angles), np.cos(angles)
    return np.stack(parts, -1).reshape(length, width) if interleaved else np.concatenate(parts, -1)
