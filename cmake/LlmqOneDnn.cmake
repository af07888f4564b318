# oneDNN serves the AMX level's GEMM on x86-64; elsewhere, or where it is missing, kernels/cpu links without it.
# Found by library and header: Debian's dnnl-config.cmake asks for OpenCL, which is not needed here.
set(LLMQ_ONEDNN "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  find_library(LLMQ_DNNL_LIBRARY NAMES dnnl)
  find_path(LLMQ_DNNL_INCLUDE NAMES dnnl.hpp oneapi/dnnl/dnnl.hpp)
  if(LLMQ_DNNL_LIBRARY AND LLMQ_DNNL_INCLUDE)
    add_library(DNNL::dnnl UNKNOWN IMPORTED)
    set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${LLMQ_DNNL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${LLMQ_DNNL_INCLUDE})
    set(LLMQ_ONEDNN DNNL::dnnl)
  endif()
endif()

# For --version --json: "2.6.3", empty without the library.
set(LLMQ_ONEDNN_VERSION "")
if(LLMQ_ONEDNN)
  find_file(LLMQ_DNNL_VERSION_HEADER NAMES oneapi/dnnl/dnnl_version.h dnnl_version.h PATHS ${LLMQ_DNNL_INCLUDE})
  if(LLMQ_DNNL_VERSION_HEADER)
    file(STRINGS ${LLMQ_DNNL_VERSION_HEADER} lines REGEX "#define DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
    string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+).*" "\\1.\\2.\\3" LLMQ_ONEDNN_VERSION "${lines}")
  endif()
endif()
