"""Lightning and Fabric: what the rows `lightning.*` of the table do, for both trees of modules."""
