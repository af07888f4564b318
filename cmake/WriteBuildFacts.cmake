# Writes build_facts.h from build_facts.h.in; leaves the file alone when nothing changed.   cmake -DSOURCE= -DINTO= -DROOT= ... -P WriteBuildFacts.cmake
execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${ROOT} OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT COMMIT)
  set(COMMIT "$Format:%H$") # git archive writes the commit of a source archive here
  if(COMMIT MATCHES "^[0-9a-f]+$")
    string(SUBSTRING ${COMMIT} 0 12 COMMIT)
  else()
    set(COMMIT unknown)
  endif()
endif()
configure_file(${SOURCE} ${INTO} @ONLY)
