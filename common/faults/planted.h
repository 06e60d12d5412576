// Marks in shipped code for the fuzz targets of tests/fuzz. BALLAST_PLANTED is the constant false;
// where BALLAST_FUZZ_PLANTED is defined it is true and breaks one check on purpose, which the
// target of that parser must find. tests/fuzz/CMakeLists.txt lists the files compiled a second time
// this way. Only .cc files use it. Thread safety: macro only.
#pragma once

#ifdef BALLAST_FUZZ_PLANTED
#define BALLAST_PLANTED true
#else
#define BALLAST_PLANTED false
#endif
