"""Output of comparisons and reports: terminal, JSON, HTML page and figures."""
