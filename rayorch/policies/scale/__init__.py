"""Which gangs to ask capacity for."""
