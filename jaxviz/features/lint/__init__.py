"""What could be written better, with the bytes that it saves."""
