"""What Azure provides: one ComponentResource a subject, with typed arguments; none reads configuration by itself."""
