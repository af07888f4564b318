# Objects compiled for an instruction set must export no weak symbol: the linker might pick their copy for every processor.
#   cmake -DNM=nm -DARCHIVE=libllmq_kernels_cpu.a -P weak_symbols.cmake
execute_process(COMMAND ${NM} -A -C ${ARCHIVE} OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${NM} cannot read ${ARCHIVE}")
endif()
string(REGEX MATCHALL "[^\n]*kernels\\.cpp\\.o:[^\n]* [WVu] [^\n]*" weak "${symbols}")
if(weak)
  string(REPLACE ";" "\n" weak "${weak}")
  message(FATAL_ERROR "weak symbols in objects of one instruction set:\n${weak}")
endif()
if(NOT symbols MATCHES "kernels\\.cpp\\.o:")
  message(FATAL_ERROR "${ARCHIVE} holds no kernels.cpp.o: the check would pass on nothing")
endif()
