"""What the objectives of several tasks share, by what they read."""
