# Helpers that keep every room's CMakeLists.txt to a few lines.
include_guard(GLOBAL)

# Carries warnings and the floating-point contract to every target of ours.
add_library(ballast_options INTERFACE)
# common/types has headers alone; ballast/ of it is installed with the client's.
target_include_directories(ballast_options INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/common/types>)
target_compile_features(ballast_options INTERFACE cxx_std_20)
set(ballast_warnings -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
  -Wno-missing-field-initializers -Werror)
target_compile_options(ballast_options INTERFACE
  "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:${ballast_warnings}>>"
  $<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-fno-math-errno>>
  $<BUILD_INTERFACE:$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>>
  $<BUILD_INTERFACE:$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wthread-safety>>)

# Both carry the flags that end a process at an error with memory, or make one harder to use
# (docs/security.md). Only for optimized builds: debug builds have the checks of libstdc++, and
# sanitizers see more and do not work with FORTIFY. ballast_kernel_hardening leaves out the checks
# of libstdc++ at each index: loops over tensors would have a branch too many, and take sizes that
# their callers have checked.
add_library(ballast_kernel_hardening INTERFACE)
add_library(ballast_hardening INTERFACE)
set(ballast_hardens $<CONFIG:Release,RelWithDebInfo>)
set(ballast_hardening_flags -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fstack-protector-strong
  -fstack-clash-protection)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND ballast_hardening_flags -fcf-protection)
endif()
target_compile_options(ballast_kernel_hardening INTERFACE
  "$<$<AND:${ballast_hardens},$<COMPILE_LANGUAGE:CXX>>:${ballast_hardening_flags}>")
target_link_options(ballast_kernel_hardening INTERFACE
  $<${ballast_hardens}:LINKER:-z,relro,-z,now>)
target_compile_definitions(ballast_hardening INTERFACE $<${ballast_hardens}:_GLIBCXX_ASSERTIONS>)
target_link_libraries(ballast_hardening INTERFACE ballast_kernel_hardening)

# ballast_in_batches(<target>): a cold build compiles the target's files twelve at a time
# (docs/decisions/051-cold-builds.md). Files with marks (common/faults/mutant.h, planted.h,
# client/device/left_out.h) are compiled a second time for tests, and the linker takes those objects
# in place of the room's: each of these must hold one file only.
function(ballast_in_batches target)
  if(NOT BALLAST_COLD_BUILD)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
  if(NOT BUILD_TESTING)
    return()
  endif()
  get_target_property(files ${target} SOURCES)
  foreach(file ${files})
    file(STRINGS ${file} mark REGEX "/(mutant|planted|left_out)[.]h" LIMIT_COUNT 1)
    if(mark)
      set_source_files_properties(${file} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
endfunction()

# ballast_room(NAME <room> [KERNELS] SOURCES a.cc ... [DEPS target ...])
# One static library per room, alias Ballast::<room>. DEPS are the room's permitted edges. KERNELS:
# it is loops over tensors, see ballast_kernel_hardening.
function(ballast_room)
  cmake_parse_arguments(ARG "KERNELS" "NAME" "SOURCES;DEPS" ${ARGN})
  add_library(ballast_${ARG_NAME} STATIC ${ARG_SOURCES})
  add_library(Ballast::${ARG_NAME} ALIAS ballast_${ARG_NAME})
  set_target_properties(ballast_${ARG_NAME} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  ballast_in_batches(ballast_${ARG_NAME})
  set(hardening $<IF:$<BOOL:${ARG_KERNELS}>,ballast_kernel_hardening,ballast_hardening>)
  target_link_libraries(ballast_${ARG_NAME} PUBLIC ${ARG_DEPS}
    PRIVATE $<BUILD_INTERFACE:ballast_options> $<BUILD_INTERFACE:${hardening}>)
endfunction()

# ballast_test(NAME <file stem> SOURCES a_test.cc ... [DEPS ...] [LABELS ...])
# Release builds compile the test's own files with -O1: they wait or call the rooms, which keep -O2,
# and -O1 takes a fifth off their compile time.
function(ballast_test)
  if(NOT BUILD_TESTING)
    return()
  endif()
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gmock_main ballast_options)
  target_compile_options(${ARG_NAME} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(BALLAST_COLD_BUILD)
    target_precompile_headers(${ARG_NAME} REUSE_FROM ballast_test_header)
    # GCC 12 sees strings out of bounds with such a header, where and when depends on the length of
    # the clone's path; single files keep these warnings.
    target_compile_options(${ARG_NAME} PRIVATE -Wno-array-bounds -Wno-stringop-overflow
      -Wno-stringop-overread -Wno-maybe-uninitialized -Wno-dangling-pointer)
    # gRPC's targets bring it to some tests only, and it must be that of the header.
    target_compile_options(${ARG_NAME} PRIVATE -pthread)
  endif()
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  gtest_discover_tests(${ARG_NAME} DISCOVERY_MODE PRE_TEST
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 300)
endfunction()
