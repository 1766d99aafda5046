"""What is expected: how the reference answers a case, in which summation orders, and what tolerance and trace follow."""
