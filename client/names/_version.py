"""The version of this distribution: the one place that the build and the program read it from."""

VERSION = "0.1.0"
