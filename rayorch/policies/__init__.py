"""Small pure functions that decide; one idea a file, named in a profile by its import path."""
