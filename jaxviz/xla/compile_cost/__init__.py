"""How long a program takes to trace, lower and compile: by line, by function and by repeated blocks; and what a loop
would save."""
