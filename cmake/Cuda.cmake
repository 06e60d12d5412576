# Finds a CUDA compiler: a toolkit on PATH or in its usual place, else what scripts/setup.sh
# unpacked into build/tools/cuda. BALLAST_CUDA: AUTO (built where nvcc is), ON (an error without
# it), OFF. Sets BALLAST_NVCC, BALLAST_CUDA_INCLUDE and BALLAST_CUDART (the static runtime).
include_guard(GLOBAL)
set(BALLAST_CUDA AUTO CACHE STRING "Build the CUDA part: AUTO, ON or OFF")
set_property(CACHE BALLAST_CUDA PROPERTY STRINGS AUTO ON OFF)
# Machine code for these, and for newer GPUs the last one's PTX.
set(BALLAST_CUDA_ARCHITECTURES 80 90 100)

if(NOT BALLAST_CUDA STREQUAL OFF)
  set(wheels ${PROJECT_SOURCE_DIR}/build/tools/cuda/nvidia/cu13)
  find_program(BALLAST_NVCC nvcc PATHS /usr/local/cuda/bin ${wheels}/bin)
  if(BALLAST_NVCC)
    file(REAL_PATH ${BALLAST_NVCC} nvcc)
    cmake_path(GET nvcc PARENT_PATH root)
    cmake_path(GET root PARENT_PATH root)
    find_path(BALLAST_CUDA_INCLUDE cuda_runtime_api.h
      HINTS ${root}/include ${root}/targets/x86_64-linux/include /usr/local/cuda/include)
    find_library(BALLAST_CUDART cudart_static
      HINTS ${root}/lib64 ${root}/lib ${root}/targets/x86_64-linux/lib /usr/local/cuda/lib64)
  endif()
  if(NOT BALLAST_NVCC OR NOT BALLAST_CUDA_INCLUDE OR NOT BALLAST_CUDART)
    if(BALLAST_CUDA STREQUAL ON)
      message(FATAL_ERROR "BALLAST_CUDA is ON, and there is no nvcc with headers and static "
        "cudart; run scripts/setup.sh, or install a CUDA toolkit of version 13")
    endif()
    set(BALLAST_NVCC "")
  endif()
endif()

set(BALLAST_NVCC_FLAGS -std=c++20 -fmad=false -I${PROJECT_SOURCE_DIR}
  -Xcompiler=-fPIC,-fvisibility=hidden -O3)
foreach(architecture ${BALLAST_CUDA_ARCHITECTURES})
  list(APPEND BALLAST_NVCC_FLAGS
    "--generate-code=arch=compute_${architecture},code=sm_${architecture}")
endforeach()
list(GET BALLAST_CUDA_ARCHITECTURES -1 newest)
list(APPEND BALLAST_NVCC_FLAGS "--generate-code=arch=compute_${newest},code=compute_${newest}")

# ballast_cuda_object(<source> <variable>): the object file of a .cu file, in the variable of the
# caller.
function(ballast_cuda_object source variable)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${BALLAST_NVCC} -c ${BALLAST_NVCC_FLAGS} -ccbin ${CMAKE_CXX_COMPILER} -MD
      -MF ${object}.d -o ${object} ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPFILE ${object}.d
    COMMENT "Building CUDA object ${source}" VERBATIM)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${variable} ${object} PARENT_SCOPE)
endfunction()
