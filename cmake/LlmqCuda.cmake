# Whether CUDA is built: where nvcc is found, unless -DLLMQ_CUDA=OFF. Nothing else asks: kernels/cuda, src/device and tests/bench choose files by it.
#
# nvcc is called as a command of our own and not as a language of CMake: flags and architectures are all here, and versions of CMake that are
# older than the toolkit do as well. The runtime is linked statically; no other library of CUDA is needed to build or to start.
set(LLMQ_CUDA AUTO CACHE STRING "AUTO (where nvcc is found), ON or OFF")
# Machine code for each, and PTX of the last, which drivers compile for what comes later. V100 (sm_70) is out of CUDA 13's reach.
set(LLMQ_CUDA_ARCHITECTURES 75 80 86 89 90a 100 CACHE STRING "compute capabilities of the kernels")

set(LLMQ_CUDA_BUILT FALSE)
set(LLMQ_NVTX_FOUND FALSE)
set(LLMQ_CUDA_VERSION "") # for --version --json: "13.0 (sm_75 ...)", empty without
if(LLMQ_CUDA AND NOT LLMQ_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  find_package(CUDAToolkit 12.8 QUIET)
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
    set(LLMQ_CUDA_BUILT TRUE)
    list(JOIN LLMQ_CUDA_ARCHITECTURES " sm_" names)
    set(LLMQ_CUDA_VERSION "${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR} (sm_${names})")
    if(EXISTS "${CUDAToolkit_INCLUDE_DIRS}/nvtx3/nvToolsExt.h")
      set(LLMQ_NVTX_FOUND TRUE)
    endif()
    message(STATUS "CUDA ${LLMQ_CUDA_VERSION}: ${CUDAToolkit_NVCC_EXECUTABLE}")
  elseif(NOT LLMQ_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "LLMQ_CUDA=${LLMQ_CUDA} needs nvcc 12.8 or newer; none was found on PATH, in CUDAToolkit_ROOT or /usr/local/cuda")
  endif()
endif()

# No contraction, as on the host: a fused multiply-add is written as one. A spilled register and every other warning is an error.
set(LLMQ_NVCC_FLAGS -std=c++20 -O3 --fmad=false --expt-relaxed-constexpr -Werror all-warnings -Xptxas -warn-spills
    -Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/src)

# llmq_cuda_objects(OUT a.cu b.cu): objects of these files of this folder, compiled for every architecture.
function(llmq_cuda_objects out)
  set(targets)
  foreach(architecture ${LLMQ_CUDA_ARCHITECTURES})
    list(APPEND targets -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET LLMQ_CUDA_ARCHITECTURES -1 last)
  list(APPEND targets -gencode arch=compute_${last},code=compute_${last})
  set(objects)
  foreach(source ${ARGN})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
    add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} -ccbin ${CMAKE_CXX_COMPILER} ${LLMQ_NVCC_FLAGS} ${targets}
              -MD -MF ${object}.d -MT ${object} -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      COMMENT "nvcc ${source}" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
