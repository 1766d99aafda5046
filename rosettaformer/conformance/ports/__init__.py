"""Who answers: finding a port, its process, and the adapters of the frameworks."""
