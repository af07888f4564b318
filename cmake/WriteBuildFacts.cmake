# Writes build_facts.h from build_facts.h.in; leaves the file alone when nothing changed.   cmake -DSOURCE= -DINTO= -DROOT= ... -P WriteBuildFacts.cmake
execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${ROOT} OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT COMMIT)
  set(COMMIT unknown)
endif()
configure_file(${SOURCE} ${INTO} @ONLY)
