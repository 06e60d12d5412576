# Body of the tests fuzz_*; see CMakeLists.txt for its variables. Builds one target of the preset
# `fuzz` and lets it run from the corpus. New inputs stay in WORK_DIR; an input that breaks
# something is named in the output, and belongs into the corpus once it is fixed.
cmake_minimum_required(VERSION 3.25)

# run(<command> ...): the test fails with the end of the output when the code is not 0.
function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${SOURCE_DIR}
    RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nexit code ${code}\n${out}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --preset fuzz)
run(${CMAKE_COMMAND} --build --preset fuzz --parallel 1 --target ${TARGET})

set(folder ${SOURCE_DIR}/tests/fuzz)
file(REMOVE_RECURSE ${WORK_DIR}/${CORPUS})
file(MAKE_DIRECTORY ${WORK_DIR}/${CORPUS})
file(REMOVE_RECURSE ${WORK_DIR}/${CORPUS}-kept)
run(${PYTHON} -B ${folder}/corpus.py unpack ${CORPUS} ${WORK_DIR}/${CORPUS}-kept)
run(${SOURCE_DIR}/build/fuzz/bin/${TARGET}
  -runs=${RUNS} -max_len=4096 -timeout=20 -rss_limit_mb=1024 -verbosity=0
  -print_final_stats=1 -dict=${folder}/${CORPUS}.dict -artifact_prefix=${WORK_DIR}/
  ${WORK_DIR}/${CORPUS} ${WORK_DIR}/${CORPUS}-kept)

# A target that answers everything at its first byte is fast and finds nothing.
string(REGEX MATCH "stat::new_units_added: *([0-9]+)" _ "${output}")
if(NOT CMAKE_MATCH_1 GREATER 10)
  message(FATAL_ERROR "fuzzing met nothing new in ${RUNS} runs\n${output}")
endif()
message(STATUS "${output}")
