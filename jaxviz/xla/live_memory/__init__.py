"""What a process holds between calls: arrays, by who holds them, and compiled programs."""
