"""How ranks exchange what they learn: DDP's hook, exact sums, local updates, a model cut over the ranks."""
