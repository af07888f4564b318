# What every target of llmq shares: language, warnings, sanitizers, and the one way to declare a folder as a library.

# Language level, optimization and sanitizers for the whole build.
function(llmq_global_settings)
  set(CMAKE_CXX_STANDARD 20 PARENT_SCOPE)
  set(CMAKE_CXX_STANDARD_REQUIRED ON PARENT_SCOPE)
  set(CMAKE_CXX_EXTENSIONS OFF PARENT_SCOPE)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON PARENT_SCOPE)
  # Sixteen sources of a target are compiled as one, which reads their headers once (docs/adr/0019-unity-builds.md). The preset "separate", by
  # which clang-tidy looks at each source alone, turns it off.
  set(CMAKE_UNITY_BUILD ON CACHE BOOL "compile several sources of a target as one")
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 16 CACHE STRING "how many")
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "build type" FORCE)
  endif()
  # No contraction: the scalar reference and every ISA level must round in the same places. Kernels ask for FMA by name.
  add_compile_options(-ffp-contract=off -fno-math-errno)
  # g++ looks through its memory again and again for what it needs no longer, a tenth of its time. Where each core has 3 GB it begins at one, which
  # most batches do not reach.
  cmake_host_system_information(RESULT megabytes QUERY TOTAL_PHYSICAL_MEMORY)
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  math(EXPR of_a_core "${megabytes} / ${cores}")
  if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND of_a_core GREATER 3000)
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1048576;--param=ggc-min-expand=100>")
  endif()
  # -O2: -O3 buys nothing outside kernels/ and costs build time.
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG" PARENT_SCOPE)
  if(LLMQ_SANITIZE)
    # -O1: half the build time of -O2 and nearly its speed; -g1: lines in reports.
    set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG" PARENT_SCOPE)
    add_compile_options(-fsanitize=${LLMQ_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
    add_link_options(-fsanitize=${LLMQ_SANITIZE})
    if(LLMQ_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
      # For long unrolled functions: every address is checked by a call instead of in line, which compiles in less than half the time.
      set(LLMQ_CHECKS_BY_CALLS -mllvm -asan-instrumentation-with-call-threshold=0 PARENT_SCOPE)
    endif()
    if(LLMQ_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      add_compile_options(-Wno-tsan) # fences, which it does not follow: Asio has some, beside locks that it does
    endif()
  endif()
endfunction()

# A build that is used once compiles what computes next to nothing without optimization, tests and the command line with it (scripts/check_portable.sh).
set(LLMQ_BUILT_SOON "" CACHE STRING "libraries without optimization, as llmq_library names them: model;export")

# For a target whose headers cost more than its sources: batches of so many, where those of the build are not larger.
function(llmq_batches_of target least)
  if(CMAKE_UNITY_BUILD_BATCH_SIZE GREATER least)
    set(least ${CMAKE_UNITY_BUILD_BATCH_SIZE})
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE ${least})
endfunction()

# Warnings are errors in our own code.
function(llmq_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror)
  # g++ 12 sees uninitialized members in std::variant moves where there are none.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if(CMAKE_UNITY_BUILD) # g++ takes the sources that are compiled as one for headers, whose anonymous namespaces it warns of
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# For code whose own speed nobody feels, such as most tests: a quarter of its build time less, half of it with sanitizers. The libraries that it calls
# stay as fast as they are.
function(llmq_built_soon target)
  if(LLMQ_SANITIZE OR LLMQ_BUILT_SOON)
    target_compile_options(${target} PRIVATE -O0)
  elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# Reads the headers that `owner` has read ahead.
function(llmq_reuses_headers target owner)
  target_precompile_headers(${target} REUSE_FROM ${owner})
  # g++ 12 sees accesses behind temporary strings where there are none, the more of them the more it compiles as one or has read ahead.
  target_compile_options(${target} PRIVATE "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overread;-Wno-stringop-overflow>")
endfunction()

# What nearly every source of src/ includes, read once: half of what a batch costs beyond its own code. Not <filesystem>, which would bring std::quoted
# beside our own. Not where each source is compiled alone (preset "separate"), so that one that lacks an include is found.
set(LLMQ_HEADERS <algorithm> <array> <cmath> <cstring> <functional> <map> <memory> <optional> <set> <span> <string> <string_view> <utility> <vector>
                 <fmt/format.h>)
function(llmq_reads_headers target name)
  if(CMAKE_UNITY_BUILD)
    if(NOT TARGET ${name})
      file(WRITE ${CMAKE_BINARY_DIR}/${name}.cpp "") # the target that owns them needs a source
      add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/${name}.cpp)
      target_link_libraries(${name} PRIVATE fmt::fmt)
      target_compile_options(${name} PRIVATE ${ARGN})
      target_precompile_headers(${name} PRIVATE ${LLMQ_HEADERS})
      llmq_warnings(${name})
    endif()
    llmq_reuses_headers(${target} ${name})
  endif()
endfunction()

# llmq_library(base [COLD] DEPENDS a b PRIVATE_DEPENDS c): every .cpp below this folder (not of nested folders with their own
# CMakeLists.txt) as static library llmq_base. DEPENDS name folders below or libraries that headers need. COLD: what waits for others nearly all of its
# time is compiled at -O1, a fifth sooner.
function(llmq_library name)
  cmake_parse_arguments(ARG "COLD" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  if(NOT ARG_SOURCES AND NOT "SOURCES" IN_LIST ARGN)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  endif()
  if(ARG_SOURCES)
    add_library(llmq_${name} STATIC ${ARG_SOURCES})
    target_include_directories(llmq_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
    target_link_libraries(llmq_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE_DEPENDS})
    llmq_warnings(llmq_${name})
    set(headers llmq_headers) # read ahead as the library itself is compiled
    set(flags "")
    if(name IN_LIST LLMQ_BUILT_SOON)
      llmq_built_soon(llmq_${name})
      string(APPEND headers _soon)
      list(APPEND flags -O0)
    elseif(ARG_COLD AND NOT LLMQ_SANITIZE AND CMAKE_BUILD_TYPE STREQUAL "Release")
      target_compile_options(llmq_${name} PRIVATE -O1)
      string(APPEND headers _cold)
      list(APPEND flags -O1)
    endif()
    if(LLMQ_FUZZ AND name MATCHES "^(base|tensor|io|jinja|http|tokenizer|model|export|quant|serve|evaluate)$")  # where readers are: the fuzzer sees their branches
      target_compile_options(llmq_${name} PRIVATE -fsanitize=fuzzer-no-link)
      target_link_options(llmq_${name} INTERFACE -fsanitize=fuzzer-no-link)
      string(APPEND headers _fuzzed)
      list(APPEND flags -fsanitize=fuzzer-no-link)
    endif()
    if(NOT name MATCHES "^kernels_")
      llmq_reads_headers(llmq_${name} ${headers} ${flags})
    endif()
  else()  # headers only, so far
    add_library(llmq_${name} INTERFACE)
    target_include_directories(llmq_${name} INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
    target_link_libraries(llmq_${name} INTERFACE ${ARG_DEPENDS})
  endif()
endfunction()
