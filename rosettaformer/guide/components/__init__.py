"""A page for each component: its equation, its four sources side by side, and all that is known of it."""
