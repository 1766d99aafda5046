"""What is found, as text on a terminal, as JSON, as a page and as figures."""
