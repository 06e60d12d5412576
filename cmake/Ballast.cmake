# Helpers that keep every room's CMakeLists.txt to a few lines.
include_guard(GLOBAL)

# Carries warnings and the floating-point contract to every target of ours.
add_library(ballast_options INTERFACE)
target_include_directories(ballast_options INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
target_compile_features(ballast_options INTERFACE cxx_std_20)
set(ballast_warnings -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
  -Wno-missing-field-initializers -Werror)
target_compile_options(ballast_options INTERFACE
  "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:${ballast_warnings}>>"
  $<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-fno-math-errno>>
  $<BUILD_INTERFACE:$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>>
  $<BUILD_INTERFACE:$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wthread-safety>>)

# ballast_room(NAME <room> SOURCES a.cc ... [DEPS target ...])
# One static library per room, alias Ballast::<room>. DEPS are the room's permitted edges.
function(ballast_room)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_library(ballast_${ARG_NAME} STATIC ${ARG_SOURCES})
  add_library(Ballast::${ARG_NAME} ALIAS ballast_${ARG_NAME})
  set_target_properties(ballast_${ARG_NAME} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(ballast_${ARG_NAME} PUBLIC ${ARG_DEPS}
    PRIVATE $<BUILD_INTERFACE:ballast_options>)
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
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  gtest_discover_tests(${ARG_NAME} DISCOVERY_MODE PRE_TEST
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 300)
endfunction()
