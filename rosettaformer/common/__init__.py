"""What all rooms share; nothing here knows of the judge."""
