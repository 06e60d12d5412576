# BALLAST_REVISION: the commit that the programs say they are of. Give it with -D where there is no
# git, as in a container; else git says it when cmake runs, and a commit makes cmake run again.
# Empty where neither knows it.
include_guard(GLOBAL)
set(BALLAST_REVISION "" CACHE STRING "Revision of the source; empty: what git says")

function(ballast_revision result)
  set(revision "${BALLAST_REVISION}")
  find_program(BALLAST_GIT git)
  if(NOT revision AND BALLAST_GIT)
    execute_process(COMMAND ${BALLAST_GIT} rev-parse --show-toplevel HEAD --git-path logs/HEAD
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE lines ERROR_QUIET
      RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(REPLACE "\n" ";" lines "${lines};;;")
    list(GET lines 0 root)
    file(REAL_PATH "${root}" root)
    file(REAL_PATH ${PROJECT_SOURCE_DIR} own_root)
    # A tree without git of its own may lie in that of something else.
    if(NOT failed AND root STREQUAL own_root)
      list(GET lines 1 revision)
      list(GET lines 2 moves)
      get_filename_component(moves "${moves}" ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
      if(EXISTS ${moves})
        set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY
          CMAKE_CONFIGURE_DEPENDS ${moves})
      endif()
    endif()
  endif()
  set(${result} "${revision}" PARENT_SCOPE)
endfunction()
