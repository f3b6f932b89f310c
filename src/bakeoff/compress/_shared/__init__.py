"""What qronos and pt2-llm share: grids, plain rounding methods, the walk over a model, and the stored form."""
