"""What a recipe can do to a sample: statistics and transforms per modality, with typed arguments."""
