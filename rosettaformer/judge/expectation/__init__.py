"""What is expected: how the reference answers a case, in which summation orders, and which tolerance and trace follow."""
