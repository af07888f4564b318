# oneDNN serves the AMX level's GEMM on x86-64; elsewhere, or where it is missing, kernels/cpu links without it.
set(LLMQ_ONEDNN "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  find_package(dnnl CONFIG QUIET)
  if(TARGET DNNL::dnnl)
    set(LLMQ_ONEDNN DNNL::dnnl)
  endif()
endif()
