# CPack runs this over the installed tree before it packs the .deb: what Debian's policy wants otherwise than other systems do.
# Licences are one file, copyright, which containers keep that leave out the rest of /usr/share/doc; changelogs and the manual are compressed without a
# time; zsh finds what packages bring in a folder of its own.
set(share ${CPACK_TEMPORARY_DIRECTORY}/usr/share)
set(doc ${share}/doc/llmq)
get_filename_component(source ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)

file(READ ${CMAKE_CURRENT_LIST_DIR}/copyright.head head)
file(READ ${doc}/NOTICE notice)
file(WRITE ${doc}/copyright "${head}\n${notice}")
file(REMOVE ${doc}/LICENSE ${doc}/NOTICE)

set(version ${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC) # SOURCE_DATE_EPOCH's, where it is set
file(COPY_FILE ${source}/CHANGELOG.md ${doc}/changelog)
file(WRITE ${doc}/changelog.Debian
  "llmq (${version}) unstable; urgency=medium\n\n  * Packed from llmq ${CPACK_PACKAGE_VERSION}; changelog.gz says what changed.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
execute_process(COMMAND gzip -9n ${doc}/changelog ${doc}/changelog.Debian ${share}/man/man1/llmq.1 COMMAND_ERROR_IS_FATAL ANY)

file(MAKE_DIRECTORY ${share}/lintian/overrides)
file(COPY_FILE ${CMAKE_CURRENT_LIST_DIR}/lintian-overrides ${share}/lintian/overrides/llmq)
file(RENAME ${share}/zsh/site-functions ${share}/zsh/vendor-completions)
