"""Tasks that learn from rewards or from preferences. What they share stands in objectives/."""
