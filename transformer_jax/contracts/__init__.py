"""What a family of models, a task and a source of records must offer."""
