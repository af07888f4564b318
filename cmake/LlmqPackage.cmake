# The .deb, as CPack makes it of what is installed (scripts/make_packages.sh): its control file, whose dependencies are read from the program, and the
# script that gives the tree Debian's form.
set(LLMQ_MAINTAINER "The llmq authors <llmq@example.org>" CACHE STRING "who publishes the .deb: a name and an address")
set(CPACK_VERBATIM_VARIABLES YES)
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/debian/debian_form.cmake)
set(CPACK_PACKAGE_CONTACT ${LLMQ_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "quantizes language models and proves the result")
set(CPACK_PACKAGE_DESCRIPTION "llmq turns an FP16 or BF16 language model into a packed INT4, INT8,
FP8 or FP4 checkpoint for vLLM, Transformers, GPTQModel and llama.cpp, and
proves by perplexity, KL divergence and top-1 agreement that the result is
still the same model. It also serves models by OpenAI's API. No
Python, no framework and no GPU is needed.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
include(CPack)
