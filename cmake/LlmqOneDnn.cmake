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
