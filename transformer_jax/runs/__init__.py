"""What a run leaves behind, and how it is begun, locked and opened again."""
