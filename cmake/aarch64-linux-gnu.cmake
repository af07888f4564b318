# Cross compilation for 64-bit ARM with Debian's compiler. The libraries are Debian's arm64 packages, unpacked (not installed) by
# scripts/check_portable.sh into LLMQ_ARM64_ROOT; the C and C++ runtimes are the cross compiler's.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(LLMQ_ARM64_ROOT "" CACHE PATH "where the arm64 packages are unpacked")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES LLMQ_ARM64_ROOT)

set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${LLMQ_ARM64_ROOT} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_PREFIX_PATH /usr)

set(libraries ${LLMQ_ARM64_ROOT}/usr/lib/aarch64-linux-gnu)
set(CMAKE_CXX_FLAGS_INIT "-isystem ${LLMQ_ARM64_ROOT}/usr/include -isystem ${LLMQ_ARM64_ROOT}/usr/include/aarch64-linux-gnu")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-L${libraries} -Wl,-rpath-link,${libraries}")
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-L;/usr/aarch64-linux-gnu;-E;LD_LIBRARY_PATH=${libraries}")
