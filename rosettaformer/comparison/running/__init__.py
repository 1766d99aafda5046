"""The sides as processes: what they are, what they are given, and the questions that they answer."""
