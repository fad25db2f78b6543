"""diffusers: what the rows `diffusers.*` of the table do."""
