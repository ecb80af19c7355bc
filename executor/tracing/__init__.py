"""Any torch module traced without weights into the table that the cost model reads."""
