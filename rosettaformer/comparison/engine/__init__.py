"""The engine: sides as processes, what they are given, the questions that they answer, and the reference beside them."""
