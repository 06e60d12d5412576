// Compiled so that CMake makes the precompiled header of the tests; see CMakeLists.txt in this
// folder.
// Comes from: nothing. Goes to: nothing. Thread safety: none needed.
