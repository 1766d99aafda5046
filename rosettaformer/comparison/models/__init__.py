"""Models of each framework behind one face: `base.Model`."""
