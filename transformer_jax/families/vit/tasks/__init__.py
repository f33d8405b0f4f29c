"""Tasks on images, one per file, whose names configs use."""
