# Writes what the program says of its own command line, below INTO as below a prefix's share/: completions of three shells and
# the manual page. PROGRAM is a command, with an emulator in front where the program is another processor's.
#   cmake "-DPROGRAM=..." -DINTO= -P WritePages.cmake
function(write_page path)
  get_filename_component(folder ${INTO}/${path} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${PROGRAM} ${ARGN} OUTPUT_FILE ${INTO}/${path} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
write_page(bash-completion/completions/llmq completion bash)
write_page(zsh/site-functions/_llmq completion zsh)
write_page(fish/vendor_completions.d/llmq.fish completion fish)
write_page(man/man1/llmq.1 man)
