# Included by the tsan preset. gRPC, protobuf and Abseil come without instrumentation, and race
# suppressions for them would also hide races in our handlers. So the rooms that call them are
# compiled without ThreadSanitizer, every other room with it, and no suppression is needed.
function(ballast_tsan_leave_out)
  foreach(target IN LISTS ARGN)
    if(TARGET ${target})
      target_compile_options(${target} PRIVATE -fno-sanitize=thread)
    endif()
  endforeach()
endfunction()

cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL ballast_tsan_leave_out
  ballast_proto ballast_convert ballast_rpc ballast_client)
