"""What one call of the model does: requests, steps, drafts."""
