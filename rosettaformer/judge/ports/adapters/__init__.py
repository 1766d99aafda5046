"""One adapter per framework: runs cases on any port's modules."""
