"""python -m llmq_toolchain: the command llmq."""
from llmq_toolchain import main

main()
