"""The parts of ballast-run: processes, servers, trainers and their output."""
