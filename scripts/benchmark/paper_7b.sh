#!/usr/bin/env bash
# The tlm-DRE paper's hyper-parameters for 7B models (arXiv 2609.16760, appendix C), on every GPU of the machine:
#
#   scripts/benchmark/paper_7b.sh Qwen/Qwen2.5-7B-Instruct ALFWorld-v0 tlm-dre [more options of agentgym-tlm train]
#
# SFT: 3 epochs at 1e-5 (HotpotQA 2e-5), batch of 64; alignment: 1 epoch at 7e-7 (ScienceWorld, HotpotQA 1e-6), batch of
# 32; pivot 0.9, omega_lower 0.2, omega_upper 1. All weights are trained. ACCELERATE_CONFIG says how the GPUs share them:
#
#   accelerate_fsdp.yaml (default)   weights, gradients and optimizer state in shares (FSDP2)
#   accelerate_deepspeed.yaml        all weights on every GPU, gradients and optimizer state in shares (ZeRO-2)
#   "" (empty)                       a whole copy on every GPU
#
# What does not fit (agentgym-tlm doctor --model ... --devices N says) needs --sft.lora.r and --tlm-dre.lora.r, which the
# paper did not use. PROCESSES and LAUNCH override the number of processes and how they are started.
set -euo pipefail
policy="$1" env="$2" trainer="$3"
shift 3
sft=1e-5 align=1e-6 processes="${PROCESSES:-$(nvidia-smi --list-gpus | wc -l)}"
config="${ACCELERATE_CONFIG-$(dirname "${BASH_SOURCE[0]}")/accelerate_fsdp.yaml}"
[[ "$env" == ALFWorld-v0 ]] && align=7e-7
[[ "$env" == HotpotQA-v0 ]] && sft=2e-5
steps() { echo $(($1 / processes > 0 ? $1 / processes : 1)); } # micro-batches of one example per process
[[ -n "$config" ]] && sharing=(--config_file "$config") || sharing=(--multi_gpu)
exec ${LAUNCH:-accelerate launch "${sharing[@]}" --num_processes "$processes"} -m agentgym_tlm train \
  --policy "$policy" --env "$env" --trainer "$trainer" \
  --sft.num-train-epochs 3 --sft.learning-rate "$sft" \
  --sft.per-device-train-batch-size 1 --sft.gradient-accumulation-steps "$(steps 64)" \
  --sft.mixed-precision bf16 --sft.gradient-checkpointing \
  "--$trainer.num-train-epochs" 1 "--$trainer.learning-rate" "$align" \
  "--$trainer.per-device-train-batch-size" 1 "--$trainer.gradient-accumulation-steps" "$(steps 32)" \
  "--$trainer.mixed-precision" bf16 "--$trainer.gradient-checkpointing" "$@"
