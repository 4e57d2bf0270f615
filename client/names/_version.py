"""The version of this distribution; the build and the program read it here only."""

VERSION = "0.1.0"
