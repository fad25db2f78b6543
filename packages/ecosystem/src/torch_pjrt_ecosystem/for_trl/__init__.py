"""TRL: what the rows `trl.*` of the table do."""
