# Body of the test install_and_consume; see CMakeLists.txt for its variables.
cmake_minimum_required(VERSION 3.25)

# run(<expected exit code> <command> ...): the test fails with the output when the code differs.
function(run expected)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL expected)
    message(FATAL_ERROR "${ARGN}\nexit code ${code}, expected ${expected}\n${out}")
  endif()
endfunction()

set(prefix ${WORK_DIR}/prefix)
set(consumer_build ${WORK_DIR}/consumer)
file(REMOVE_RECURSE ${WORK_DIR})
run(0 ${CMAKE_COMMAND} --install ${BUILD_DIR} --component client --prefix ${prefix})

# Public headers only, and nothing of the server.
file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/*)
list(SORT headers)
set(public ballast/admin.h ballast/client.h ballast/counters.h ballast/dealt.h
  ballast/error.h ballast/gpu.h ballast/hyper.h ballast/job_settings.h ballast/policy.h
  ballast/rendezvous.h ballast/security.h ballast/types.h)
if(NOT "${headers}" STREQUAL "${public}")
  message(FATAL_ERROR "installed headers: ${headers}")
endif()

run(0 ${CMAKE_COMMAND} -S ${CONSUMER_DIR} -B ${consumer_build} -G ${GENERATOR}
  -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${CXX_FLAGS}
  -DCMAKE_BUILD_TYPE=${BUILD_TYPE} -DBALLAST_VERSION=${VERSION}
  -DPUSH_PULL_SOURCE=${PUSH_PULL_SOURCE})
run(0 ${CMAKE_COMMAND} --build ${consumer_build})
run(2 ${consumer_build}/push_pull)  # its usage
run(0 ${CMAKE_CURRENT_LIST_DIR}/one_round.sh ${BALLASTD} ${consumer_build}/push_pull ${WORK_DIR})
