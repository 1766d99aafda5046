"""Which layer, variable and axis of one side is which of the other."""
