# Whether CUDA is built: where nvcc is found, unless -DLLMQ_CUDA=OFF. Nothing else asks: kernels/cuda, src/device and tests/bench choose files by it.
#
# nvcc is called as a command of our own and not as a language of CMake: flags and architectures are all here, and versions of CMake that are
# older than the toolkit do as well. The runtime is linked statically; no other library of CUDA is needed to build or to start.
set(LLMQ_CUDA AUTO CACHE STRING "AUTO (where nvcc is found), ON or OFF")
# Machine code for each, and PTX of the last, which drivers compile for what comes later, so that it is the last without a letter where there is one.
# V100 (sm_70) is out of CUDA 13's reach. ALL is what is published; it takes six times as long as one.
set(LLMQ_CUDA_ARCHITECTURES NATIVE CACHE STRING "compute capabilities of the kernels, such as 80;90a; NATIVE: of this machine's GPUs, 80 where it has none; ALL")
set(LLMQ_CUDA_EVERY_ARCHITECTURE 75 80 86 89 90a 100)
# Those that multiply E2M1 by E2M1 from registers, and those that do it from tensor memory (100f is 100 and 103), each with machine code of that one file
# beside ALL: 3 s and 140 KB, 1 s and 225 KB, where all kernels for one more architecture are some 90 s of a slow processor and 5 MB, and run there from PTX.
set(LLMQ_CUDA_FLOAT4_REGEX "^12[01][af]$")
set(LLMQ_CUDA_EVERY_FLOAT4 120a)
set(LLMQ_CUDA_FLOAT4_TENSOR_REGEX "^10[03][af]$")
set(LLMQ_CUDA_EVERY_FLOAT4_TENSOR 100f)

# The compute capabilities that LLMQ_CUDA_ARCHITECTURES asks for, as a list in rising order. A GPU that is older than the oldest of all, which nvcc would
# refuse, is left out, and the program refuses it by name.
function(llmq_cuda_architectures out)
  set(chosen ${LLMQ_CUDA_ARCHITECTURES})
  if(chosen STREQUAL "ALL")
    set(chosen ${LLMQ_CUDA_EVERY_ARCHITECTURE})
  elseif(chosen STREQUAL "NATIVE")
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE answer ERROR_QUIET RESULT_VARIABLE status)
    set(chosen 80)
    if(status EQUAL 0 AND answer MATCHES "[0-9]+[.][0-9]+")
      string(REGEX MATCHALL "[0-9]+[.][0-9]+" chosen "${answer}")
      list(TRANSFORM chosen REPLACE "[.]" "")
      list(FILTER chosen EXCLUDE REGEX "^([0-6][0-9]|7[0-4])$")
      list(TRANSFORM chosen REPLACE "^(90|10[03]|12[01])$" "\\1a")
      list(REMOVE_DUPLICATES chosen)
      list(SORT chosen COMPARE NATURAL)
      if(NOT chosen)
        set(chosen 80)
      endif()
    endif()
  endif()
  set(${out} ${chosen} PARENT_SCOPE)
endfunction()

set(LLMQ_CUDA_BUILT FALSE)
set(LLMQ_CUDA_FLOAT4 "") # of the chosen ones
set(LLMQ_CUDA_FLOAT4_TENSOR "")
set(LLMQ_NVTX_FOUND FALSE)
set(LLMQ_CUDA_VERSION "") # for --version --json: "13.0 (sm_75 ...)", empty without
if(LLMQ_CUDA AND NOT LLMQ_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  find_package(CUDAToolkit 12.8 QUIET)
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
    set(LLMQ_CUDA_BUILT TRUE)
    llmq_cuda_architectures(LLMQ_CUDA_CHOSEN)
    set(LLMQ_CUDA_FLOAT4 ${LLMQ_CUDA_CHOSEN})
    list(FILTER LLMQ_CUDA_FLOAT4 INCLUDE REGEX ${LLMQ_CUDA_FLOAT4_REGEX})
    set(LLMQ_CUDA_FLOAT4_TENSOR ${LLMQ_CUDA_CHOSEN})
    list(FILTER LLMQ_CUDA_FLOAT4_TENSOR INCLUDE REGEX ${LLMQ_CUDA_FLOAT4_TENSOR_REGEX})
    if(LLMQ_CUDA_ARCHITECTURES STREQUAL "ALL")
      set(LLMQ_CUDA_FLOAT4 ${LLMQ_CUDA_EVERY_FLOAT4})
      set(LLMQ_CUDA_FLOAT4_TENSOR ${LLMQ_CUDA_EVERY_FLOAT4_TENSOR})
    endif()
    if(CUDAToolkit_VERSION VERSION_LESS 12.9) # knows neither 100f nor block16
      set(LLMQ_CUDA_FLOAT4_TENSOR "")
      set(LLMQ_CUDA_EVERY_FLOAT4_TENSOR "")
    endif()
    list(GET LLMQ_CUDA_CHOSEN 0 oldest)
    string(REGEX MATCH "^[0-9]+" LLMQ_CUDA_OLDEST ${oldest}) # 80: what an older device is told
    list(JOIN LLMQ_CUDA_CHOSEN " sm_" names)
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

# llmq_cuda_objects(OUT FOLDER "80;90a" a.cu b.cu): objects of these files of this folder, compiled for these architectures into FOLDER.
function(llmq_cuda_objects out folder architectures)
  set(targets)
  foreach(architecture ${architectures})
    list(APPEND targets -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET architectures -1 last)
  set(plain ${architectures})
  list(FILTER plain EXCLUDE REGEX "[a-z]$")
  if(plain)
    list(GET plain -1 last)
  endif()
  list(APPEND targets -gencode arch=compute_${last},code=compute_${last})
  set(objects)
  foreach(source ${ARGN})
    set(object ${folder}/${source}.o)
    add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} -ccbin ${CMAKE_CXX_COMPILER} ${LLMQ_NVCC_FLAGS} ${targets}
              -MD -MF ${object}.d -MT ${object} -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      COMMENT "nvcc ${source}" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
