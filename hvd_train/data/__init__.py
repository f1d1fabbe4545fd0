"""How a record becomes part of a batch: sharding (which), source (read), pipeline (when)."""
