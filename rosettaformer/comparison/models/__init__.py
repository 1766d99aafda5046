"""Models of each framework behind one interface, `base.Model`."""
