"""The command line: one file per command, which parses, calls one function of a room, and prints."""
